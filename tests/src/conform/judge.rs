//! Running a suite and holding it against its pins: what `make conform` and the tests have in common.

use std::io::Write;
use std::path::PathBuf;

use thiserror::Error;

use super::outcome::Status;
use super::pins::{Difference, Pins, PinsError};
use super::report;
use super::run::{Column, RunError, Workshop};
use super::suite::{Shim, Suite};
use crate::tools::checkout;

/// More failures than these are no accident.
const SECOND_ATTEMPTS: usize = 5;

/// Tests of containerd's own stores and services in its client suite.
const WITHOUT_A_SHIM: [&str; 8] = [
    "TestContentClient",
    "TestConvert",
    "TestExport",
    "TestImage",
    "TestImport",
    "TestLease",
    "TestSnapshotterClient",
    "TestTransfer",
];

/// Why there is no verdict.
#[derive(Debug, Error)]
pub enum JudgeError {
    /// The suite cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Its pins cannot be read.
    #[error(transparent)]
    Pins(#[from] PinsError),
    /// The result cannot be kept.
    #[error("cannot write to {path}: {source}")]
    Keep {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The pins of the repository.
pub fn pins(suite: Suite) -> Result<Pins, PinsError> {
    Pins::read(&checkout().join("tests/conform"), suite)
}

/// Where results and logs are kept.
pub fn results() -> PathBuf {
    checkout().join("target/conform")
}

/// Runs a suite, or `only` some tests of it, and prints and returns how it differs from what is pinned.
pub fn judge(
    workshop: &Workshop,
    suite: Suite,
    shim: Shim,
    only: &[String],
) -> Result<Vec<Difference>, JudgeError> {
    let pins = pins(suite)?;
    let mut column = workshop.run(suite, shim, only, &pins.hanging(shim))?;
    second_attempt(workshop, &pins, &mut column)?;
    if only.is_empty() {
        report::keep(&results(), &column).map_err(|source| JudgeError::Keep {
            path: results(),
            source,
        })?;
    }
    let differences = pins.differences(shim, &column.outcomes, !only.is_empty());
    say(&column, &differences);
    Ok(differences)
}

/// Runs again what failed without being pinned and is not ours to mend: all of a peer's, and of Thaw's what no shim takes
/// part in. Suites of this size always have a test that is late now and then. What Thaw's shim takes part in has one
/// attempt.
fn second_attempt(workshop: &Workshop, pins: &Pins, column: &mut Column) -> Result<(), JudgeError> {
    let again: Vec<String> = pins
        .differences(column.shim, &column.outcomes, true)
        .into_iter()
        .filter(|difference| match difference {
            Difference::Failed { name, .. } => {
                column.shim != Shim::Thaw
                    || WITHOUT_A_SHIM.iter().any(|test| name.starts_with(test))
            }
            Difference::Passed(_) | Difference::Missing(_) => false,
        })
        .filter_map(|difference| match difference {
            // Of containerd's suite only whole tests can be chosen.
            Difference::Failed { name, .. } if column.suite == Suite::Client => {
                Some(name.split('/').next().unwrap_or(&name).to_owned())
            }
            Difference::Failed { name, .. } => Some(name),
            Difference::Passed(_) | Difference::Missing(_) => None,
        })
        .collect();
    if again.is_empty() || again.len() > SECOND_ATTEMPTS {
        return Ok(());
    }
    let second = workshop.run(column.suite, column.shim, &again, &[])?;
    for outcome in second.outcomes {
        let chosen = again
            .iter()
            .any(|name| outcome.name == *name || outcome.name.starts_with(&format!("{name}/")));
        let first = column.outcomes.iter_mut().find(|o| o.name == outcome.name);
        if let (true, Some(first)) = (chosen, first) {
            if first.status == Status::Failed && outcome.status == Status::Passed {
                let mut out = std::io::stdout().lock();
                let _ = writeln!(out, "passed only when run again: {}", outcome.name);
            }
            *first = outcome;
        }
    }
    column.took += second.took;
    Ok(())
}

fn say(column: &Column, differences: &[Difference]) {
    // Not by `println!`, which a test runner keeps to itself.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", report::line(column));
    for difference in differences {
        let _ = writeln!(
            out,
            "[{} {}] {difference}",
            column.suite.name(),
            column.shim.name()
        );
    }
}
