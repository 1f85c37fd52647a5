//! Port forwarding into a pod.
//!
//! containerd forwards a port by dialling localhost in the pod's network namespace. There the host's loopback answers,
//! and what listens in the sandbox is in gVisor's own network stack. So the shim listens in that namespace, a packet
//! filter rule leads every connection to its loopback there, and the sandbox is asked to connect each to the port that
//! was meant (gVisor `runsc/boot/loader.go`, portForward). The rule goes with the namespace.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener as StdListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::OriginalDst};
use thaw_runsc::control::Control;
use thaw_runsc::spawn::Spawned;
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::netns;
use crate::reaper::Children;

/// A pause after the kernel refused a connection for want of descriptors or memory.
const BREATH: Duration = Duration::from_millis(100);
const IPTABLES: &str = "iptables";

/// Why ports of a pod cannot be forwarded. The pod runs all the same.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error(transparent)]
    Netns(#[from] netns::NetnsError),
    #[error("cannot listen in network namespace {}: {source}", netns.display())]
    Listen {
        netns: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot run {IPTABLES}, which must be installed: {0}")]
    Iptables(std::io::Error),
    #[error("{IPTABLES} does not lead connections to the loopback of network namespace {} to the shim: {status}", netns.display())]
    Refused {
        netns: PathBuf,
        status: std::process::ExitStatus,
    },
}

/// Forwards what is dialled on the namespace's loopback into the sandbox, for as long as it is polled. `sandbox` is the
/// id of the container that holds the sandbox.
pub(crate) async fn serve(
    netns: PathBuf,
    sandbox: String,
    control: Control,
    children: Arc<dyn Children>,
) -> Result<(), ForwardError> {
    let place = netns.clone();
    let begun = tokio::task::spawn_blocking(move || begin(&place, children.as_ref())).await;
    let (listener, rule) = match begun {
        Ok(begun) => begun?,
        // Only at the end of the program.
        Err(_) => return Ok(()),
    };
    match rule.exit.await {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(ForwardError::Refused { netns, status }),
        Err(error) => return Err(ForwardError::Iptables(error)),
    }
    let listener = TcpListener::from_std(listener).map_err(|source| ForwardError::Listen {
        netns: netns.clone(),
        source,
    })?;
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                let (control, sandbox) = (control.clone(), sandbox.clone());
                tokio::spawn(async move {
                    if let Err(error) = forward(connection, &control, &sandbox).await {
                        tracing::debug!(%error, "a port was not forwarded");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection to be forwarded was not accepted");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// Listens in the namespace and starts the command that makes the rule there.
fn begin(netns: &Path, children: &dyn Children) -> Result<(StdListener, Spawned), ForwardError> {
    netns::inside(netns, || {
        let listen = || {
            let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            Ok((listener, port))
        };
        let listened = listen().map_err(|source| ForwardError::Listen {
            netns: netns.to_owned(),
            source,
        });
        Ok(listened.and_then(|(listener, port)| {
            let rule = children.spawn(rule(port)).map_err(ForwardError::Iptables)?;
            Ok((listener, rule))
        }))
    })?
}

/// Leads all that is sent to the loopback to `port`. Whatever the sandbox sends never passes here: it has its packets
/// from the links themselves.
fn rule(port: u16) -> Command {
    let mut command = Command::new(IPTABLES);
    command
        .args(["--wait", "--table", "nat", "--append", "OUTPUT"])
        .args(["--out-interface", "lo", "--protocol", "tcp"])
        .args(["--jump", "REDIRECT", "--to-ports", &port.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

async fn forward(
    mut connection: TcpStream,
    control: &Control,
    sandbox: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let port = meant_port(&connection)?;
    let (mut near, far) = UnixStream::pair()?;
    let far = OwnedFd::from(far.into_std()?);
    if let Err(error) = control.port_forward(sandbox, port, far).await {
        // Nobody listens: what dials must not take it for an empty answer.
        connection.set_zero_linger()?;
        return Err(error.into());
    }
    tokio::io::copy_bidirectional(&mut connection, &mut near).await?;
    Ok(())
}

/// The port that was dialled, before the rule changed it.
fn meant_port(connection: &TcpStream) -> std::io::Result<u16> {
    let address = getsockopt(connection, OriginalDst)?;
    let meant = SocketAddrV4::new(
        u32::from_be(address.sin_addr.s_addr).into(),
        u16::from_be(address.sin_port),
    );
    Ok(meant.port())
}
