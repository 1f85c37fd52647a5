//! What was found, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::outcome::{Status, Totals};
use super::pins::Pins;
use super::run::Column;
use super::suite::{Shim, Suite};

/// Where a column is kept until all are there.
fn place(dir: &Path, suite: Suite, shim: Shim) -> PathBuf {
    dir.join(format!("{}-{}.json", suite.name(), shim.name()))
}

/// Keeps a column, in place of an earlier one.
pub fn keep(dir: &Path, column: &Column) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(
        place(dir, column.suite, column.shim),
        serde_json::to_vec_pretty(column)?,
    )
}

/// All columns that were kept.
pub fn kept(dir: &Path) -> Vec<Column> {
    Suite::ALL
        .iter()
        .flat_map(|suite| Shim::ALL.map(|shim| place(dir, *suite, shim)))
        .filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok())
        .collect()
}

/// The sums as JSON: an array with one object per suite and shim.
pub fn json(columns: &[Column]) -> serde_json::Value {
    let rows = columns.iter().map(|column| {
        let totals = column.totals();
        json!({
            "suite": column.suite.name(),
            "shim": column.shim.name(),
            "passed": totals.passed,
            "failed": totals.failed,
            "skipped": totals.skipped,
        })
    });
    serde_json::Value::Array(rows.collect())
}

/// One line on a column.
pub fn line(column: &Column) -> String {
    let Totals {
        passed,
        failed,
        skipped,
    } = column.totals();
    format!(
        "conform: {} {}: {passed} passed, {failed} failed, {skipped} skipped in {} s",
        column.suite.name(),
        column.shim.name(),
        column.took.as_secs()
    )
}

/// The sums as a Markdown table: a row per suite, a column per shim.
pub fn table(columns: &[Column]) -> String {
    let mut text = String::from("| suite |");
    for shim in Shim::ALL {
        let _ = write!(text, " {} |", shim.title());
    }
    text += "\n|---|---|---|---|\n";
    for suite in Suite::ALL {
        let _ = write!(text, "| {} |", suite.title());
        for shim in Shim::ALL {
            let column = columns.iter().find(|c| c.suite == suite && c.shim == shim);
            let cell = column.map_or_else(
                || "not run".to_owned(),
                |column| {
                    let totals = column.totals();
                    format!(
                        "{} passed, {} failed, {} skipped ({} s)",
                        totals.passed,
                        totals.failed,
                        totals.skipped,
                        column.took.as_secs()
                    )
                },
            );
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}

/// What the document says before its numbers.
const PREFACE: &str = "\
# Conformance

Written by `make conform`, which runs other people's suites against runc's shim, gVisor's own shim and Thaw, all in the
same surroundings: containerd and runsc of `tools/versions.env`, images built here, no CRIU, no AppArmor, no SELinux. A
test counts once, with its subtests. Both shims for gVisor have two of runsc's flags set that are off by default:
`oci-seccomp` and `allow-suid`. A test of the first suite in which gVisor's shim shows no sign of life for 15 s has
failed.

";

/// `docs/conformance.md`.
pub fn document(columns: &[Column], pins: &[(Suite, Pins)]) -> String {
    let mut text = PREFACE.to_owned();
    text += &table(columns);
    for (suite, pins) in pins {
        let _ = write!(text, "\n## {} with Thaw\n\n", suite.title());
        failures(&mut text, pins);
        let column = columns
            .iter()
            .find(|column| column.suite == *suite && column.shim == Shim::Thaw);
        if let Some(column) = column {
            skips(&mut text, column);
        }
    }
    text += "\nWhat fails with the other shims is in `tests/conform/`, test by test.\n";
    text
}

fn failures(text: &mut String, pins: &Pins) {
    if pins.of(Shim::Thaw).next().is_none() {
        *text += "Nothing fails.\n";
        return;
    }
    *text += "| fails | cause | reason |\n|---|---|---|\n";
    for (name, pin) in pins.of(Shim::Thaw) {
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            cell(name),
            pin.kind,
            cell(&pin.reason)
        );
    }
}

/// Counts what was skipped by what the suite said about it.
fn skips(text: &mut String, column: &Column) {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in &column.outcomes {
        if outcome.status == Status::Skipped {
            // The place in the suite's source differs from test to test.
            let said = outcome.detail.lines().next().unwrap_or_default();
            let said = said.split_once(": ").map_or(said, |(_, reason)| reason);
            // So do the ids that it lists.
            let said = said.split_once(" ([").map_or(said, |(reason, _)| reason);
            *reasons.entry(said).or_default() += 1;
        }
    }
    if reasons.is_empty() {
        return;
    }
    *text += "\n| skipped | what the suite says |\n|---|---|\n";
    for (said, count) in reasons {
        let _ = writeln!(text, "| {count} | {} |", cell(said));
    }
}

/// Text must not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
