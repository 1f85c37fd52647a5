//! The stand-in itself: one directory, one namespace, one event service, one shim binary.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use containerd_shim_protos::api::Mount;
use tempfile::TempDir;
use tokio::runtime::{self, Handle};

use super::bundle::Bundle;
use super::client::TaskClient;
use super::error::{MockError, file};
use super::events::EventServer;
use super::leftovers;
use super::peer::{Peer, Runtime};
use super::spec::Spec;
use crate::node::{leak, mounts, procs};
use crate::tools::Tools;

/// Limit of a call unless a test says otherwise.
const LIMIT: Duration = Duration::from_secs(20);
/// The same for gVisor's shim, which never answers some calls.
const LIMIT_RUNSC: Duration = Duration::from_secs(4);

/// How a container's root is handed over in `Create`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// A writable layer over the image, as containerd's usual snapshotter does it.
    Overlay,
    /// A directory, bound.
    Bind,
    /// An overlay whose image is not there.
    Broken,
}

/// A stand-in for containerd with one shim. Dropping it kills its processes and removes everything that is its own.
pub struct Mock {
    peer: Peer,
    top: PathBuf,
    namespace: String,
    limit: Duration,
    events: EventServer,
    tokio: runtime::Runtime,
    dir: Option<TempDir>,
}

impl Mock {
    /// Lays out the directory and serves events.
    pub fn start(peer: Peer) -> Result<Mock, MockError> {
        // Unix socket paths below it must stay short, so it is not in TMPDIR.
        let dir = tempfile::Builder::new()
            .prefix("mock-")
            .tempdir_in("/tmp")
            .map_err(file("create a directory in", "/tmp"))?;
        let top = dir.path().to_owned();
        // cgroups are named by the namespace: it must be nobody else's.
        let name = top.file_name().unwrap_or_default().to_string_lossy();
        let namespace = name.to_lowercase().replace('.', "-");
        let tokio = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(file("start a runtime in", &top))?;
        let events = EventServer::start(tokio.handle().clone(), top.join("c.sock.ttrpc"))?;
        let limit = match peer.runtime() {
            Runtime::Runsc => LIMIT_RUNSC,
            Runtime::Thaw | Runtime::Runc => LIMIT,
        };
        let mock = Mock {
            peer,
            top,
            namespace,
            limit,
            events,
            tokio,
            dir: Some(dir),
        };
        mock.lay_out()?;
        mock.peer.configure(&mock)?;
        Ok(mock)
    }

    fn lay_out(&self) -> Result<(), MockError> {
        for dir in [
            self.bin(),
            self.top.join("lib"),
            self.io_dir(),
            self.top.join("image/bin"),
        ] {
            fs::create_dir_all(&dir).map_err(file("create", dir))?;
        }
        for binary in self.peer.binaries() {
            let real = fs::canonicalize(binary).map_err(file("find", binary))?;
            let to = self.bin().join(binary.file_name().unwrap_or_default());
            fs::hard_link(&real, &to)
                .or_else(|_| fs::copy(&real, &to).map(drop))
                .map_err(file("install", to))?;
        }
        self.lay_out_image(&self.top.join("image"))
    }

    /// A root with busybox in it.
    fn lay_out_image(&self, image: &Path) -> Result<(), MockError> {
        for dir in ["proc", "sys", "dev", "tmp", "etc"] {
            let dir = image.join(dir);
            fs::create_dir_all(&dir).map_err(file("create", dir))?;
        }
        let busybox = image.join("bin/busybox");
        fs::copy(Tools::find()?.busybox, &busybox).map_err(file("install", &busybox))?;
        for name in [
            "sh", "true", "false", "sleep", "cat", "echo", "kill", "dd", "stty", "seq", "test",
            "touch", "ps", "yes", "head", "wc", "tail",
        ] {
            let link = image.join("bin").join(name);
            symlink("busybox", &link).map_err(file("link", link))?;
        }
        Ok(())
    }

    /// Its directory.
    pub fn top(&self) -> &Path {
        &self.top
    }
    /// containerd's namespace; also the parent of all cgroups.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
    /// The shim.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
    /// containerd's events.
    pub fn events(&self) -> &EventServer {
        &self.events
    }
    /// For FIFOs, logs and volumes.
    pub fn io_dir(&self) -> PathBuf {
        self.top.join("io")
    }
    /// Thaw's `run_dir`.
    pub fn thaw_run(&self) -> PathBuf {
        self.top.join("run")
    }
    /// Delays and deaths of Thaw's test builds, see `thaw_proto::failpoint`.
    pub fn failpoints(&self) -> PathBuf {
        self.top.join("failpoints")
    }

