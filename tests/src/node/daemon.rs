//! containerd's configuration.

use std::path::{Path, PathBuf};

use super::cri;
use super::files::Files;

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

/// The text of `containerd.toml`. `plugins`: where the CNI plugins are, for a node that serves the CRI.
pub(super) fn config(files: &Files, plugins: Option<&Path>) -> String {
    let mut disabled: Vec<&str> = DISABLED.to_vec();
    if plugins.is_none() {
        disabled.extend(CRI);
    }
    let common = format!(
        r#"version = 3
root = "{root}"
state = "{state}"
disabled_plugins = {disabled:?}
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
"#,
        root = files.root().display(),
        state = files.state().display(),
        socket = files.socket().display(),
    );
    common + &plugins.map_or_else(String::new, |plugins| cri::plugins_config(files, plugins))
}

/// Directories that must exist before containerd starts.
pub(super) fn directories(files: &Files) -> Vec<PathBuf> {
    vec![files.bin(), files.scratch(), files.thaw_state()]
}
