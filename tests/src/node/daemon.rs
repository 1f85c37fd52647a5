//! containerd's configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::cri;
use super::files::Files;
use crate::command::{self, CommandError};

const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// Plugins that touch the machine outside the node's directory.
const DISABLED: &[&str] = &[
    "io.containerd.internal.v1.opt",
    "io.containerd.nri.v1.nri",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.differ.v1.erofs",
];
/// Those that serve the CRI.
const CRI: &[&str] = &[
    "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime",
    "io.containerd.grpc.v1.cri",
];

/// How containerd's configuration is written, which changed with 2.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// 1.x: configuration version 2.
    One,
    /// 2.x: configuration version 3.
    Two,
}

impl Dialect {
    /// The one of this binary, by what it says of itself.
    pub(super) fn of(containerd: &Path) -> Result<Dialect, CommandError> {
        let mut command = Command::new(containerd);
        let output = command::run(command.arg("--version"), VERSION_LIMIT)?.success()?;
        // containerd's path ends in /v2 since 2.0.
        let two = output.stdout.contains("containerd/v2 ");
        Ok(if two { Dialect::Two } else { Dialect::One })
    }
}

/// The text of `containerd.toml`. `plugins`: where the CNI plugins are, for a node that serves the CRI.
pub(super) fn config(files: &Files, plugins: Option<&Path>, dialect: Dialect) -> String {
    let mut disabled: Vec<&str> = DISABLED.to_vec();
    if plugins.is_none() {
        disabled.extend(CRI);
    }
    let common = format!(
        r#"version = {version}
root = "{root}"
state = "{state}"
disabled_plugins = {disabled:?}
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
"#,
        version = match dialect {
            Dialect::One => 2,
            Dialect::Two => 3,
        },
        root = files.root().display(),
        state = files.state().display(),
        socket = files.socket().display(),
    );
    let pods = plugins.map(|plugins| match dialect {
        Dialect::One => cri::plugins_config_1(files, plugins),
        Dialect::Two => cri::plugins_config(files, plugins),
    });
    common + &pods.unwrap_or_default()
}

/// Directories that must exist before containerd starts.
pub(super) fn directories(files: &Files) -> Vec<PathBuf> {
    vec![files.bin(), files.scratch(), files.thaw_state()]
}
