//! The first process of a world: makes the world what it is, starts the job and reaps whatever is orphaned.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::wait::{WaitStatus, waitpid};
use thiserror::Error;

use super::library::{Library, LibraryError};
use super::outcome::Outcome;
use super::suite::Suite;
use super::world::{Job, Places};
use super::{cgroups, client, cri, registry};
use crate::command::{self, CommandError};

/// Why a job cannot be done.
#[derive(Debug, Error)]
pub enum InsideError {
    /// A part of the world cannot be set up.
    #[error("cannot {what}: {source}")]
    Setup {
        /// Which.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The images are not there.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The suite left no report that can be read.
    #[error("the suite left no report at {path}: {message}")]
    Report {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

pub(super) fn setup(what: impl Into<String>) -> impl FnOnce(io::Error) -> InsideError {
    let what = what.into();
    move |source| InsideError::Setup { what, source }
}

/// Sets the world up and runs `program work <dir>` in it, as its process 1. Returns the exit code.
pub fn first_process(program: &Path, dir: &Path) -> Result<i32, InsideError> {
    let places = Places::new(dir);
    cgroups::enter(&places.name()).map_err(setup("enter cgroups"))?;
    mounts(&places)?;
    command::run(
        Command::new("ip").args(["link", "set", "lo", "up"]),
        Duration::from_secs(10),
    )?
    .success()?;
    let child = Command::new(program)
        .arg("work")
        .arg(dir)
        .stdin(Stdio::null())
        .spawn()
        .map_err(setup(format!("start {}", program.display())))?;
    let code = reap(child.id() as i32)?;
    // The kernel kills all others when this process ends, and waits for them.
    cgroups::unfreeze("").map_err(setup("unfreeze what is left"))?;
    Ok(code)
}

/// Waits for a child, and for everything that is orphaned meanwhile. Returns the child's exit code.
fn reap(child: i32) -> Result<i32, InsideError> {
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid.as_raw() == child => return Ok(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid.as_raw() == child => {
                return Ok(128 + signal as i32);
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(setup("wait for the job")(e.into())),
        }
    }
}

fn mounts(places: &Places) -> Result<(), InsideError> {
    let overlay = format!(
        "lowerdir=/etc,upperdir={},workdir={}",
        places.etc().display(),
        places.etc_work().display()
    );
    let none = MsFlags::empty();
    mount(
        Some("overlay"),
        "/etc",
        Some("overlay"),
        none,
        Some(overlay.as_str()),
    )
    .map_err(|e| setup("mount /etc")(e.into()))?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), none, Some("mode=755"))
        .map_err(|e| setup("mount /run")(e.into()))?;
    mount(
        Some(&places.lib()),
        "/var/lib",
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(|e| setup("mount /var/lib")(e.into()))?;
    Ok(())
}

/// Does the job, in a process that [`first_process`] started.
pub fn work(dir: &Path) -> Result<(), InsideError> {
    let places = Places::new(dir);
    let job = fs::read(places.job()).map_err(setup("read the job"))?;
    let job: Job = serde_json::from_slice(&job).map_err(|e| setup("read the job")(e.into()))?;
    let registry =
        registry::serve(Library::open(&job.library)?).map_err(setup("serve the images"))?;
    configure_gvisor()?;
    let mut desk = Desk::open(places, job, registry)?;
    match desk.job.suite {
        Suite::Client => client::run(&mut desk),
        Suite::Cri => cri::run(&mut desk),
    }
}

/// Both shims for gVisor are told to use what it can do and does not do by default: seccomp filters of containers, and
/// set-user-ID programs. All else is as after an installation.
fn configure_gvisor() -> Result<(), InsideError> {
    const FLAGS: &str = "oci-seccomp = \"true\"\nallow-suid = \"true\"\n";
    let files = [
        ("/etc/thaw/config.toml", "[runsc.flags]"),
        ("/etc/containerd/runsc/config.toml", "[runsc_config]"),
    ];
    for (path, table) in files {
        let path = Path::new(path);
        fs::create_dir_all(path.parent().unwrap_or(path))
            .and_then(|()| fs::write(path, format!("{table}\n{FLAGS}")))
            .map_err(setup(format!("write {}", path.display())))?;
    }
    Ok(())
}

/// What a suite's runner works with.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) places: Places,
    pub(super) job: Job,
    /// Where the images are served.
    pub(super) registry: std::net::SocketAddr,
    outcomes: File,
}

impl Desk {
    fn open(places: Places, job: Job, registry: std::net::SocketAddr) -> Result<Desk, InsideError> {
        let outcomes =
            File::create(places.outcomes()).map_err(setup("create the file of results"))?;
        Ok(Desk {
            places,
            job,
            registry,
            outcomes,
        })
    }

    /// A command that finds the world's programs first.
    pub(super) fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(self.places.bin().join(program));
        command
            .env(
                "PATH",
                format!("{}:{path}:/usr/sbin:/sbin", self.places.bin().display()),
            )
            .env("TMPDIR", self.places.tmp())
            .env_remove("THAW_CONFIG")
            .stdin(Stdio::null());
        command
    }

    /// A log file among the results.
    pub(super) fn log(&self, name: &str) -> Result<File, InsideError> {
        File::create(self.places.out().join(name)).map_err(setup(format!("create {name}")))
    }

    /// Writes a result down.
    pub(super) fn put(&mut self, outcome: &Outcome) -> Result<(), InsideError> {
        let mut line =
            serde_json::to_string(outcome).map_err(|e| setup("write a result")(e.into()))?;
        line.push('\n');
        self.outcomes
            .write_all(line.as_bytes())
            .map_err(setup("write a result"))
    }

    /// Tells people how it goes on.
    pub(super) fn say(&self, text: &str) {
        println!(
            "[{} {}] {text}",
            self.job.suite.name(),
            self.job.shim.name()
        );
    }
}
