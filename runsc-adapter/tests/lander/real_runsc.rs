//! The lander under the real runsc: what is captured through it runs on after a restore through it, and what was
//! aborted never runs.
//!
//! Needs root, runsc and a static busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use thaw_proto::data::File;
use thaw_proto::gate::{FromLander, ToLander};
use thaw_proto::options::{Job, LanderOptions, OPTIONS_FILE};

use crate::support::shim::{Gate, Shim};
use crate::support::thawd::{Files, Manner, Thawd};

const DEADLINE: Duration = Duration::from_secs(60);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Three files, of which the pages are loaded in the background.
const PLAIN: &str = "--compression=none";
/// One file.
const COMPRESSED: &str = "--compression=flate-best-speed";

/// Counts in a file in steps of one, with a name that only memory knows.
const COUNTER: &str = "name=$(cat /proc/sys/kernel/random/uuid); i=0; \
     while :; do i=$((i+1)); echo $name $i >> /out/lines; sleep 0.02; done";
/// Leaves a trace with whatever instruction it runs.
const WITNESS: &str = "while :; do echo ran >> /out/lines; done";

/// Keeps random bytes in memory and compares their hash with the one from the start, again and again.
const HASHER: &str = "dd if=/dev/urandom of=/mem/x bs=1M count=64 2>/dev/null; \
     want=$(md5sum < /mem/x); \
     while :; do have=$(md5sum < /mem/x); \
       if [ \"$have\" = \"$want\" ]; then echo same; else echo differs; fi >> /out/lines; done";

fn runsc() -> PathBuf {
    let path = std::env::var_os("THAW_RUNSC").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/runsc"),
        PathBuf::from,
    );
    assert!(
        path.is_file(),
        "no runsc at {}: run `make tools`, or name one in THAW_RUNSC",
        path.display()
    );
    assert!(
        rustix::process::geteuid().is_root(),
        "runsc needs root: run this test as root"
    );
    path.canonicalize().unwrap()
}

/// A directory with a bundle, a runsc root and a sidecar directory; ends everything that it started.
struct Guest {
    dir: tempfile::TempDir,
    runsc: PathBuf,
    id: String,
}

