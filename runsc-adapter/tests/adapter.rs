//! The adapter against the real runsc: a busybox container's life, and what real failures are classified as.
//!
//! Needs root, busybox-static and runsc.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, set_child_subreaper, waitpid};
use serde_json::{Value, json};
use thaw_runsc::command::{Checkpoint, Create, Exec, Restore, Target};
use thaw_runsc::control::{Control, Delivery, RuntimeState};
use thaw_runsc::probe::RuntimeProbe;
use thaw_runsc::spawn::Streams;
use thaw_runsc::spec;
use thaw_runsc::state::{Record, Status, is_sandbox, live_sandboxes};
use thaw_runsc::{Failure, Refusal, Runsc, RunscClient, TokioSpawner};

const LIMIT: Duration = Duration::from_secs(60);

fn runsc_binary() -> PathBuf {
    let path = std::env::var_os("THAW_RUNSC").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/runsc"),
        PathBuf::from,
    );
    assert!(
        path.is_file(),
        "runsc is missing at {}: run `make tools`",
        path.display()
    );
    path
}

/// A runsc root of its own with the containers in it; all gone when dropped.
struct Bench {
    dir: tempfile::TempDir,
    client: RunscClient,
    sandboxes: Vec<i32>,
    created: Vec<String>,
}

impl Bench {
    fn new() -> Bench {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        // Sandboxes become children of this process, so that their end can be seen.
        set_child_subreaper(Pid::from_raw(1)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut runsc = Runsc::new(runsc_binary(), dir.path().join("root"));
        runsc.flags.insert("network".into(), "none".into());
        fs::create_dir(&runsc.root).unwrap();
        Bench {
            client: RunscClient::new(runsc, Arc::new(TokioSpawner), LIMIT),
            dir,
            sandboxes: Vec::new(),
            created: Vec::new(),
        }
    }

    fn root(&self) -> &Path {
        &self.client.runsc.root
    }

    fn bundle(&self, id: &str, script: &str) -> PathBuf {
        let bundle = self.dir.path().join(id);
        let bin = bundle.join("rootfs/bin");
        fs::create_dir_all(&bin).unwrap();
        for dir in ["proc", "dev", "tmp"] {
            fs::create_dir(bundle.join("rootfs").join(dir)).unwrap();
        }
        fs::copy("/bin/busybox", bin.join("busybox")).expect("busybox-static is installed");
        for name in ["sh", "sleep", "echo"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
        let mut config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/sh", "-c", script],
                "env": ["PATH=/bin"], "oomScoreAdj": 100
            },
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}], "maskedPaths": [],
                "cgroupsPath": format!("/thaw-adapter-{}-{id}", std::process::id())}
        });
        spec::normalise(&mut config);
        self.write_config(&bundle, &config);
        bundle
    }

    fn write_config(&self, bundle: &Path, config: &Value) {
        fs::write(
            bundle.join("config.json"),
            serde_json::to_vec(config).unwrap(),
        )
        .unwrap();
    }

    async fn create(&mut self, id: &str, bundle: &Path) -> Result<RunscClient, Failure> {
        let client = self.client.in_bundle(bundle);
        let args = Create {
            id: id.into(),
            bundle: bundle.to_owned(),
            pid_file: Some(bundle.join("init.pid")),
            ..Create::default()
        };
        client
            .create(&args, Streams::default())
            .await
            .map_err(|e| e.failure)?;
        let pid = fs::read_to_string(bundle.join("init.pid")).unwrap();
        self.created.push(id.to_owned());
        self.sandboxes.push(pid.trim().parse().unwrap());
        Ok(client)
    }

    fn control(&self, id: &str) -> Control {
        let record = Record::load(self.root(), id).unwrap().unwrap();
        Control::new(record.sandbox.control_socket, LIMIT)
    }

    /// Takes the end of a sandbox, without which runsc would still see its process.
    async fn reap(&mut self, pid: i32) {
        self.sandboxes.retain(|p| *p != pid);
        tokio::task::spawn_blocking(move || waitpid(Pid::from_raw(pid), WaitOptions::empty()))
            .await
            .unwrap()
            .unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // As a shim must do it: the sandboxes by process id first, since a deletion asks them otherwise.
        for pid in &self.sandboxes {
            let pid = Pid::from_raw(*pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
        for id in &self.created {
            let _ = self.client.runsc.delete(id, true).output();
        }
        // runsc keeps a network namespace mounted below its root.
        let _ = nix::mount::umount2(
            &self.root().join("null-netns"),
            nix::mount::MntFlags::MNT_DETACH,
        );
    }
}

#[tokio::test]
async fn a_containers_life_through_commands_and_control_socket() {
    let mut bench = Bench::new();
    let bundle = bench.bundle("life", "trap 'exit 7' TERM; while :; do sleep 0.05; done");
    let client = bench.create("life", &bundle).await.unwrap();
    let record = Record::load(bench.root(), "life").unwrap().unwrap();
    assert_eq!(
        (record.id.as_str(), record.status),
        ("life", Status::Created)
    );
    assert_eq!(record.sandbox.id, "life");
    assert!(is_sandbox(record.sandbox.pid, "life"));
    assert!(!is_sandbox(record.sandbox.pid, "lif"));
    assert_eq!(Record::load(bench.root(), "lif").unwrap(), None);
    let control = bench.control("life");
    assert_eq!(
        control.runtime_state("life").await.unwrap(),
        RuntimeState::Creating
    );

    client.start("life", Streams::default()).await.unwrap();
    assert_eq!(
        control.runtime_state("life").await.unwrap(),
        RuntimeState::Running
    );
    assert_eq!(client.state("life").await.unwrap().status, "running");
    assert_eq!(
        live_sandboxes(bench.root()).unwrap(),
        BTreeSet::from(["life".to_owned()])
    );

    let process = bundle.join("exec.json");
    let exec = |script: &str| {
        let value = json!({"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "-c", script], "env": ["PATH=/bin"]});
        fs::write(&process, value.to_string()).unwrap();
        Exec {
            id: "life".into(),
            process: process.clone(),
            ..Exec::default()
        }
    };
    let attached = exec("exit 9");
    assert_eq!(client.exec(&attached, Streams::default()).await.unwrap(), 9);
    let (pid_file, host_pid_file) = (bundle.join("exec.pid"), bundle.join("exec.host-pid"));
    let detached = Exec {
        detach: true,
        pid_file: Some(host_pid_file.clone()),
        internal_pid_file: Some(pid_file.clone()),
        ..exec("sleep 1000")
    };
    client.exec(&detached, Streams::default()).await.unwrap();
    let inner: i32 = fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let by_socket = control.processes("life").await.unwrap();
    assert!(by_socket.iter().any(|p| p.pid == inner), "{by_socket:?}");
    assert!(client.ps("life").await.unwrap().contains(&inner));
    control
        .signal("life", 9, Delivery::Process(inner))
        .await
        .unwrap();
    // runsc leaves a command behind that ends as the process does: for a subreaper, that is its exit status.
    let stand_in: i32 = fs::read_to_string(&host_pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let ended =
        tokio::task::spawn_blocking(move || waitpid(Pid::from_raw(stand_in), WaitOptions::empty()));
    let (_, status) = ended.await.unwrap().unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(137));

    let event = control.event("life").await.unwrap();
    assert!(event.event.data.pids.current >= 1);
    assert!(event.container_usage.contains_key("life"), "{event:?}");
    assert!(control.usage(false).await.unwrap().total > 0);
    assert!(client.stats("life").await.unwrap().data.pids.current >= 1);
    client.pause("life").await.unwrap();
    assert_eq!(client.state("life").await.unwrap().status, "paused");
    client.resume("life").await.unwrap();
    client
        .update("life", br#"{"cpu":{"shares":512}}"#.to_vec())
        .await
        .unwrap();

    let waiting = {
        let control = control.clone();
        tokio::spawn(async move { control.wait("life").await })
    };
    // The wait must be there before the end, which loses the status otherwise: this question is answered after it.
    while control.processes("life").await.unwrap().is_empty() {}
    client.kill("life", 15, Target::Init).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().code(), 7);
    bench.reap(record.sandbox.pid).await;
    assert_eq!(client.state("life").await.unwrap().status, "stopped");
    assert!(live_sandboxes(bench.root()).unwrap().is_empty());
    client.delete("life", false).await.unwrap();
    assert_eq!(Record::load(bench.root(), "life").unwrap(), None);
    let rest: Vec<_> = fs::read_dir(bundle.join("rootfs"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(rest.len(), 4, "{rest:?}");
}

#[tokio::test]
async fn a_snapshot_is_taken_and_restored_and_a_changed_spec_is_refused_by_its_field() {
    let mut bench = Bench::new();
    let script = "i=0; while :; do i=$((i+1)); echo $i > /tmp/n; sleep 0.05; done";
    let bundle = bench.bundle("saved", script);
    let client = bench.create("saved", &bundle).await.unwrap();
    client.start("saved", Streams::default()).await.unwrap();
    let image = bench.dir.path().join("image");
    fs::create_dir(&image).unwrap();
    let args = Checkpoint {
        id: "saved".into(),
        image_path: image.clone(),
        leave_running: true,
    };
    client.checkpoint(&args, Some(LIMIT)).await.unwrap();
    let again = client.checkpoint(&args, Some(LIMIT)).await.unwrap_err();
    assert!(matches!(again.failure, Failure::ImageExists), "{again:?}");
    let version = client
        .statefile_get(&image.join("checkpoint.img"), "runsc_version")
        .await
        .unwrap();
    let probe = RuntimeProbe::of(&client.runsc, &TokioSpawner, bench.dir.path())
        .await
        .unwrap();
    assert!(
        version.contains(&probe.version),
        "{version} {}",
        probe.version
    );
    let sandbox = bench.sandboxes[0];
    client.kill("saved", 9, Target::All).await.unwrap();
    bench.reap(sandbox).await;
    client.delete("saved", true).await.unwrap();

    let restore = |id: &str| Restore {
        id: id.into(),
        image_path: image.clone(),
        background: true,
        detach: true,
    };
    let good = bench.bundle("good", script);
    let client = bench.create("good", &good).await.unwrap();
    client
        .restore(&restore("good"), Streams::default(), Some(LIMIT))
        .await
        .unwrap();
    client.wait_restored("good").await.unwrap();
    let running = bench.control("good").runtime_state("good").await.unwrap();
    assert_eq!(running, RuntimeState::Running);

    let other = bench.bundle("other", "echo --token=s3cret");
    let client = bench.create("other", &other).await.unwrap();
    let error = client
        .restore(&restore("other"), Streams::default(), Some(LIMIT))
        .await
        .unwrap_err();
    assert!(
        !format!("{error} {error:?}").contains("s3cret"),
        "{error:?}"
    );
    assert!(
        matches!(&error.failure, Failure::RestoreRefused(Refusal::Spec { field, .. }) if field == "Args"),
        "{error:?}"
    );
}

#[tokio::test]
async fn real_failures_are_told_apart() {
    let mut bench = Bench::new();
    let kind = |f: &Failure| format!("{f:?}");

    let client = bench.client.in_bundle(bench.dir.path());
    let missing = bench.dir.path().join("none");
    let error = bench.create("x", &missing).await.err().unwrap();
    assert!(
        matches!(&error, Failure::Other(m) if m.contains("config.json") || m.contains("no such file")),
        "{}",
        kind(&error)
    );

    for error in [
        client.state("nobody").await.unwrap_err(),
        client.kill("nobody", 9, Target::Init).await.unwrap_err(),
        client.delete("nobody", false).await.unwrap_err(),
        client
            .start("nobody", Streams::default())
            .await
            .unwrap_err(),
    ] {
        assert!(matches!(error.failure, Failure::NotFound), "{error:?}");
    }

    let bundle = bench.bundle("one", "sleep 1000");
    let client = bench.create("one", &bundle).await.unwrap();
    let error = bench.create("one", &bundle).await.err().unwrap();
    assert!(matches!(error, Failure::AlreadyExists), "{}", kind(&error));
    client.start("one", Streams::default()).await.unwrap();
    let error = client.start("one", Streams::default()).await.unwrap_err();
    assert!(
        matches!(&error.failure, Failure::WrongState { state } if state == "running"),
        "{error:?}"
    );
    let error = client.delete("one", false).await.unwrap_err();
    assert!(
        matches!(error.failure, Failure::WrongState { .. }),
        "{error:?}"
    );
    let error = client.kill("one", 9, Target::Pid(4000)).await.unwrap_err();
    assert!(matches!(error.failure, Failure::NoSuchProcess), "{error:?}");
    let error = bench
        .control("one")
        .signal("one", 9, Delivery::Process(4000))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no such process"), "{error:?}");

    // runsc matches ids by prefix: a neighbour must not make an id ambiguous, nor a part of one name a container.
    let longer = bench.bundle("one-more", "sleep 1000");
    bench.create("one-more", &longer).await.unwrap();
    assert_eq!(client.state("one").await.unwrap().id, "one");
    let error = client.state("on").await.unwrap_err();
    assert!(matches!(error.failure, Failure::NotFound), "{error:?}");
    assert!(Record::load(bench.root(), "on").unwrap().is_none());

    let empty = bench.dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let created = bench.bundle("empty-image", "sleep 1000");
    let client = bench.create("empty-image", &created).await.unwrap();
    let restore = |id: &str, image: &Path| Restore {
        id: id.into(),
        image_path: image.to_owned(),
        background: true,
        detach: true,
    };
    let error = client
        .restore(
            &restore("empty-image", &empty),
            Streams::default(),
            Some(LIMIT),
        )
        .await
        .unwrap_err();
    assert!(
        matches!(error.failure, Failure::RestoreRefused(Refusal::NoImage)),
        "{error:?}"
    );

    let garbage = bench.dir.path().join("garbage");
    fs::create_dir(&garbage).unwrap();
    for file in ["checkpoint.img", "pages_meta.img", "pages.img"] {
        fs::write(garbage.join(file), [0x5a; 8192]).unwrap();
    }
    let created = bench.bundle("bad-image", "sleep 1000");
    let client = bench.create("bad-image", &created).await.unwrap();
    let error = client
        .restore(
            &restore("bad-image", &garbage),
            Streams::default(),
            Some(LIMIT),
        )
        .await
        .unwrap_err();
    assert!(
        matches!(
            &error.failure,
            Failure::Died(_) | Failure::RestoreRefused(Refusal::Damaged(_))
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_leftover_filestore_is_recognised_and_removed() {
    let mut bench = Bench::new();
    // A creation that fails leaves its cgroup, which a later deletion takes for somebody else's.
    bench
        .client
        .runsc
        .flags
        .insert("ignore-cgroups".into(), "true".into());
    let bundle = bench.bundle("left", "sleep 1000");
    let rootfs = bundle.join("rootfs");
    fs::write(rootfs.join(".gvisor.filestore.left+"), "").unwrap();
    let error = bench.create("left", &bundle).await.err().unwrap();
    assert!(
        matches!(&error, Failure::FilestoreLeftover { name, .. } if name == ".gvisor.filestore.left+"),
        "{error:?}"
    );
    // runsc's own clean-up after that failure may have removed it.
    fs::write(rootfs.join(".gvisor.filestore.left+"), "").unwrap();
    let live = live_sandboxes(bench.root()).unwrap();
    assert_eq!(
        spec::remove_leftover_filestores(&rootfs, &live).unwrap(),
        [".gvisor.filestore.left+"]
    );
    bench.create("left", &bundle).await.unwrap();
}
