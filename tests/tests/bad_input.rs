//! Bad input of every kind: a clear error, and nothing is left.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use thaw_proto::{Outcome, Reason};
use thaw_testkit::command::Output;
use thaw_testkit::node::{Container, Role, assert_clean};
use thaw_testkit::scene::{BUSYBOX, Scene, StoreKind};
use thaw_testkit::tools;

#[track_caller]
fn fails_with(output: &Output, words: &[&str]) {
    assert!(!output.ok(), "{output}");
    for word in words {
        assert!(output.stderr.contains(word), "{word:?} is not in: {output}");
    }
}

fn sleeper(id: &str) -> Container {
    Container::new(id, BUSYBOX)
        .args(&["sleep", "600"])
        .snapshot("auto")
}

/// A small file system that is full soon.
struct Full(PathBuf);

impl Full {
    fn new(dir: &Path, size: &str) -> Full {
        fs::create_dir_all(dir).unwrap();
        mount(
            Some("tmpfs"),
            dir,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(format!("size={size},mode=700").as_str()),
        )
        .unwrap();
        Full(dir.to_owned())
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn configurations_that_are_wrong() {
    let mut scene = Scene::new(StoreKind::Directory);
    let top = scene.node.files().top().to_owned();
    let dirs = format!(
        "run_dir = '{0}/run'\nstate_dir = '{0}/lib'\n",
        top.display()
    );
    for (text, words) in [
        (
            format!("{dirs}stor = 1\n"),
            &["unknown field", "stor", "thaw.toml"][..],
        ),
        (
            format!("{dirs}[store]\nurl = 'ftp://host/x'\n"),
            &["ftp", "s3", "thaw.toml"],
        ),
        (
            format!("{dirs}[deadlines]\nlookup_ms = 'soon'\n"),
            &["lookup_ms", "thaw.toml"],
        ),
        (
            "run_dir = 'relative'\n".to_owned(),
            &["run_dir", "absolute"],
        ),
    ] {
        scene.node.write_config(&text).unwrap();
        let output = scene.node.run(&sleeper("c")).unwrap();
        fails_with(&output, words);
        fails_with(&scene.thaw(&["ls"]), words);
        scene.remove("c");
    }
    scene.apply_settings();
    scene.empty_cache();
    scene.run(&sleeper("c"));
    scene.remove("c");
    scene.end();
}

#[test]
fn annotations_that_are_wrong() {
    let scene = Scene::new(StoreKind::Directory);
    let mut container = sleeper("c");
    container.annotations.clear();
    let output = scene.node.run(&container.snapshot("sometimes")).unwrap();
    fails_with(&output, &["thaw.dev/snapshot", "sometimes", "auto"]);
    scene.remove("c");
    scene.end();
}

#[test]
fn runsc_is_missing_or_too_old() {
    let mut scene = Scene::new(StoreKind::Directory);
    scene.set("runsc.path", "/nonexistent/runsc");
    let output = scene.node.run(&sleeper("c")).unwrap();
    fails_with(&output, &["/nonexistent/runsc"]);
    scene.remove("c");
    assert_clean(&scene.node);

    // One that says it is old; it runs containers, but restores none.
    let runsc = scene.node.files().bin().join("runsc");
    let old = scene.node.files().bin().join("old-runsc");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*--version*) echo 'runsc version release-20200101.0'; echo 'spec: 1.0';;\n\
         *) exec {} \"$@\";;\nesac\n",
        runsc.display()
    );
    fs::write(&old, script).unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    scene.set("runsc.path", old.display().to_string());
    scene.run(&sleeper("c"));
    let record = scene.assert_cold("c", Reason::RunscRefused);
    let detail = record.detail.unwrap_or_default();
    // It says which one would do.
    assert!(detail.contains("release-20200101.0"), "{detail}");
    assert!(detail.matches("release-20").count() >= 2, "{detail}");
    fails_with(&scene.thaw(&["capture", "c"]), &["release-20200101.0"]);
    scene.remove("c");
    scene.end();
}

