//! `start`: binds the socket, starts the server with it, and answers with its address once it is ready.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use containerd_shim::Flags;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use thaw_config::Config;

use super::params::{Environment, StartParams};
use super::{BootstrapError, io, params, reply};
use crate::{paths, pod};

/// From the server's start to its ready byte.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// What a server writes to its standard output when it serves.
pub(crate) const READY: u8 = 0x06;

/// Runs `start` and writes exactly one reply to standard output.
pub(super) fn run(flags: &Flags) -> Result<(), BootstrapError> {
    let input = params::read_input()?;
    let params = params::parse(&input, flags, Environment::of_process())?;
    let config = Config::load()?;
    let bundle = super::bundle(flags)?;
    let group = group(&bundle, &flags.id);

    let address = match pods_address(&bundle, &flags.id, &group) {
        Some(address) => address,
        None => own_address(flags, &params, &config, &bundle, &group)?,
    };
    // containerd 1.x reads it when it starts again.
    paths::replace(&bundle.join("address"), address.as_bytes())
        .map_err(io(format!("write {}/address", bundle.display())))?;
    let mut stdout = std::io::stdout();
    stdout
        .write_all(&reply::encode(&params, &address))
        .and_then(|()| stdout.flush())
        .map_err(io("write the reply"))
}

/// The address of the pod's living shim, which is beside this container's bundle. The pod may have been started by another
/// containerd, which put sockets elsewhere.
fn pods_address(bundle: &Path, id: &str, group: &str) -> Option<String> {
    if group == id {
        return None;
    }
    let address = std::fs::read_to_string(bundle.parent()?.join(group).join("address")).ok()?;
    UnixStream::connect(address.strip_prefix("unix://")?).ok()?;
    Some(address)
}

/// The address of the group's shim by containerd's rule. If none lives there, one is started.
fn own_address(
    flags: &Flags,
    params: &StartParams,
    config: &Config,
    bundle: &Path,
    group: &str,
) -> Result<String, BootstrapError> {
    let dir = match &params.socket_dir {
        Some(dir) => PathBuf::from(dir),
        None => paths::socket_dir(config),
    };
    let socket = dir.join(paths::hash(&params.grpc_address, &flags.namespace, group));
    if socket.as_os_str().len() > paths::MAX_SOCKET_PATH {
        return Err(BootstrapError::SocketPath {
            path: socket,
            max: paths::MAX_SOCKET_PATH,
        });
    }
    let address = format!("unix://{}", socket.display());
    if let Some(listener) = claim(config, &dir, &socket)?
        && let Err(error) = serve(flags, params, bundle, &socket, listener)
    {
        let _ = std::fs::remove_file(&socket);
        return Err(error);
    }
    Ok(address)
}

/// The id whose shim this container shares: its pod's, else its own.
fn group(bundle: &Path, id: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Spec {
        #[serde(default)]
        annotations: std::collections::BTreeMap<String, String>,
    }
    std::fs::read(bundle.join("config.json"))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Spec>(&bytes).ok())
        .and_then(|spec| pod::sandbox_id(&spec.annotations).map(str::to_owned))
        .filter(|sandbox| paths::is_component(sandbox))
        .unwrap_or_else(|| id.to_owned())
}

/// The listener, or `None` if a living shim has the socket already.
fn claim(
    config: &Config,
    dir: &Path,
    socket: &Path,
) -> Result<Option<UnixListener>, BootstrapError> {
    paths::private_dir(&config.run_dir)
        .map_err(io(format!("make directory {}", config.run_dir.display())))?;
    paths::private_dir(dir).map_err(io(format!("make directory {}", dir.display())))?;
    // Held over probe, unlink and bind: two starters of one pod must not take each other's fresh socket for a stale one.
    let lock_path = config.run_dir.join("shims.lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&lock_path)
        .map_err(io(format!("open {}", lock_path.display())))?;
    lock.lock()
        .map_err(io(format!("lock {}", lock_path.display())))?;
    match std::fs::symlink_metadata(socket) {
        Ok(metadata) if metadata.file_type().is_socket() => {
            if UnixStream::connect(socket).is_ok() {
                return Ok(None);
            }
            std::fs::remove_file(socket)
                .map_err(io(format!("remove stale socket {}", socket.display())))?;
        }
        Ok(_) => {
            return Err(BootstrapError::Io {
                attempted: format!("use {} as a socket", socket.display()),
                source: std::io::Error::other("it is there and is no socket"),
            });
        }
        Err(_) => {}
    }
    let bound = UnixListener::bind(socket).map_err(io(format!("bind {}", socket.display())))?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))
        .map_err(io(format!("set the mode of {}", socket.display())))?;
    Ok(Some(bound))
}

