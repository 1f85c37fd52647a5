//! The lander as a child process, wired as runsc does it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use thaw_proto::options::{Job, LanderOptions};

/// No test takes nearly as long; one that hangs is ended by this.
const DEADLINE: Duration = Duration::from_secs(60);
/// Descriptors are inheritable between here and exec, and must not get into another test's child.
static SPAWNING: Mutex<()> = Mutex::new(());

/// A running lander.
pub(crate) struct Lander {
    child: Arc<Mutex<Child>>,
    log: PathBuf,
}

impl Lander {
    /// Starts a lander and returns it with the sentry's end of the socket.
    pub(crate) fn spawn(dir: &Path, job: Job, env: &[(&str, &Path)]) -> (Lander, UnixStream) {
        let flag = match job {
            Job::Restore { .. } => "-allow-checkpoint-reads",
            Job::Capture { .. } => "-allow-checkpoint-writes",
        };
        let options = LanderOptions {
            provider: LanderOptions::PROVIDER.to_owned(),
            job,
            data_socket: dir.join("data.sock"),
            gate_socket: dir.join("gate.sock"),
        };
        Lander::spawn_with(dir, &serde_json::to_vec(&options).unwrap(), flag, env)
    }

    /// Starts a lander with this options file and this flag.
    pub(crate) fn spawn_with(
        dir: &Path,
        options: &[u8],
        flag: &str,
        env: &[(&str, &Path)],
    ) -> (Lander, UnixStream) {
        let path = dir.join("gcs_opts.json");
        std::fs::write(&path, options).unwrap();
        let options: OwnedFd = File::open(path).unwrap().into();
        let log = dir.join("debug.log");
        let debug_log: OwnedFd = File::create(&log).unwrap().into();
        let user_log: OwnedFd = File::create(dir.join("user.log")).unwrap().into();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_thaw-gofer"));
        command
            .arg("--root=/nowhere")
            .arg(format!("--log-fd={}", user_log.as_raw_fd()))
            .arg(format!("--debug-log-fd={}", debug_log.as_raw_fd()))
            .arg("checkpointgofer")
            .arg(format!("-sock-fd={}", theirs.as_raw_fd()))
            .arg(format!("-gcs-opts-fd={}", options.as_raw_fd()))
            .arg(flag)
            .env("GVISOR_ENFORCE_RELEASE", "SKIP:release-test")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = {
            let _spawning = SPAWNING.lock().unwrap();
            let inherited = [
                theirs.as_fd(),
                options.as_fd(),
                debug_log.as_fd(),
                user_log.as_fd(),
            ];
            for fd in inherited {
                fcntl_setfd(fd, FdFlags::empty()).unwrap();
            }
            let child = command.spawn().unwrap();
            for fd in inherited {
                fcntl_setfd(fd, FdFlags::CLOEXEC).unwrap();
            }
            Arc::new(Mutex::new(child))
        };
        let watched = Arc::downgrade(&child);
        std::thread::spawn(move || {
            let started = Instant::now();
            while let Some(child) = watched.upgrade() {
                if started.elapsed() > DEADLINE {
                    let _ = child.lock().unwrap().kill();
                    return;
                }
                drop(child);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        (Lander { child, log }, ours)
    }

    /// Waits for the process to end by itself.
    pub(crate) fn wait(&self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.lock().unwrap().try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether the process has not ended.
    pub(crate) fn runs(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_none()
    }

    /// What it said.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Lander {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
        if std::thread::panicking() {
            eprintln!("lander said:\n{}", self.log());
        }
    }
}