#[test]
fn a_lander_that_is_not_ours() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();
    for (id, lander) in [("missing", "/nonexistent/lander"), ("other", "/bin/true")] {
        scene.set("runsc.lander", lander);
        let guest = scene.start(id);
        let record = scene.record(id);
        assert_eq!(record.outcome, Outcome::Cold, "{record:#?}");
        assert_eq!(record.reason, Some(Reason::RunscRefused), "{record:#?}");
        assert_eq!(guest.hash(), hash);
        assert_eq!(guest.runs(), ["start"]);
        scene.remove(id);
    }
    scene.end();
}

#[test]
fn captures_that_cannot_be() {
    let scene = Scene::new(StoreKind::Directory);
    fails_with(&scene.thaw(&["capture", "nobody"]), &["nobody"]);

    let shim = tools::runc_shim().unwrap();
    scene.node.install(&shim).unwrap();
    let mut foreign = Container::new("foreign", BUSYBOX).args(&["sleep", "600"]);
    foreign.runtime = "io.containerd.runc.v2".into();
    let runc_root = scene.node.files().top().join("runc");
    scene.run(&foreign.flag(&format!("--runc-root={}", runc_root.display())));
    fails_with(
        &scene.thaw(&["capture", "foreign"]),
        &["foreign", "io.containerd.runc.v2"],
    );
    scene.remove("foreign");

    scene.run(&sleeper("stopped"));
    scene
        .ctr(&["task", "kill", "--signal", "SIGKILL", "stopped"])
        .success()
        .unwrap();
    scene
        .node
        .until("it has stopped", thaw_testkit::scene::PATIENCE, || {
            let state = scene.node.task_state("stopped")?;
            Ok((state.as_deref() == Some("STOPPED"), format!("{state:?}")))
        })
        .unwrap();
    fails_with(&scene.thaw(&["capture", "stopped"]), &["stopped"]);
    scene.remove("stopped");
    scene.end();
}

#[test]
fn a_store_that_cannot_be_written() {
    let mut scene = Scene::new(StoreKind::Directory);
    // Even root cannot make directories there.
    scene.set("store.url", "file:///proc/thaw-store");
    scene.run(&sleeper("c"));
    fails_with(&scene.thaw(&["capture", "c"]), &["proc/thaw-store"]);
    assert_eq!(
        scene.node.task_state("c").unwrap().as_deref(),
        Some("RUNNING")
    );
    scene.remove("c");
    scene.end();
}

#[test]
fn no_room_in_the_spool() {
    let mut scene = Scene::new(StoreKind::Directory);
    let dir = scene.node.files().scratch().join("spool");
    let full = Full::new(&dir, "4m");
    scene.set("spool.dir", dir.display().to_string());
    scene.set("spool.keep_free_bytes", 0);
    let guest = scene.start("c");
    let hash = guest.hash();
    fails_with(&scene.thaw(&["capture", "c"]), &["spool"]);
    assert_eq!(guest.hash(), hash, "the application goes on");
    assert_eq!(guest.runs(), ["start"]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    scene.remove("c");
    scene.node.kill(Role::Thawd).unwrap();
    drop(full);
    scene.end();
}

#[test]
fn no_room_in_the_store() {
    let mut scene = Scene::new(StoreKind::Directory);
    let dir = scene.node.files().scratch().join("store");
    let full = Full::new(&dir, "4m");
    scene.node.settings().directory(&dir);
    scene.apply_settings();
    let guest = scene.start("c");
    let hash = guest.hash();
    fails_with(&scene.thaw(&["capture", "c"]), &["space"]);
    assert_eq!(guest.hash(), hash, "the application goes on");
    scene.remove("c");
    let guest = scene.start("c");
    scene.assert_cold("c", Reason::NoSnapshot);
    assert_eq!(guest.hash(), hash);
    scene.remove("c");
    scene.node.kill(Role::Thawd).unwrap();
    drop(full);
    scene.end();
}

#[test]
fn no_room_in_the_cache() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();
    let dir = scene.node.files().scratch().join("cache");
    let full = Full::new(&dir, "2m");
    scene.set("cache.dir", dir.display().to_string());
    let guest = scene.start("c");
    assert_eq!(guest.hash(), hash);
    assert_eq!(guest.runs().len(), 1);
    let record = scene.record("c");
    if record.outcome == Outcome::Cold {
        assert_eq!(record.reason, Some(Reason::CacheFull), "{record:#?}");
    }
    scene.remove("c");
    scene.node.kill(Role::Thawd).unwrap();
    drop(full);
    scene.end();
}
