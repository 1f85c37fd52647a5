//! runsc's command line: one typed method per verb.
//!
//! Global flags are the same on every command: runsc reads several of them at each call and refuses or misreads a
//! container that was created with others (gVisor `runsc/config/flags.go`).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::id;

/// Environment variable that names the directory of runsc's sidecar binaries (gVisor
/// `runsc/gvisorbinaries/gvisorbinaries.go`).
pub const SIDECAR_DIR_ENV: &str = "GVISOR_SIDECAR_BINARIES_DIR";
/// Name of runsc's log in a bundle.
pub const LOG_FILE: &str = "log.json";

/// Flags that Thaw relies on, unless configured otherwise.
///
/// With the default of 15 s, any idle client of the control socket delays the end of the sandbox by that time.
const DEFAULT_FLAGS: &[(&str, &str)] = &[("control-rpc-stop-timeout", "0s")];

/// One runsc with its global flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runsc {
    /// The binary; a bare name is looked up in PATH.
    pub binary: PathBuf,
    /// `--root`: where runsc keeps its records and control sockets.
    pub root: PathBuf,
    /// Further global flags, without dashes.
    pub flags: BTreeMap<String, String>,
    /// Directory of the sidecars; `None` leaves runsc its own.
    pub sidecar_dir: Option<PathBuf>,
    /// `--log`, in JSON. runsc appends one entry per failure, which is where error messages come from.
    pub log: Option<PathBuf>,
    /// `--panic-log`.
    pub panic_log: Option<PathBuf>,
}

/// What `create` needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Create {
    /// containerd's id of the container.
    pub id: String,
    /// Directory with config.json.
    pub bundle: PathBuf,
    /// runsc writes the sandbox's process id there.
    pub pid_file: Option<PathBuf>,
    /// Receives the terminal's master end by SCM_RIGHTS.
    pub console_socket: Option<PathBuf>,
    /// Log that the user of the container sees.
    pub user_log: Option<PathBuf>,
}

/// What `restore` needs. The container was created before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restore {
    /// containerd's id of the container.
    pub id: String,
    /// Directory with the snapshot's files, or with `gcs_opts.json` alone.
    pub image_path: PathBuf,
    /// Return before all pages are loaded.
    pub background: bool,
    /// Return when the container runs instead of when it ends.
    pub detach: bool,
}

/// What `checkpoint` needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// containerd's id of the root container.
    pub id: String,
    /// Empty directory, or one with `gcs_opts.json` alone.
    pub image_path: PathBuf,
    /// Let the application go on afterwards.
    pub leave_running: bool,
}

/// What `exec` needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exec {
    /// containerd's id of the container.
    pub id: String,
    /// File with the OCI process in JSON.
    pub process: PathBuf,
    /// Return when the process runs instead of when it ends.
    pub detach: bool,
    /// Takes the process id of the runsc command that stands for the process on the host.
    pub pid_file: Option<PathBuf>,
    /// Takes the process id inside the sandbox's root PID namespace.
    pub internal_pid_file: Option<PathBuf>,
    /// Receives the terminal's master end by SCM_RIGHTS.
    pub console_socket: Option<PathBuf>,
}

/// Which processes a signal goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The container's first process.
    Init,
    /// Every process of the container.
    All,
    /// One process, numbered in the sandbox's root PID namespace.
    Pid(i32),
}

/// What `wait` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The end of the container's first process.
    Exit,
    /// All pages of a restore are loaded.
    Restored,
    /// The end of one process, numbered in the container's PID namespace.
    Pid(i32),
    /// The end of one process, numbered in the sandbox's root PID namespace.
    RootPid(i32),
}

impl Runsc {
    /// A runsc with the flags that Thaw relies on.
    pub fn new(binary: impl Into<PathBuf>, root: impl Into<PathBuf>) -> Runsc {
        Runsc {
            binary: binary.into(),
            root: root.into(),
            flags: DEFAULT_FLAGS
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            sidecar_dir: None,
            log: None,
            panic_log: None,
        }
    }

    /// The same with further flags; a flag given here wins over a default.
    pub fn with_flags(mut self, flags: &BTreeMap<String, String>) -> Runsc {
        self.flags
            .extend(flags.iter().map(|(k, v)| (k.clone(), v.clone())));
        self
    }

    /// The same, logging to `log.json` in a bundle.
    pub fn in_bundle(&self, bundle: &Path) -> Runsc {
        Runsc {
            log: Some(bundle.join(LOG_FILE)),
            ..self.clone()
        }
    }

