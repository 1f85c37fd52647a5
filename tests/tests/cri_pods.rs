//! Pods through containerd's CRI plugin, driven by crictl: what gVisor's own crictl suite checks, and what kubelet asks of
//! a runtime beyond that.

#[path = "cri_pods/disasters.rs"]
mod disasters;
#[path = "cri_pods/failures.rs"]
mod failures;
#[path = "cri_pods/gvisor.rs"]
mod gvisor;
#[path = "cri_pods/lives.rs"]
mod lives;
#[path = "cri_pods/resources.rs"]
mod resources;
