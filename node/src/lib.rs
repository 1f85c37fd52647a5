//! thawd, one per node: finds snapshots, fetches and verifies their bytes for landers, and takes captures.

pub mod activity;
pub mod capture;
pub mod catalogue;
pub mod cgroup;
pub mod containerd;
pub mod daemon;
pub mod fetch;
pub mod listen;
pub mod logging;
pub mod lookup;
pub mod machine;
pub mod packets;
pub mod restore;
pub mod service;
pub mod single;
pub mod strikes;
pub mod target;

/// Waits at a failpoint, see [`thaw_proto::failpoint`].
pub(crate) async fn pause(point: &str) {
    let delay = thaw_proto::failpoint::delay(point);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}
