//! thawd, one per node: finds snapshots, fetches and verifies their bytes for landers, and takes captures.

pub mod cgroup;
pub mod containerd;
pub mod fetch;
pub mod listen;
pub mod logging;
pub mod machine;
pub mod packets;
pub mod restore;
pub mod single;
pub mod strikes;

/// Waits at a failpoint, see [`thaw_proto::failpoint`].
pub(crate) async fn pause(point: &str) {
    let delay = thaw_proto::failpoint::delay(point);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}
