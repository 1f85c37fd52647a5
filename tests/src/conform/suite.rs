//! Which suites there are, and which shims they run against.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A test suite of somebody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// containerd's `integration/client`.
    Client,
    /// critest.
    Cri,
}

impl Suite {
    /// All of them.
    pub const ALL: [Suite; 2] = [Suite::Client, Suite::Cri];

    /// Its short name, which is also that of its file of pins.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Client => "client",
            Suite::Cri => "critest",
        }
    }

    /// What it is, for people.
    pub fn title(self) -> &'static str {
        match self {
            Suite::Client => "containerd's integration/client",
            Suite::Cri => "critest",
        }
    }
}

/// A shim under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Shim {
    /// containerd's own, in front of runc.
    Runc,
    /// gVisor's, written in Go.
    Gvisor,
    /// Ours.
    Thaw,
}

impl Shim {
    /// All of them, ours last.
    pub const ALL: [Shim; 3] = [Shim::Runc, Shim::Gvisor, Shim::Thaw];

    /// Its short name, which is also its runtime handler's.
    pub fn name(self) -> &'static str {
        match self {
            Shim::Runc => "runc",
            Shim::Gvisor => "gvisor",
            Shim::Thaw => "thaw",
        }
    }

    /// What it is, for people.
    pub fn title(self) -> &'static str {
        match self {
            Shim::Runc => "runc's shim",
            Shim::Gvisor => "gVisor's shim",
            Shim::Thaw => "Thaw",
        }
    }

    /// containerd's name of the runtime.
    pub fn runtime(self) -> &'static str {
        match self {
            Shim::Runc => "io.containerd.runc.v2",
            Shim::Gvisor => "io.containerd.runsc.v1",
            Shim::Thaw => "io.containerd.thaw.v1",
        }
    }
}
