//! What was measured, as a table for people and as JSON.

use std::io;
use std::path::Path;

use serde::Serialize;
use thaw_proto::{Outcome, Reason};

/// One start.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) step: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) reason: Option<Reason>,
    /// From the call of `ctr run` until it said that the container runs.
    pub(crate) running_ms: u64,
    /// From the call of `ctr run` until the first correct response.
    pub(crate) first_response_ms: u64,
    /// From the store, until all memory was there.
    pub(crate) bytes_fetched: u64,
}

/// Rows and what went wrong.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    problems: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub(crate) fn problem(&mut self, what: impl Into<String>) {
        self.problems.push(what.into());
    }

    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    pub(crate) fn row(&self, step: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.step == step)
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut text = serde_json::to_string_pretty(&self.rows)?;
        text.push('\n');
        std::fs::write(path, text)
    }

    pub(crate) fn print(&self) {
        println!();
        println!(
            "{:<22} {:>12} {:>20} {:>14}  {:<10} reason",
            "step", "Running", "first response", "fetched", "outcome"
        );
        for row in &self.rows {
            println!(
                "{:<22} {:>9} ms {:>17} ms {:>10.1} MiB  {:<10} {}",
                row.step,
                row.running_ms,
                row.first_response_ms,
                row.bytes_fetched as f64 / f64::from(1 << 20),
                row.outcome.to_string(),
                row.reason.map_or("-", Reason::code)
            );
        }
        let first = |step| {
            self.row(step)
                .map(|row| row.first_response_ms.max(1) as f64)
        };
        if let Some(normal) = first("normal") {
            println!();
            for (step, what) in [
                ("restored-empty-cache", "an empty cache"),
                ("restored-warm-cache", "a warm cache"),
            ] {
                if let Some(restored) = first(step) {
                    println!(
                        "Restored with {what}: {:.1} times faster to the first correct response.",
                        normal / restored
                    );
                }
            }
        }
        println!();
    }
}