    pub(super) fn bin(&self) -> PathBuf {
        self.top.join("bin")
    }
    pub(super) fn runtime(&self) -> &Handle {
        self.tokio.handle()
    }
    pub(super) fn runtime_root(&self) -> PathBuf {
        self.top.join("runtime")
    }
    pub(super) fn socket_dir(&self) -> PathBuf {
        self.top.join("s")
    }
    /// The address of the daemon's own service. Nobody listens there: no shim needs it.
    pub(super) fn grpc_address(&self) -> PathBuf {
        self.top.join("c.sock")
    }
    pub(super) fn bundle_dir(&self, id: &str) -> PathBuf {
        let tasks = self.top.join("state/io.containerd.runtime.v2.task");
        tasks.join(&self.namespace).join(id)
    }
    pub(super) fn work_dir(&self, id: &str) -> PathBuf {
        let tasks = self.top.join("root/io.containerd.runtime.v2.task");
        tasks.join(&self.namespace).join(id)
    }
    pub(super) fn cgroup_of(&self, id: &str) -> String {
        format!("/{}/{id}", self.namespace)
    }

    /// Writes the bundle of a container.
    pub fn bundle(&self, id: &str, spec: &Spec, root: Root) -> Result<Bundle, MockError> {
        Bundle::write(self, id, spec, &root)
    }

    pub(super) fn root_mounts(&self, id: &str, root: &Root) -> Result<Vec<Mount>, MockError> {
        let layer = self.top.join("layers").join(id);
        let (upper, work) = (layer.join("upper"), layer.join("work"));
        for dir in [&upper, &work] {
            fs::create_dir_all(dir).map_err(file("create", dir))?;
        }
        let mut image = self.top.join("image");
        let mount = match root {
            Root::Bind => {
                // Writable, so it needs a copy of its own.
                let copy = layer.join("copy");
                if !copy.exists() {
                    fs::create_dir_all(copy.join("bin")).map_err(file("create", &copy))?;
                    self.lay_out_image(&copy)?;
                }
                image = copy;
                Mount {
                    type_: "bind".into(),
                    source: image.display().to_string(),
                    options: vec!["rbind".into(), "rw".into()],
                    ..Mount::default()
                }
            }
            Root::Overlay | Root::Broken => {
                if *root == Root::Broken {
                    image = self.top.join("no-such-image");
                }
                Mount {
                    type_: "overlay".into(),
                    source: "overlay".into(),
                    options: vec![
                        format!("workdir={}", work.display()),
                        format!("upperdir={}", upper.display()),
                        format!("lowerdir={}", image.display()),
                    ],
                    ..Mount::default()
                }
            }
        };
        Ok(vec![mount])
    }

    /// Connects to a shim at the address that its `start` answered.
    pub fn connect(&self, address: &str, version: i32) -> Result<TaskClient, MockError> {
        TaskClient::connect(self.runtime(), address, version, self.limit)
    }

    /// Sets Thaw's failpoints, e.g. `("shim.before-go", "500")`.
    pub fn set_failpoints(&self, points: &[(&str, &str)]) -> Result<(), MockError> {
        let text: String = points
            .iter()
            .map(|(name, what)| format!("{name}={what}\n"))
            .collect();
        let path = self.failpoints();
        // Read by others at any time: never half of it.
        let new = path.with_extension("new");
        fs::write(&new, text).map_err(file("write", &new))?;
        fs::rename(&new, &path).map_err(file("replace", path))
    }

    /// Makes an executable file of this script.
    pub fn script(&self, name: &str, text: &str) -> Result<PathBuf, MockError> {
        let path = self.io_dir().join(name);
        fs::write(&path, text).map_err(file("write", &path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .map_err(file("write", &path))?;
        Ok(path)
    }

    /// What is left of containers and shims, once all of them should be gone.
    pub fn leftovers(&self) -> Vec<String> {
        leftovers::find(self)
    }

    /// The same, after a while in which shims and sandboxes may end.
    pub fn leftovers_after(&self, limit: Duration) -> Vec<String> {
        let started = Instant::now();
        loop {
            let left = self.leftovers();
            if left.is_empty() || started.elapsed() > limit {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn tear_down(&mut self) {
        let started = Instant::now();
        // A process killed early may just have started another one.
        while started.elapsed() < Duration::from_secs(20) {
            let mut found = procs::below(&self.top).len();
            procs::below(&self.top)
                .iter()
                .for_each(procs::Process::kill);
            for pid in leftovers::in_cgroups(&self.namespace) {
                found += 1;
                // It may have ended by itself.
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
            if found == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        mounts::unmount_below(&self.top);
        leak::remove_cgroups(&self.namespace);
        leftovers::remove_default_socket(self);
        if let Some(dir) = self.dir.take() {
            if std::env::var_os("THAW_KEEP").is_some() {
                eprintln!("kept {}", dir.keep().display());
            } else if let Err(e) = dir.close() {
                eprintln!("cannot remove {}: {e}", self.top.display());
            }
        }
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        self.tear_down();
    }
}
