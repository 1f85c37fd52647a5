//! `containerd-shim-thaw-v1`: what containerd runs for the runtime `io.containerd.thaw.v1`.

fn main() -> std::process::ExitCode {
    thaw_shim::main()
}