fn serve(
    flags: &Flags,
    params: &StartParams,
    bundle: &Path,
    socket: &Path,
    listener: UnixListener,
) -> Result<(), BootstrapError> {
    let program = std::env::current_exe().map_err(io("find the shim's own binary"))?;
    let (mut output, server_output) = std::io::pipe().map_err(io("make a pipe"))?;
    let error_output = server_output.try_clone().map_err(io("duplicate a pipe"))?;
    let mut command = Command::new(&program);
    command
        .args(["-namespace", &flags.namespace, "-id", &flags.id])
        .args(["-address", &params.grpc_address])
        .arg("-socket")
        .arg(socket)
        .env("TTRPC_ADDRESS", &params.ttrpc_address)
        .current_dir(bundle)
        // The listening socket travels as standard input, the ready byte and any last words as standard output and error.
        .stdin(OwnedFd::from(listener))
        .stdout(server_output)
        .stderr(error_output)
        .process_group(0);
    if params.debug {
        command.arg("-debug");
    }
    let mut child = command
        .spawn()
        .map_err(io(format!("run {}", program.display())))?;
    // Otherwise this process would itself keep the pipe open and never see its end.
    drop(command);
    let ready =
        confine(&child, &params.shim_cgroup).and_then(|()| wait_ready(&mut output, &mut child));
    if ready.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    ready
}

/// The shim's cgroup if one is asked for, and a higher chance than containerd's to be killed when memory runs out.
fn confine(child: &Child, cgroup: &str) -> Result<(), BootstrapError> {
    if !cgroup.is_empty() {
        containerd_shim::cgroup::add_task_to_cgroup(cgroup, child.id())
            .map_err(|e| BootstrapError::Server(format!("cannot join cgroup {cgroup}: {e}")))?;
    }
    // Not worth failing a start for.
    let _ = containerd_shim::cgroup::adjust_oom_score(child.id());
    Ok(())
}

fn wait_ready(output: &mut PipeReader, child: &mut Child) -> Result<(), BootstrapError> {
    let deadline = std::time::Instant::now() + READY_LIMIT;
    let mut said = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let mut waiting = [PollFd::new(
            std::os::fd::AsFd::as_fd(output),
            PollFlags::POLLIN,
        )];
        let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut waiting, limit) {
            Ok(0) => {
                return Err(BootstrapError::Server(format!(
                    "it was not ready within {} s",
                    READY_LIMIT.as_secs()
                )));
            }
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(io("wait for the shim server")(error.into())),
        }
        let mut chunk = [0; 512];
        let n = output
            .read(&mut chunk)
            .map_err(io("hear from the shim server"))?;
        if chunk[..n].contains(&READY) {
            return Ok(());
        }
        said.extend_from_slice(&chunk[..n]);
        if n == 0 {
            let status = child.wait().map_err(io("wait for the shim server"))?;
            let text = String::from_utf8_lossy(&said).trim().to_owned();
            return Err(BootstrapError::Server(if text.is_empty() {
                status.to_string()
            } else {
                text
            }));
        }
    }
}

/// The listener that `start` passed to this process as standard input.
pub(crate) fn inherited_listener() -> std::io::Result<UnixListener> {
    let stdin = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned()?;
    let listener = UnixListener::from(stdin);
    // Fails if it is anything but a Unix socket.
    listener.local_addr()?;
    listener.set_nonblocking(true)?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok(listener)
}

/// Tells `start` that this server serves, and lets go of everything that came from it.
pub(crate) fn tell_ready() -> std::io::Result<()> {
    std::io::stdout().write_all(&[READY])?;
    std::io::stdout().flush()?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> Config {
        Config {
            run_dir: dir.join("run"),
            ..Config::default()
        }
    }

    #[test]
    fn a_living_socket_is_shared_and_a_stale_one_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let sockets = paths::socket_dir(&config);
        let socket = sockets.join("x");
        let first = claim(&config, &sockets, &socket).unwrap().unwrap();
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            std::fs::metadata(&sockets).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert!(claim(&config, &sockets, &socket).unwrap().is_none());
        drop(first);
        assert!(claim(&config, &sockets, &socket).unwrap().is_some());
    }

    #[test]
    fn a_file_in_the_sockets_place_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let sockets = paths::socket_dir(&config);
        paths::private_dir(&sockets).unwrap();
        std::fs::write(sockets.join("x"), "precious").unwrap();
        assert!(claim(&config, &sockets, &sockets.join("x")).is_err());
        assert_eq!(std::fs::read(sockets.join("x")).unwrap(), b"precious");
    }

    const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";

    #[test]
    fn a_pods_living_shim_is_found_wherever_it_listens() {
        let dir = tempfile::tempdir().unwrap();
        let (pod, own) = (dir.path().join("pod"), dir.path().join("own"));
        std::fs::create_dir(&pod).unwrap();
        assert_eq!(pods_address(&own, "own", "pod"), None);
        let address = format!("unix://{}", dir.path().join("s").display());
        std::fs::write(pod.join("address"), &address).unwrap();
        assert_eq!(pods_address(&own, "own", "pod"), None);
        let _listener = UnixListener::bind(dir.path().join("s")).unwrap();
        assert_eq!(pods_address(&own, "own", "pod"), Some(address));
        assert_eq!(pods_address(&own, "own", "own"), None);
    }

    #[test]
    fn a_pods_containers_share_the_pods_id() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(group(dir.path(), "own"), "own");
        let spec = serde_json::json!({"annotations": {SANDBOX_ID: "pod"}});
        std::fs::write(dir.path().join("config.json"), spec.to_string()).unwrap();
        assert_eq!(group(dir.path(), "own"), "pod");
        let spec = serde_json::json!({"annotations": {SANDBOX_ID: "../pod"}});
        std::fs::write(dir.path().join("config.json"), spec.to_string()).unwrap();
        assert_eq!(group(dir.path(), "own"), "own");
    }
}
