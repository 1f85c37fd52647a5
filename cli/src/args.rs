//! The command line.

use std::path::PathBuf;

/// Snapshots of gVisor containers: take them, list them, and see why a start was cold.
#[derive(Debug, clap::Parser)]
#[command(name = "thaw", version, max_term_width = 100)]
pub(crate) struct Args {
    /// Print JSON to standard output instead of tables.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Configuration file [default: /etc/thaw/config.toml if it exists].
    #[arg(long, global = true, value_name = "FILE", env = "THAW_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// containerd's namespace.
    #[arg(
        long,
        short,
        global = true,
        value_name = "NAME",
        env = "CONTAINERD_NAMESPACE",
        default_value = "default"
    )]
    pub(crate) namespace: String,
    /// containerd's socket.
    #[arg(
        long,
        short,
        global = true,
        value_name = "SOCKET",
        env = "CONTAINERD_ADDRESS",
        default_value = "/run/containerd/containerd.sock"
    )]
    pub(crate) address: PathBuf,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Take a snapshot of a running container, which goes on running.
    Capture(Capture),
    /// List snapshots, or how running containers were started.
    Ls(Ls),
    /// Show one snapshot.
    Show(Show),
    /// Say which snapshot a container would restore, or which fields differ from the nearest one.
    Explain(Explain),
    /// Remove a snapshot from the store.
    Rm(Rm),
    /// Check whether this node is ready, and say what to do if not.
    Doctor(Doctor),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Capture {
    /// Container id.
    pub(crate) container: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// List the containers on this node with the outcome of their start.
    #[arg(long)]
    pub(crate) running: bool,
    /// Every containerd namespace, not only the one of --namespace.
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// Snapshot id, or its first 8 digits or more.
    pub(crate) snapshot: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// Container id, or the path of a config.json.
    #[arg(value_name = "CONTAINER|CONFIG.JSON")]
    pub(crate) target: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// Snapshot id, or its first 8 digits or more.
    pub(crate) snapshot: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// containerd's configuration file.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/containerd/config.toml"
    )]
    pub(crate) containerd_config: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn global_options_go_before_and_after_the_command() {
        let args =
            Args::try_parse_from(["thaw", "-n", "k8s.io", "capture", "web", "--json"]).unwrap();
        assert!(args.json);
        assert_eq!(args.namespace, "k8s.io");
        assert!(
            matches!(args.command, Command::Capture(Capture { container }) if container == "web")
        );
    }

    #[test]
    fn wrong_usage_is_status_2() {
        for words in [&["thaw"][..], &["thaw", "capture"], &["thaw", "melt"]] {
            assert_eq!(
                Args::try_parse_from(words).unwrap_err().exit_code(),
                2,
                "{words:?}"
            );
        }
    }
}
