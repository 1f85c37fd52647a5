//! What a suite said about one test.

use serde::{Deserialize, Serialize};

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should.
    Passed,
    /// With an error, a panic, or never.
    Failed,
    /// The suite decided not to run it.
    Skipped,
}

/// One test's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Full name; subtests have their parents' names in front.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// How long it took.
    pub seconds: f64,
    /// What the suite printed about it: errors, or why it was skipped.
    pub detail: String,
}

/// The tests that failed themselves, and not only by a subtest of theirs.
pub fn failures(outcomes: &[Outcome]) -> Vec<&Outcome> {
    let failed: Vec<&Outcome> = outcomes
        .iter()
        .filter(|o| o.status == Status::Failed)
        .collect();
    failed
        .iter()
        .filter(|o| !failed.iter().any(|other| is_below(&other.name, &o.name)))
        .copied()
        .collect()
}

fn is_below(name: &str, parent: &str) -> bool {
    name.strip_prefix(parent)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Sums of a suite's results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that were not run.
    pub skipped: usize,
}

impl Totals {
    /// Counts whole tests: a subtest is part of its parent.
    pub fn of(outcomes: &[Outcome]) -> Totals {
        let mut totals = Totals::default();
        for outcome in outcomes
            .iter()
            .filter(|o| !outcomes.iter().any(|other| is_below(&o.name, &other.name)))
        {
            match outcome.status {
                Status::Passed => totals.passed += 1,
                Status::Failed => totals.failed += 1,
                Status::Skipped => totals.skipped += 1,
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, status: Status) -> Outcome {
        Outcome {
            name: name.into(),
            status,
            seconds: 0.0,
            detail: String::new(),
        }
    }

    #[test]
    fn a_subtest_is_counted_with_its_parent_and_blamed_itself() {
        let outcomes = [
            outcome("TestA", Status::Failed),
            outcome("TestA/one", Status::Passed),
            outcome("TestA/two", Status::Failed),
            outcome("TestAB", Status::Passed),
            outcome("TestC", Status::Skipped),
            outcome("TestD", Status::Failed),
        ];
        assert_eq!(
            Totals::of(&outcomes),
            Totals {
                passed: 1,
                failed: 2,
                skipped: 1
            }
        );
        let names: Vec<&str> = failures(&outcomes)
            .iter()
            .map(|o| o.name.as_str())
            .collect();
        assert_eq!(names, ["TestA/two", "TestD"]);
    }
}
