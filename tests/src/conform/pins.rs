//! Failures that are known and explained, in a file per suite.
//!
//! ```toml
//! ["TestContainerPTY"]
//! thaw = { kind = "gvisor", reason = "what gVisor cannot do, and where that is written" }
//! ```
//!
//! Checked both ways: a failure that is not pinned is an error, and so is a pin whose test passes.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use super::outcome::{Outcome, Status, failures};
use super::suite::{Shim, Suite};

/// Why a test fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// gVisor cannot do it.
    Gvisor,
    /// The machine or the versions installed on it cannot.
    Environment,
    /// The image that it wants is not there.
    Image,
    /// A fault of Thaw's.
    Ours,
    /// A fault of the shim that Thaw is compared with.
    Peer,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Gvisor => "gVisor",
            Kind::Environment => "environment",
            Kind::Image => "image",
            Kind::Ours => "ours",
            Kind::Peer => "peer",
        })
    }
}

/// An explained failure.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Who is to blame.
    pub kind: Kind,
    /// What happens, and where that is written.
    pub reason: String,
    /// It does so by never ending: better run it after all others, and not wait long.
    #[serde(default)]
    pub hangs: bool,
}

/// Why the pins cannot be read.
#[derive(Debug, Error)]
pub enum PinsError {
    /// The file.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its content.
    #[error("{path} is not a list of pinned failures: {source}")]
    Parse {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: Box<toml::de::Error>,
    },
}

/// The pins of a suite.
#[derive(Debug, Default)]
pub struct Pins(BTreeMap<String, BTreeMap<Shim, Pin>>);

/// A difference between what is pinned and what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// A failure that nobody has explained.
    Failed {
        /// Test.
        name: String,
        /// What the suite said.
        detail: String,
    },
    /// A test passes that is pinned.
    Passed(String),
    /// A pinned test was not run: skipped, renamed or removed.
    Missing(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Failed { name, detail } => {
                write!(
                    f,
                    "failed, but is not pinned: {name}\n    {}",
                    detail.replace('\n', "\n    ")
                )
            }
            Difference::Passed(name) => write!(f, "passed, but is pinned: {name}"),
            Difference::Missing(name) => write!(f, "is pinned, but was not run: {name}"),
        }
    }
}

impl Pins {
    /// Reads a suite's pins from the directory of all pins.
    pub fn read(dir: &Path, suite: Suite) -> Result<Pins, PinsError> {
        let path = dir.join(format!("{}.toml", suite.name()));
        let text = std::fs::read_to_string(&path).map_err(|source| PinsError::Read {
            path: path.clone(),
            source,
        })?;
        Pins::parse(&text).map_err(|source| PinsError::Parse {
            path,
            source: Box::new(source),
        })
    }

    fn parse(text: &str) -> Result<Pins, toml::de::Error> {
        toml::from_str(text).map(Pins)
    }

    /// A shim's pins by test.
    pub fn of(&self, shim: Shim) -> impl Iterator<Item = (&str, &Pin)> {
        self.0
            .iter()
            .filter_map(move |(name, shims)| Some((name.as_str(), shims.get(&shim)?)))
    }

    /// Tests that are known never to end.
    pub fn hanging(&self, shim: Shim) -> Vec<String> {
        self.of(shim)
            .filter(|(_, pin)| pin.hangs)
            .map(|(name, _)| name.to_owned())
            .collect()
    }

    /// Holds results against the pins. With `partial`, pinned tests need not have been run.
    pub fn differences(&self, shim: Shim, outcomes: &[Outcome], partial: bool) -> Vec<Difference> {
        let pinned: BTreeMap<&str, &Pin> = self.of(shim).collect();
        let mut found: Vec<Difference> = failures(outcomes)
            .into_iter()
            .filter(|outcome| !pinned.contains_key(outcome.name.as_str()))
            .map(|outcome| Difference::Failed {
                name: outcome.name.clone(),
                detail: outcome.detail.clone(),
            })
            .collect();
        for name in pinned.keys() {
            match outcomes
                .iter()
                .find(|outcome| outcome.name == *name)
                .map(|o| o.status)
            {
                Some(Status::Failed) => {}
                Some(Status::Passed) => found.push(Difference::Passed((*name).to_owned())),
                Some(Status::Skipped) | None if !partial => {
                    found.push(Difference::Missing((*name).to_owned()));
                }
                Some(Status::Skipped) | None => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        ["TestA/sub"]
        thaw = { kind = "gvisor", reason = "no" }
        ["TestB"]
        thaw = { kind = "ours", reason = "no" }
        runc = { kind = "environment", reason = "no" }
        ["TestC"]
        thaw = { kind = "image", reason = "no" }
    "#;

    fn outcome(name: &str, status: Status) -> Outcome {
        Outcome {
            name: name.into(),
            status,
            seconds: 0.0,
            detail: "why".into(),
        }
    }

    #[test]
    fn pins_are_checked_both_ways() {
        let pins = Pins::parse(TEXT).unwrap();
        let outcomes = [
            outcome("TestA", Status::Failed),
            outcome("TestA/sub", Status::Failed),
            outcome("TestA/other", Status::Failed),
            outcome("TestB", Status::Passed),
            outcome("TestC", Status::Skipped),
        ];
        assert_eq!(
            pins.differences(Shim::Thaw, &outcomes, false),
            [
                Difference::Failed {
                    name: "TestA/other".into(),
                    detail: "why".into()
                },
                Difference::Passed("TestB".into()),
                Difference::Missing("TestC".into()),
            ]
        );
        assert_eq!(pins.differences(Shim::Thaw, &outcomes, true).len(), 2);
        assert_eq!(pins.of(Shim::Runc).count(), 1);
    }

    #[test]
    fn the_lists_in_the_repository_are_valid() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("conform");
        for suite in Suite::ALL {
            let pins = Pins::read(&dir, suite).unwrap();
            for shim in Shim::ALL {
                for (name, pin) in pins.of(shim) {
                    assert!(pin.reason.len() > 10, "{name} needs a reason");
                    assert!(
                        shim != Shim::Thaw || pin.kind != Kind::Peer,
                        "{name}: Thaw is not its own peer"
                    );
                }
            }
        }
    }
}
