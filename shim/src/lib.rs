//! The containerd shim of Thaw: answers containerd's Task API for one container or pod, decides whether a start
//! restores a snapshot, and finds the way back to a normal start when it does not succeed.

mod bootstrap;
mod cgroup;
mod container;
mod deleted;
mod env;
mod forward;
mod gate;
mod logger;
mod netns;
mod node;
mod options;
mod order;
mod paths;
mod pod;
mod process;
mod program;
mod publisher;
mod reaper;
mod records;
mod rootfs;
mod server;
mod service;
mod status;
mod stdio;
mod undo;

use std::process::ExitCode;

/// Runs the command that the arguments name, as containerd's shim v2 interface has it: `start`, `delete`, `-info`, `-v`,
/// and without any of them the server that `start` starts.
pub fn main() -> ExitCode {
    match bootstrap::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: containerd shows it as the reason.
            eprintln!("{}", error.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}