    /// The value of a global flag, or the default that runsc documents for the few that belong to a snapshot's key.
    pub fn flag<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.flags.get(name).map_or(default, String::as_str)
    }

    /// `create`.
    pub fn create(&self, args: &Create) -> Command {
        let mut c = self.verb("create");
        c.arg(option("bundle", &args.bundle));
        optional(&mut c, "pid-file", args.pid_file.as_deref());
        optional(&mut c, "console-socket", args.console_socket.as_deref());
        optional(&mut c, "user-log", args.user_log.as_deref());
        c.arg(runsc_id(&args.id));
        c
    }

    /// `start`.
    pub fn start(&self, id: &str) -> Command {
        let mut c = self.verb("start");
        c.arg(runsc_id(id));
        c
    }

    /// `restore`.
    pub fn restore(&self, args: &Restore) -> Command {
        let mut c = self.verb("restore");
        c.arg(option("image-path", &args.image_path));
        if args.detach {
            c.arg("--detach");
        }
        if args.background {
            c.arg("--background");
        }
        c.arg(runsc_id(&args.id));
        c
    }

    /// `checkpoint`.
    pub fn checkpoint(&self, args: &Checkpoint) -> Command {
        let mut c = self.verb("checkpoint");
        c.arg(option("image-path", &args.image_path));
        if args.leave_running {
            c.arg("--leave-running");
        }
        c.arg(runsc_id(&args.id));
        c
    }

    /// `exec`.
    pub fn exec(&self, args: &Exec) -> Command {
        let mut c = self.verb("exec");
        c.arg(option("process", &args.process));
        if args.detach {
            c.arg("--detach");
        }
        optional(&mut c, "pid-file", args.pid_file.as_deref());
        optional(
            &mut c,
            "internal-pid-file",
            args.internal_pid_file.as_deref(),
        );
        optional(&mut c, "console-socket", args.console_socket.as_deref());
        c.arg(runsc_id(&args.id));
        c
    }

    /// `kill`.
    pub fn kill(&self, id: &str, signal: i32, target: Target) -> Command {
        let mut c = self.verb("kill");
        match target {
            Target::Init => {}
            Target::All => {
                c.arg("--all");
            }
            Target::Pid(pid) => {
                c.arg(format!("--pid={pid}"));
            }
        }
        c.arg(runsc_id(id)).arg(signal.to_string());
        c
    }

    /// `delete`.
    pub fn delete(&self, id: &str, force: bool) -> Command {
        let mut c = self.verb("delete");
        if force {
            c.arg("--force");
        }
        c.arg(runsc_id(id));
        c
    }

    /// `pause`.
    pub fn pause(&self, id: &str) -> Command {
        let mut c = self.verb("pause");
        c.arg(runsc_id(id));
        c
    }

    /// `resume`.
    pub fn resume(&self, id: &str) -> Command {
        let mut c = self.verb("resume");
        c.arg(runsc_id(id));
        c
    }

    /// `ps` in JSON: the container's processes.
    pub fn ps(&self, id: &str) -> Command {
        let mut c = self.verb("ps");
        c.arg("--format=json").arg(runsc_id(id));
        c
    }

    /// `events --stats`: one event in JSON.
    pub fn stats(&self, id: &str) -> Command {
        let mut c = self.verb("events");
        c.arg("--stats").arg(runsc_id(id));
        c
    }

    /// `update`; the OCI resources in JSON come on standard input.
    pub fn update(&self, id: &str) -> Command {
        let mut c = self.verb("update");
        c.arg("--resources=-").arg(runsc_id(id));
        c
    }

    /// `state`: the OCI state in JSON.
    pub fn state(&self, id: &str) -> Command {
        let mut c = self.verb("state");
        c.arg(runsc_id(id));
        c
    }

    /// `wait`.
    pub fn wait(&self, id: &str, what: WaitFor) -> Command {
        let mut c = self.verb("wait");
        match what {
            WaitFor::Exit => {}
            WaitFor::Restored => {
                c.arg("--restore");
            }
            WaitFor::Pid(pid) => {
                c.arg(format!("--pid={pid}"));
            }
            WaitFor::RootPid(pid) => {
                c.arg(format!("--rootpid={pid}"));
            }
        }
        c.arg(runsc_id(id));
        c
    }

    /// `statefile -get`: one metadata value of a `checkpoint.img`.
    pub fn statefile_get(&self, file: &Path, key: &str) -> Command {
        let mut c = self.verb("statefile");
        c.arg(format!("-get={key}")).arg(file);
        c
    }

    /// `--version`. Needs no root directory and writes no log.
    pub fn version(&self) -> Command {
        let mut c = Command::new(&self.binary);
        c.arg("--version");
        c
    }

    /// `cpu-features`: the host's features in one line, separated by commas.
    pub fn cpu_features(&self) -> Command {
        let mut c = Command::new(&self.binary);
        c.arg("cpu-features");
        c
    }

    /// `features`: what the OCI runtime specification asks of runtimes, in JSON.
    pub fn features(&self) -> Command {
        let mut c = Command::new(&self.binary);
        c.arg("features");
        c
    }

    /// `help` with the global flags of every other command.
    pub fn usage(&self) -> Command {
        self.verb("help")
    }

    /// `help` of a verb.
    pub fn help(&self, verb: &str) -> Command {
        let mut c = Command::new(&self.binary);
        c.arg("help").arg(verb);
        c
    }

    /// `flags`: the global flags in words.
    pub fn describe_flags(&self) -> Command {
        let mut c = Command::new(&self.binary);
        c.arg("flags");
        c
    }

    fn verb(&self, verb: &str) -> Command {
        let mut c = Command::new(&self.binary);
        c.arg(option("root", &self.root));
        if let Some(log) = &self.log {
            c.arg(option("log", log)).arg("--log-format=json");
        }
        optional(&mut c, "panic-log", self.panic_log.as_deref());
        for (name, value) in &self.flags {
            c.arg(format!("--{name}={value}"));
        }
        if let Some(dir) = &self.sidecar_dir {
            c.env(SIDECAR_DIR_ENV, dir);
        }
        c.arg(verb);
        c
    }
}

