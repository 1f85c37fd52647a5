//! The lander: runsc's `checkpointgofer` sidecar. See [`thaw_runsc::lander`].

use std::process::ExitCode;

fn main() -> ExitCode {
    thaw_runsc::lander::main()
}