impl Guest {
    fn new(program: &str) -> Guest {
        let runsc = runsc();
        let dir = tempfile::Builder::new()
            .prefix("thaw-lander")
            .tempdir()
            .unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [
            "root",
            "bundle/rootfs/bin",
            "bundle/rootfs/out",
            "bundle/rootfs/mem",
            "out",
            "sidecars",
            "logs",
        ] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::copy("/bin/busybox", at("bundle/rootfs/bin/busybox"))
            .expect("a static busybox at /bin/busybox");
        for applet in ["sh", "cat", "sleep", "dd", "md5sum"] {
            symlink("busybox", at("bundle/rootfs/bin").join(applet)).unwrap();
        }
        symlink(
            env!("CARGO_BIN_EXE_thaw-gofer"),
            at("sidecars/checkpointgofer"),
        )
        .unwrap();
        for sidecar in fs::read_dir(runsc.with_file_name("gvisor-bin"))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name() != "checkpointgofer")
        {
            symlink(sidecar.path(), at("sidecars").join(sidecar.file_name())).unwrap();
        }
        let config = json!({
            "ociVersion": "1.1.0",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sh", "-c", program],
                "env": ["PATH=/bin"],
                "cwd": "/",
            },
            "root": {"path": "rootfs", "readonly": true},
            "hostname": "box",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/mem", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/out", "type": "bind", "source": at("out"), "options": ["rbind", "rw"]},
            ],
            "linux": {"namespaces": [
                {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"},
            ]},
        });
        fs::write(at("bundle/config.json"), config.to_string()).unwrap();
        let id = format!(
            "lander-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Guest { dir, runsc, id }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a runsc command. Its output goes to a file: the sandbox keeps what it is created with.
    fn spawn(&self, args: &[&str]) -> Child {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("logs/output"))
            .unwrap();
        Command::new(&self.runsc)
            .arg(format!("--root={}", self.path("root").display()))
            .arg(format!("--debug-log={}/", self.path("logs").display()))
            .args(["--ignore-cgroups", "--network=none"])
            .args(args)
            .arg(&self.id)
            .env("GVISOR_SIDECAR_BINARIES_DIR", self.path("sidecars"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn run(&self, args: &[&str]) -> bool {
        finish(self.spawn(args))
    }

    fn must(&self, args: &[&str]) {
        assert!(self.run(args), "runsc {args:?}");
    }

    /// A directory with the options for one job and the sockets that they name.
    fn trial(&self, name: &str, job: Job) -> (PathBuf, Shim) {
        let dir = self.path(name);
        fs::create_dir(&dir).unwrap();
        let options = LanderOptions {
            provider: LanderOptions::PROVIDER.to_owned(),
            job,
            data_socket: dir.join("data.sock"),
            gate_socket: dir.join("gate.sock"),
        };
        fs::write(
            dir.join(OPTIONS_FILE),
            serde_json::to_vec(&options).unwrap(),
        )
        .unwrap();
        let shim = Shim::new(&dir);
        (dir, shim)
    }

    fn create(&self) {
        let bundle = format!("--bundle={}", self.path("bundle").display());
        self.must(&["create", &bundle]);
    }

    /// Runs the program from its start until it has written a few lines, and captures it.
    fn capture(&self, compression: &str) -> Files {
        self.create();
        self.must(&["start"]);
        wait_until(|| self.lines().len() > 5);
        let job = Job::Capture {
            capture: "c1".into(),
        };
        let (dir, shim) = self.trial("capture", job);
        let thawd = Thawd::start(&dir, &[None, None, None], Manner::default());
        let image = format!("--image-path={}", dir.display());
        let checkpoint = self.spawn(&["checkpoint", "--leave-running", compression, &image]);
        let gate = shim.accept();
        assert!(matches!(
            gate.hear(),
            Some(FromLander::Saved { bytes }) if bytes > 10_000
        ));
        assert!(finish(checkpoint));
        let files = thawd.captured();
        assert!(files[File::State as usize].is_some());
        // It was left running.
        let before = self.lines().len();
        wait_until(|| self.lines().len() > before);
        self.end();
        files
    }

    /// Begins a restore.
    fn restore(&self, name: &str, files: &Files) -> (Child, Gate, Thawd) {
        self.create();
        let job = Job::Restore {
            tenant: "t".into(),
            snapshot: "s".into(),
            container: "ns/c".into(),
        };
        let (dir, shim) = self.trial(name, job);
        let thawd = Thawd::start(&dir, files, Manner::default());
        let image = format!("--image-path={}", dir.display());
        let restore = self.spawn(&["restore", "--detach", "--background", &image]);
        (restore, shim.accept(), thawd)
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.path("out/lines"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Ends the sandbox and whatever belongs to it, and forgets the container.
    fn end(&self) {
        // Only processes of this runsc root, which no one else uses, have its path on their command line.
        let root = self.path("root").display().to_string();
        while kill_all_with(&root) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.run(&["delete", "--force"]);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
        // runsc leaves this mount behind in every root.
        let _ = nix::mount::umount2(
            &self.path("root/null-netns"),
            nix::mount::MntFlags::MNT_DETACH,
        );
        if std::thread::panicking() {
            for log in fs::read_dir(self.path("logs"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let text = fs::read(log.path()).unwrap_or_default();
                let tail = &text[text.len().saturating_sub(3000)..];
                let name = log.file_name();
                if name.to_string_lossy().contains("output")
                    || name.to_string_lossy().contains("checkpointgofer")
                {
                    eprintln!("{name:?}:\n{}", String::from_utf8_lossy(tail));
                }
            }
        }
    }
}

/// Kills the living processes that have `text` on their command line. False if there are none.
fn kill_all_with(text: &str) -> bool {
    let mut any = false;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        // A zombie has no command line.
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(text)
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            any = true;
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    any
}

fn finish(mut child: Child) -> bool {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        if started.elapsed() > DEADLINE {
            let _ = child.kill();
            let _ = child.wait();
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < DEADLINE, "it never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_goes_on_where_it_was_captured() {
    let b = Guest::new(COUNTER);
    let files = b.capture(PLAIN);
    let captured_run = b.lines();
    let (name, _) = captured_run[0].split_once(' ').unwrap();
    fs::write(b.path("out/lines"), "").unwrap();

    let (restore, gate, _thawd) = b.restore("restore", &files);
    assert_eq!(gate.hear(), Some(FromLander::Ready));
    gate.say(ToLander::Go);
    assert_eq!(gate.hear(), Some(FromLander::Went));
    assert!(finish(restore));
    b.must(&["wait", "--restore"]);
    assert_eq!(gate.hear(), Some(FromLander::Landed));
    wait_until(|| b.lines().len() > 5);

    // It goes on by steps of one from a line that the captured run wrote or was about to write.
    let lines = b.lines();
    let numbers: Vec<usize> = lines
        .iter()
        .map(|line| {
            let (restored, number) = line.split_once(' ').unwrap();
            assert_eq!(restored, name);
            number.parse().unwrap()
        })
        .collect();
    assert!(numbers[0] > 5 && numbers[0] <= captured_run.len() + 1);
    assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1), "{numbers:?}");
    b.end();
    // The lander went away by itself, with the sandbox.
    assert_eq!(gate.hear(), None);
}

#[test]
fn every_byte_of_memory_is_what_it_was() {
    let b = Guest::new(HASHER);
    let files = b.capture(PLAIN);
    assert!(files[File::Pages as usize].as_ref().unwrap().len() > 64 << 20);
    fs::write(b.path("out/lines"), "").unwrap();
    let (restore, gate, _thawd) = b.restore("restore", &files);
    assert_eq!(gate.hear(), Some(FromLander::Ready));
    gate.say(ToLander::Go);
    assert!(finish(restore));
    // MEASURE
    b.must(&["wait", "--restore"]);
    wait_until(|| b.lines().len() > 3);
    assert!(b.lines().iter().all(|line| line == "same"));
}

#[test]
fn what_was_aborted_never_runs_and_what_went_does() {
    let b = Guest::new(WITNESS);
    let files = b.capture(PLAIN);
    for round in 0..6 {
        let before = b.lines().len();
        let (restore, gate, thawd) = b.restore(&format!("abort-{round}"), &files);
        if round % 2 == 0 {
            assert_eq!(gate.hear(), Some(FromLander::Ready));
        }
        let mut gate = Some(gate);
        if round == 5 {
            // The shim dies.
            gate = None;
        } else if let Some(gate) = &gate {
            gate.say(ToLander::Abort);
        }
        if let Some(gate) = &gate {
            wait_until(|| match gate.hear() {
                Some(FromLander::Ready) => false,
                Some(FromLander::Aborted) => true,
                other => panic!("aborted expected, not {other:?}"),
            });
            // A go that comes too late changes nothing.
            assert_eq!(gate.hear(), None);
        }
        // Without its lander the restore ends one way or the other. Nothing is killed here before that.
        finish(restore);
        drop(thawd);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(b.lines().len(), before, "round {round}");
        b.end();
        assert_eq!(b.lines().len(), before, "round {round}");
    }

    expect_go(&b, &files);
}

#[test]
fn a_compressed_checkpoint_runs_only_after_go() {
    let b = Guest::new(WITNESS);
    let files = b.capture(COMPRESSED);
    assert!(files[File::PagesMeta as usize].is_none());
    expect_go(&b, &files);
}

/// Restores and checks that the program runs after go and not before.
fn expect_go(b: &Guest, files: &Files) {
    let before = b.lines().len();
    let (restore, gate, _thawd) = b.restore("go", files);
    assert_eq!(gate.hear(), Some(FromLander::Ready));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(b.lines().len(), before);
    gate.say(ToLander::Go);
    assert!(finish(restore));
    wait_until(|| b.lines().len() > before);
}
