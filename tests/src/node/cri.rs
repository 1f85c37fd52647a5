//! Pods through containerd's CRI plugin, by crictl.
//!
//! containerd and crictl run in a network namespace of the node's: bridges, cables and packet filter rules of CNI never
//! meet the machine's, and the streaming server's port is nobody else's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::error::{NodeError, file_error};
use super::files::Files;
use super::running::TestNode;
use crate::command::{self, CommandError, Output};
use crate::netns::{Netns, NetnsError};
use crate::tools::CriTools;

/// The containerd namespace of pods.
pub(super) const NAMESPACE: &str = "k8s.io";
/// The pods' sandbox image, to be imported before the first pod. Its program must run for ever.
pub const PAUSE: &str = "thaw.dev/test/pause:1";
/// Where libcni keeps results; it cannot be told otherwise.
const CNI_RESULTS: &str = "/var/lib/cni/results";
/// The plugins that run pods.
const RUNTIME: &str = "io.containerd.cri.v1.runtime";
const RUNTIME_1: &str = "io.containerd.grpc.v1.cri";
const LIMIT: Duration = Duration::from_secs(100);

/// The parts of a node that serves the CRI.
#[derive(Debug)]
pub(super) struct Cri {
    tools: CriTools,
    netns: Netns,
    /// The CNI network's name, which is nobody else's.
    network: String,
}

impl Cri {
    /// Makes the network namespace, CNI's configuration and crictl's.
    pub(super) fn lay_out(files: &Files, tools: CriTools, network: &str) -> Result<Cri, NodeError> {
        let cni = files.cni();
        fs::create_dir_all(&cni).map_err(|e| file_error("create", &cni, e))?;
        let conflist = serde_json::json!({
            "cniVersion": "1.0.0",
            "name": network,
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "dataDir": files.top().join("ipam"),
                        "ranges": [[{"subnet": "10.88.0.0/16"}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": true}},
            ],
        });
        let crictl = serde_json::json!({
            "runtime-endpoint": format!("unix://{}", files.socket().display()),
            "image-endpoint": format!("unix://{}", files.socket().display()),
            "timeout": 60,
        });
        // JSON is YAML.
        for (path, value) in [
            (cni.join("10-pods.conflist"), conflist),
            (crictl_config(files), crictl),
        ] {
            fs::write(&path, value.to_string()).map_err(|e| file_error("write", &path, e))?;
        }
        Ok(Cri {
            tools,
            netns: Netns::new(&files.scratch().join("host.netns"))?,
            network: network.to_owned(),
        })
    }

    pub(super) fn plugins(&self) -> &Path {
        &self.tools.cni_plugins
    }

    /// Starts something inside the network namespace.
    pub(super) fn inside<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        self.netns.inside(job)
    }

    /// Removes what libcni wrote down about pods that were never removed.
    pub(super) fn forget_results(&self) {
        for path in self.results() {
            let _ = fs::remove_file(path);
        }
    }

    fn results(&self) -> Vec<PathBuf> {
        let prefix = format!("{}-", self.network);
        fs::read_dir(CNI_RESULTS)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect()
    }
}

/// The CRI part of `containerd.toml`.
pub(super) fn plugins_config(files: &Files, plugins: &Path) -> String {
    format!(
        r#"[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."{RUNTIME}"]
  # Lowering a score needs a capability that root in a container may not have.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."{RUNTIME}".cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{cni}"
    use_internal_loopback = true
{runtimes}"#,
        plugins = plugins.display(),
        cni = files.cni().display(),
        runtimes = runtimes(RUNTIME),
    )
}

/// The same for containerd 1.x.
pub(super) fn plugins_config_1(files: &Files, plugins: &Path) -> String {
    format!(
        r#"[plugins."{RUNTIME_1}"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."{RUNTIME_1}".cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"
{runtimes}"#,
        plugins = plugins.display(),
        cni = files.cni().display(),
        runtimes = runtimes(RUNTIME_1),
    )
}

/// Thaw as the runtime of all pods; `plugin` has the section.
fn runtimes(plugin: &str) -> String {
    format!(
        r#"  [plugins."{plugin}".containerd]
    default_runtime_name = "thaw"
  [plugins."{plugin}".containerd.runtimes.thaw]
    runtime_type = "io.containerd.thaw.v1"
    pod_annotations = ["thaw.dev/*", "dev.gvisor.*"]
    container_annotations = ["thaw.dev/*", "dev.gvisor.*"]
"#
    )
}

fn crictl_config(files: &Files) -> PathBuf {
    files.top().join("crictl.yaml")
}

impl TestNode {
    /// Runs `crictl` with these arguments to its end.
    pub fn crictl(&self, arguments: &[&str]) -> Result<Output, NodeError> {
        let mut command = self.crictl_command(arguments)?;
        Ok(self.in_network(|| command::run(&mut command, LIMIT))??)
    }

    /// Starts `crictl` with these arguments and lets the caller wait for it.
    pub fn crictl_spawn(
        &self,
        arguments: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<std::process::Child, NodeError> {
        let mut command = self.crictl_command(arguments)?;
        change(&mut command);
        self.in_network(|| command.spawn())?.map_err(|source| {
            NodeError::Command(CommandError::Run {
                command: format!("crictl {}", arguments.join(" ")),
                source,
            })
        })
    }

    /// `crictl` with these arguments. It reaches pods and the streaming server only from the node's network namespace:
    /// start it by [`TestNode::in_network`].
    pub fn crictl_command(&self, arguments: &[&str]) -> Result<Command, NodeError> {
        let cri = self.cri.as_ref().ok_or(NodeError::NoCri)?;
        let mut command = Command::new(&cri.tools.crictl);
        command
            .arg("--config")
            .arg(crictl_config(self.files()))
            .args(arguments);
        Ok(command)
    }

    /// Runs something on a thread in the network namespace that the pods' cables lead to.
    pub fn in_network<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, NodeError> {
        let cri = self.cri.as_ref().ok_or(NodeError::NoCri)?;
        Ok(cri.inside(job)?)
    }
}