fn runsc_id(id: &str) -> String {
    id::to_runsc(id).into_owned()
}

fn option(name: &str, value: impl AsRef<OsStr>) -> std::ffi::OsString {
    let mut arg = std::ffi::OsString::from(format!("--{name}="));
    arg.push(value);
    arg
}

fn optional(c: &mut Command, name: &str, value: Option<&Path>) {
    if let Some(value) = value {
        c.arg(option(name, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(c: &Command) -> Vec<String> {
        c.get_args()
            .map(|a| a.to_string_lossy().into_owned())
            .collect()
    }

    fn runsc() -> Runsc {
        let mut runsc = Runsc::new("/opt/runsc", "/run/r")
            .with_flags(&[("platform".to_owned(), "systrap".to_owned())].into())
            .in_bundle(Path::new("/b"));
        runsc.sidecar_dir = Some("/side".into());
        runsc
    }

    const GLOBAL: [&str; 5] = [
        "--root=/run/r",
        "--log=/b/log.json",
        "--log-format=json",
        "--control-rpc-stop-timeout=0s",
        "--platform=systrap",
    ];

    #[test]
    fn every_verb_that_names_a_container_carries_the_same_global_flags_and_environment() {
        let r = runsc();
        let commands = [
            r.create(&Create::default()),
            r.start("c"),
            r.restore(&Restore::default()),
            r.checkpoint(&Checkpoint::default()),
            r.exec(&Exec::default()),
            r.kill("c", 9, Target::Init),
            r.delete("c", true),
            r.pause("c"),
            r.resume("c"),
            r.ps("c"),
            r.stats("c"),
            r.update("c"),
            r.state("c"),
            r.wait("c", WaitFor::Exit),
        ];
        for c in commands {
            assert_eq!(words(&c)[..GLOBAL.len()], GLOBAL, "{c:?}");
            assert!(
                c.get_envs()
                    .any(|(k, v)| k == SIDECAR_DIR_ENV && v == Some(OsStr::new("/side"))),
                "{c:?}"
            );
        }
    }

    #[test]
    fn verbs_put_their_options_before_the_id() {
        let r = runsc();
        let tail = |c: Command| words(&c)[GLOBAL.len()..].join(" ");
        assert_eq!(
            tail(r.create(&Create {
                id: "c".into(),
                bundle: "/b".into(),
                pid_file: Some("/b/init.pid".into()),
                console_socket: Some("/b/tty".into()),
                user_log: None,
            })),
            "create --bundle=/b --pid-file=/b/init.pid --console-socket=/b/tty c+"
        );
        assert_eq!(
            tail(r.restore(&Restore {
                id: "c".into(),
                image_path: "/i".into(),
                background: true,
                detach: true,
            })),
            "restore --image-path=/i --detach --background c+"
        );
        assert_eq!(
            tail(r.exec(&Exec {
                id: "c".into(),
                process: "/p".into(),
                detach: true,
                pid_file: None,
                internal_pid_file: Some("/ip".into()),
                console_socket: None,
            })),
            "exec --process=/p --detach --internal-pid-file=/ip c+"
        );
        assert_eq!(tail(r.kill("c", 15, Target::All)), "kill --all c+ 15");
        assert_eq!(tail(r.wait("c", WaitFor::Restored)), "wait --restore c+");
    }

    #[test]
    fn a_configured_flag_wins_over_a_default() {
        let flag = "control-rpc-stop-timeout";
        let r = Runsc::new("runsc", "/r").with_flags(&[(flag.to_owned(), "1s".to_owned())].into());
        assert_eq!(r.flag(flag, ""), "1s");
        assert_eq!(r.flag("overlay2", "root:self"), "root:self");
    }
}
