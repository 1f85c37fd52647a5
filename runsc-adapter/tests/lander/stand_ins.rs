//! The lander against stand-ins for sentry, thawd and shim.
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::lander::Lander;
use crate::support::seeded;
use crate::support::sentry::{Io, Sentry, memory};
use crate::support::shim::{Gate, Shim};
use crate::support::thawd::{Files, Manner, Thawd};
use serde_json::json;
use thaw_proto::Reason;
use thaw_proto::data::{Class, File, Range};
use thaw_proto::gate::{FromLander, ToLander};
use thaw_proto::options::Job;

const PAGES: usize = 24 << 20;

fn files() -> Files {
    [
        Some(seeded(1, 11 * 1024 * 1024 + 123)),
        Some(seeded(2, 7_400)),
        Some(seeded(3, PAGES)),
    ]
}

fn restore_job() -> Job {
    Job::Restore {
        tenant: "tenant".into(),
        snapshot: "s".repeat(64),
        container: "ns/c".into(),
    }
}

fn capture_job() -> Job {
    Job::Capture {
        capture: "capture-1".into(),
    }
}

/// A lander with all its peers.
struct Scene {
    _dir: tempfile::TempDir,
    thawd: Thawd,
    gate: Option<Gate>,
    lander: Lander,
    sentry: Arc<Sentry>,
    files: Files,
}

impl Scene {
    fn new(job: Job, manner: Manner) -> Scene {
        Scene::with_files(job, manner, files())
    }

    fn with_files(job: Job, manner: Manner, files: Files) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let shim = Shim::new(dir.path());
        let thawd = Thawd::start(dir.path(), &files, manner);
        let (lander, socket) = Lander::spawn(dir.path(), job, &[]);
        let gate = Some(shim.accept());
        Scene {
            _dir: dir,
            thawd,
            gate,
            lander,
            sentry: Arc::new(Sentry::new(socket)),
            files,
        }
    }

    fn gate(&self) -> &Gate {
        self.gate.as_ref().unwrap()
    }

    fn bytes(&self, which: File) -> &[u8] {
        self.files[which as usize].as_ref().unwrap()
    }

    /// Reads both streams, with the go as soon as the lander is ready.
    fn read_streams(&self) {
        let meta = {
            let sentry = self.sentry.clone();
            std::thread::spawn(move || sentry.read_stream("pages_meta.img"))
        };
        assert_eq!(self.gate().hear(), Some(FromLander::Ready));
        assert!(!meta.is_finished());
        self.gate().say(ToLander::Go);
        assert_eq!(self.gate().hear(), Some(FromLander::Went));
        let (_, meta) = meta.join().unwrap().unwrap();
        assert!(meta == self.bytes(File::PagesMeta));
        let (_, state) = self.sentry.read_stream("checkpoint.img").unwrap();
        assert!(state == self.bytes(File::State));
    }

    fn load_pages(&self) {
        let (file, pages) = self.sentry.load_pages(PAGES as u64).unwrap();
        assert!(pages == self.bytes(File::Pages));
        self.sentry.close(&file).unwrap();
    }

    fn end(&self) {
        self.sentry.hang_up();
        assert_eq!(self.lander.wait().code(), Some(0));
    }
}

#[test]
fn a_restore_delivers_every_byte() {
    let s = Scene::new(restore_job(), Manner::default());
    s.read_streams();
    s.load_pages();
    assert_eq!(s.gate().hear(), Some(FromLander::Landed));
    s.end();
    let seen = s.thawd.seen();
    let count = |class| {
        seen.iter()
            .filter(|r| r.file == File::Pages && r.class == class)
            .count()
    };
    assert!(count(Class::Demand) > 5);
    assert!(count(Class::Fill) > 50);
    assert!(
        seen.iter()
            .filter(|r| r.file != File::Pages)
            .all(|r| r.class == Class::Demand)
    );
}

#[test]
fn answers_may_come_in_any_order_and_slowly() {
    for manner in [
        Manner {
            shuffle: 3,
            ..Manner::default()
        },
        Manner {
            delay: Duration::from_millis(5),
            ..Manner::default()
        },
    ] {
        let s = Scene::new(restore_job(), manner);
        s.read_streams();
        s.load_pages();
        s.end();
    }
}

#[test]
fn thawd_may_hang_up_and_die_and_come_back() {
    let mut s = Scene::new(
        restore_job(),
        Manner {
            hang_up_after: Some(20),
            delay: Duration::from_millis(2),
            ..Manner::default()
        },
    );
    s.read_streams();
    let load = {
        let sentry = s.sentry.clone();
        std::thread::spawn(move || sentry.load_pages(PAGES as u64))
    };
    while s
        .thawd
        .seen()
        .iter()
        .filter(|r| r.file == File::Pages)
        .count()
        < 40
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    s.thawd.die();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!load.is_finished());
    s.thawd.come_back();
    let (_, pages) = load.join().unwrap().unwrap();
    assert!(pages == s.bytes(File::Pages));
    assert!(s.thawd.hellos() >= 3);
    assert_eq!(s.gate().hear(), Some(FromLander::Landed));
    s.end();
}

#[test]
fn a_segment_that_cannot_be_read_is_asked_for_again() {
    let s = Scene::new(
        restore_job(),
        Manner {
            short_segment: true,
            ..Manner::default()
        },
    );
    s.read_streams();
    s.load_pages();
    s.end();
}

/// Starts reading `pages_meta.img` and waits until it was asked for.
fn ask_for_meta(s: &Scene) -> std::thread::JoinHandle<Result<Vec<u8>, String>> {
    let sentry = s.sentry.clone();
    let reader =
        std::thread::spawn(move || sentry.read_stream("pages_meta.img").map(|(_, data)| data));
    assert_eq!(s.gate().hear(), Some(FromLander::Ready));
    reader
}

#[test]
fn after_an_abort_nothing_is_answered() {
    let s = Scene::new(restore_job(), Manner::default());
    let (state, _) = s.sentry.read_stream("checkpoint.img").unwrap();
    let meta = ask_for_meta(&s);
    s.gate().say(ToLander::Abort);
    assert_eq!(s.gate().hear(), Some(FromLander::Aborted));
    assert!(meta.join().unwrap().is_err());
    assert!(state.read(&[], 0).is_err());
    assert_eq!(s.lander.wait().code(), Some(10));
    assert_eq!(s.gate().hear(), None);
}

#[test]
fn a_hang_up_of_the_shim_before_go_is_an_abort() {
    let mut s = Scene::new(restore_job(), Manner::default());
    let meta = ask_for_meta(&s);
    s.gate = None;
    assert!(meta.join().unwrap().is_err());
    assert_eq!(s.lander.wait().code(), Some(10));
}

#[test]
fn after_go_neither_abort_nor_hang_up_changes_anything() {
    let mut s = Scene::new(restore_job(), Manner::default());
    s.read_streams();
    s.gate().say(ToLander::Abort);
    assert_eq!(s.gate().hear(), Some(FromLander::Went));
    s.gate = None;
    s.load_pages();
    s.end();
}

#[test]
fn ready_waits_for_thawd() {
    let s = Scene::new(
        restore_job(),
        Manner {
            unready: true,
            ..Manner::default()
        },
    );
    let sentry = s.sentry.clone();
    let meta = std::thread::spawn(move || sentry.read_stream("pages_meta.img"));
    while s.thawd.seen().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    s.sentry.read_stream("checkpoint.img").unwrap();
    assert_eq!(s.gate().hear_now(), None);
    s.gate().say(ToLander::Go);
    assert_eq!(s.gate().hear(), Some(FromLander::Went));
    meta.join().unwrap().unwrap();
}

#[test]
fn a_checkpoint_of_one_file_is_withheld_as_well() {
    let mut files = files();
    files[File::PagesMeta as usize] = None;
    files[File::Pages as usize] = None;
    for word in [ToLander::Go, ToLander::Abort] {
        let s = Scene::with_files(restore_job(), Manner::default(), files.clone());
        let sentry = s.sentry.clone();
        let state = std::thread::spawn(move || sentry.read_stream("checkpoint.img"));
        assert_eq!(s.gate().hear(), Some(FromLander::Ready));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!state.is_finished());
        s.gate().say(word);
        let read = state.join().unwrap();
        match word {
            ToLander::Go => assert!(read.unwrap().1 == s.bytes(File::State)),
            ToLander::Abort => assert!(read.is_err()),
        }
    }
}

#[test]
fn without_thawd_the_restore_fails_before_go() {
    let dir = tempfile::tempdir().unwrap();
    let shim = Shim::new(dir.path());
    let (lander, socket) = Lander::spawn(dir.path(), restore_job(), &[]);
    let gate = shim.accept();
    let sentry = Arc::new(Sentry::new(socket));
    let open = {
        let sentry = sentry.clone();
        std::thread::spawn(move || sentry.open("checkpoint.img", 1).map(|_| ()))
    };
    assert!(matches!(
        gate.hear(),
        Some(FromLander::Failed {
            reason: Reason::NodeUnavailable,
            ..
        })
    ));
    assert!(!open.is_finished());
    gate.say(ToLander::Go);
    assert_eq!(gate.hear(), Some(FromLander::Aborted));
    assert!(open.join().unwrap().is_err());
    assert_eq!(lander.wait().code(), Some(10));
}

#[test]
fn what_thawd_refuses_fails_before_go_with_its_reason() {
    let s = Scene::new(
        restore_job(),
        Manner {
            refuse: Some(("snapshot-corrupt".into(), "chunk 7".into())),
            ..Manner::default()
        },
    );
    assert_eq!(
        s.gate().hear(),
        Some(FromLander::Failed {
            reason: Reason::SnapshotCorrupt,
            detail: "chunk 7".into()
        })
    );
    assert!(s.lander.runs());
    s.gate().say(ToLander::Abort);
    assert_eq!(s.gate().hear(), Some(FromLander::Aborted));
    assert_eq!(s.lander.wait().code(), Some(10));
}

#[test]
fn data_lost_after_go_ends_the_lander_without_a_wrong_page() {
    let s = Scene::new(
        restore_job(),
        Manner {
            fail_after: Some((10, "snapshot-missing".into())),
            ..Manner::default()
        },
    );
    s.read_streams();
    // Completions with an error would fail an assertion in the stand-in.
    assert!(s.sentry.load_pages(PAGES as u64).is_err());
    assert!(matches!(
        s.gate().hear(),
        Some(FromLander::Failed {
            reason: Reason::SnapshotMissing,
            ..
        })
    ));
    assert_eq!(s.lander.wait().code(), Some(11));
}

#[test]
fn a_store_that_is_away_after_go_is_waited_for() {
    let s = Scene::new(
        restore_job(),
        Manner {
            fail_after: Some((10, "store-unreachable".into())),
            ..Manner::default()
        },
    );
    s.read_streams();
    let load = {
        let sentry = s.sentry.clone();
        std::thread::spawn(move || sentry.load_pages(PAGES as u64))
    };
    while s.thawd.hellos() < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    s.thawd.set_manner(Manner::default());
    let (_, pages) = load.join().unwrap().unwrap();
    assert!(pages == s.bytes(File::Pages));
    s.end();
}

#[test]
fn only_what_exists_can_be_opened() {
    let mut files = files();
    files[File::PagesMeta as usize] = None;
    let s = Scene::with_files(restore_job(), Manner::default(), files);
    let error = |path: &str, mode| s.sentry.open(path, mode).map(|_| ()).unwrap_err();
    assert!(error("pages_meta.img", 1).contains("no such file"));
    assert_eq!(error("multitar.img", 1), "permission denied");
    assert_eq!(error("../x", 1), "permission denied");
    assert!(error("pages.img", 2).contains("permission denied"));
    assert!(error("pages.img", 3).contains("mode"));
    let file = s.sentry.open("pages.img", 1).unwrap();
    assert!(error("pages.img", 1).contains("already open"));
    assert!(s.sentry.call("Nope", json!({}), &[]).is_err());
    assert!(s.sentry.call("Close", json!({"handle": 9}), &[]).is_err());
    assert!(s.sentry.call("Close", json!({"handle": "x"}), &[]).is_err());
    let arg = |settings| json!({"handle": file.handle, "size": 4096, "writable": true, "settings": settings});
    let register = |settings, fds: &[_]| s.sentry.call("RegisterClientFile", arg(settings), fds);
    let client = memory(4096);
    let fd = std::os::fd::AsFd::as_fd(&client);
    assert!(register(json!(null), &[]).is_err());
    assert!(register(json!([{"Start": 0, "End": 8192, "Property": 1}]), &[fd]).is_err());
    assert!(register(json!([{"Start": 0, "End": 4096, "Property": 3}]), &[fd]).is_err());
    assert!(register(json!([{"Start": 0, "End": 4096, "Property": 2}]), &[fd]).is_ok());
    assert!(s.sentry.register(&file, &client, 4096, false).is_err());
    s.sentry.close(&file).unwrap();
    s.end();
}

#[test]
fn a_hostile_sentry_loses_its_connection_and_nothing_else() {
    let s = Scene::new(restore_job(), Manner::default());
    s.read_streams();
    let io = |id, offset, client, start, end| {
        vec![Io {
            id,
            offset,
            client,
            ranges: vec![Range { start, end }],
        }]
    };
    let twice = || {
        let mut ios = io(0, 0, 0, 0, 4096);
        ios.extend(io(0, 4096, 0, 4096, 8192));
        ios
    };
    for (what, ios, min) in [
        ("client file", io(0, 0, 7, 0, 4096), 1),
        ("id", io(800, 0, 0, 0, 4096), 1),
        ("id twice", twice(), 1),
        ("range outside", io(0, 0, 0, 0, 2 << 20), 1),
        (
            "range far outside",
            io(0, 0, 0, u64::MAX - 4096, u64::MAX),
            1,
        ),
        ("empty range", io(0, 0, 0, 4096, 4096), 1),
        ("reversed range", io(0, 0, 0, 4096, 0), 1),
        ("beyond the end", io(0, PAGES as u64, 0, 0, 4096), 1),
        ("negative offset", io(0, u64::MAX, 0, 0, 4096), 1),
        ("too many awaited", io(0, 0, 0, 0, 4096), 2),
    ] {
        let file = s.sentry.open("pages.img", 1).unwrap();
        let client = memory(1 << 20);
        s.sentry.register(&file, &client, 1 << 20, true).unwrap();
        assert!(file.read(&ios, min).is_err(), "{what}");
        s.sentry.close(&file).unwrap();
    }
    for (count, text) in [(u32::MAX, vec![]), (9, vec![]), (1, vec![0xff; 2000])] {
        let file = s.sentry.open("pages.img", 1).unwrap();
        assert!(file.exchange(&text, count as usize, 0).is_err());
        s.sentry.close(&file).unwrap();
    }
    // It still works for those who keep to the rules.
    s.load_pages();
    s.end();
}

#[test]
fn a_close_while_reads_are_outstanding_is_answered() {
    let s = Scene::new(restore_job(), Manner::default());
    s.read_streams();
    s.thawd.set_manner(Manner {
        mute: true,
        ..Manner::default()
    });
    let file = s.sentry.open("pages.img", 1).unwrap();
    let client = memory(1 << 20);
    s.sentry.register(&file, &client, 1 << 20, true).unwrap();
    let io = Io {
        id: 0,
        offset: 0,
        client: 0,
        ranges: vec![Range {
            start: 0,
            end: 4096,
        }],
    };
    assert_eq!(file.read(&[io], 0).unwrap(), []);
    s.sentry.close(&file).unwrap();
    s.thawd.set_manner(Manner::default());
    s.load_pages();
    let mut page = [0; 4096];
    client.read_exact_at(&mut page, 0).unwrap();
    assert_eq!(page, [0; 4096]);
    s.end();
}

/// Writes `data` through `slots` writes in flight of `chunk` bytes, each of two ranges in reversed memory order.
fn save(sentry: &Sentry, name: &str, data: &[u8]) -> Result<(), String> {
    let file = sentry.open(name, 2)?;
    let ranges = if file.limits.max_ranges > 1 { 2 } else { 1 };
    let chunk = file.limits.max_io_bytes as usize;
    let memory = memory(data.len() as u64 * 2 + 4096);
    // Every chunk is laid out back to front in memory.
    let client = sentry.register(&file, &memory, data.len() as u64 * 2 + 4096, false)?;
    let mut at = data.len() as u64 * 2 + 4096;
    let mut free: Vec<u32> = (0..file.limits.max_parallel).collect();
    let mut chunks = data.chunks(chunk).peekable();
    let mut in_flight = 0;
    while in_flight > 0 || chunks.peek().is_some() {
        let mut batch = Vec::new();
        while let (false, Some(id)) = (chunks.peek().is_none(), free.last().copied()) {
            free.pop();
            let chunk = chunks.next().unwrap();
            let mut io = Io {
                id,
                offset: 0,
                client,
                ranges: Vec::new(),
            };
            for part in chunk.chunks(chunk.len().div_ceil(ranges)) {
                at -= part.len() as u64;
                memory.write_all_at(part, at).unwrap();
                io.ranges.push(Range {
                    start: at,
                    end: at + part.len() as u64,
                });
            }
            batch.push(io);
        }
        in_flight += batch.len();
        for c in file
            .write(&batch, 1, data.len() as u64)
            .map_err(|e| e.to_string())?
        {
            if c.errno != 0 {
                let _ = sentry.close(&file);
                return Err(format!("errno {}", c.errno));
            }
            in_flight -= 1;
            free.push(c.id);
        }
    }
    match file.finalize().map_err(|e| e.to_string())? {
        0 => sentry.close(&file),
        errno => Err(format!("finalize: errno {errno}")),
    }
}

#[test]
fn a_capture_keeps_every_byte_in_order() {
    let s = Scene::new(
        capture_job(),
        Manner {
            delay: Duration::from_micros(300),
            ..Manner::default()
        },
    );
    let expected = files();
    // All three are open at once, as gVisor does it: Saved comes only after the last.
    std::thread::scope(|scope| {
        let savers: Vec<_> = File::ALL
            .iter()
            .map(|which| {
                let (sentry, data) = (&s.sentry, expected[*which as usize].as_ref().unwrap());
                scope.spawn(move || save(sentry, which.name(), data))
            })
            .collect();
        for saver in savers {
            saver.join().unwrap().unwrap();
        }
    });
    let captured = s.thawd.captured();
    for which in File::ALL {
        assert!(
            captured[which as usize] == expected[which as usize],
            "{}",
            which.name()
        );
    }
    let total: usize = expected.iter().flatten().map(Vec::len).sum();
    let mut last = None;
    while let Some(word) = s.gate().hear_now() {
        last = Some(word);
    }
    assert_eq!(
        last,
        Some(FromLander::Saved {
            bytes: total as u64
        })
    );
    assert!(s.sentry.open("pages.img", 2).is_err());
    s.end();
}

#[test]
fn a_refused_capture_opens_and_fails_its_first_write() {
    for (refuse, errno) in [("cache-full", 28), ("store-unreachable", 5)] {
        let s = Scene::new(
            capture_job(),
            Manner {
                refuse: Some((refuse.into(), "no room".into())),
                ..Manner::default()
            },
        );
        assert_eq!(
            save(&s.sentry, "checkpoint.img", b"x"),
            Err(format!("errno {errno}"))
        );
        assert!(matches!(s.gate().hear(), Some(FromLander::Failed { .. })));
        s.end();
    }
}

#[test]
fn a_capture_without_thawd_fails_and_the_sentry_hears_it() {
    let dir = tempfile::tempdir().unwrap();
    let shim = Shim::new(dir.path());
    let (_lander, socket) = Lander::spawn(dir.path(), capture_job(), &[]);
    let gate = shim.accept();
    let sentry = Sentry::new(socket);
    assert_eq!(
        save(&sentry, "checkpoint.img", b"x"),
        Err("errno 5".to_owned())
    );
    assert!(matches!(
        gate.hear(),
        Some(FromLander::Failed {
            reason: Reason::NodeUnavailable,
            ..
        })
    ));
}

#[test]
fn a_capture_fails_with_the_write_that_fails_or_with_thawd() {
    for manner in [
        Manner {
            write_error: Some((5, 28)),
            ..Manner::default()
        },
        Manner {
            hang_up_after: Some(5),
            ..Manner::default()
        },
    ] {
        let errno = manner.write_error.map_or(5, |(_, errno)| errno);
        let s = Scene::new(capture_job(), manner);
        assert_eq!(
            save(&s.sentry, "pages.img", &seeded(4, 16 << 20)),
            Err(format!("errno {errno}"))
        );
        s.end();
        assert_eq!(s.thawd.captured(), [None, None, None]);
    }
}

#[test]
fn a_job_that_cannot_begin_says_so_in_the_log_of_runsc() {
    let fails = |dir: &Path, options: &[u8], flag: &str| {
        let (lander, _socket) = Lander::spawn_with(dir, options, flag, &[]);
        assert_eq!(lander.wait().code(), Some(128));
        let log = std::fs::read_to_string(dir.join("user.log")).unwrap();
        let entry: serde_json::Value = serde_json::from_str(&log).unwrap();
        assert_eq!(entry["level"], "error");
        entry["msg"].as_str().unwrap().to_owned()
    };
    let dir = tempfile::tempdir().unwrap();
    let options = json!({
        "provider": "thaw",
        "job": {"capture": {"capture": "c"}},
        "data_socket": dir.path().join("data.sock"),
        "gate_socket": dir.path().join("gate.sock"),
    });
    let text = serde_json::to_vec(&options).unwrap();
    let (reads, writes) = ("-allow-checkpoint-reads", "-allow-checkpoint-writes");
    assert!(fails(dir.path(), b"{}", writes).contains("gcs_opts.json"));
    assert!(fails(dir.path(), &text, reads).contains("capture"));
    assert!(fails(dir.path(), &text, writes).contains("gate.sock"));
    let mut other = options;
    other["provider"] = "gcs".into();
    assert!(fails(dir.path(), other.to_string().as_bytes(), writes).contains("provider"));
}

#[test]
fn the_lander_ends_with_the_sentry_even_while_a_call_waits() {
    let dir = tempfile::tempdir().unwrap();
    let shim = Shim::new(dir.path());
    let (lander, socket) = Lander::spawn(dir.path(), restore_job(), &[]);
    let _gate = shim.accept();
    let sentry = Arc::new(Sentry::new(socket.try_clone().unwrap()));
    let open = std::thread::spawn(move || sentry.open("checkpoint.img", 1).map(|_| ()));
    std::thread::sleep(Duration::from_millis(50));
    let _ = socket.shutdown(std::net::Shutdown::Both);
    assert_eq!(lander.wait().code(), Some(0));
    assert!(open.join().unwrap().is_err());
}

/// Each named point is met, and a lander that dies there takes the restore with it.
#[cfg(feature = "failpoints")]
#[test]
fn a_death_at_any_point_is_noticed_by_the_sentry() {
    for point in [
        "lander.hello",
        "lander.connect",
        "lander.open",
        "lander.ready",
        "lander.go",
        "lander.went",
        "lander.page",
        "lander.land",
        "lander.landed",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let failpoints = dir.path().join("failpoints");
        std::fs::write(&failpoints, format!("{point}=kill\n")).unwrap();
        let shim = Shim::new(dir.path());
        let _thawd = Thawd::start(dir.path(), &files(), Manner::default());
        let env = [(thaw_proto::failpoint::FAILPOINTS_ENV, failpoints.as_path())];
        let (lander, socket) = Lander::spawn(dir.path(), restore_job(), &env);
        let shim = std::thread::spawn(move || {
            let gate = shim.accept_silent();
            gate.say(ToLander::Go);
            while gate.hear().is_some() {}
        });
        let sentry = Sentry::new(socket);
        let run = || -> Result<(), String> {
            sentry.read_stream("pages_meta.img")?;
            sentry.read_stream("checkpoint.img")?;
            let (file, _) = sentry.load_pages(PAGES as u64)?;
            sentry.close(&file)
        };
        assert!(run().is_err() || point == "lander.landed", "{point}");
        assert_eq!(lander.wait().code(), None, "{point}");
        shim.join().unwrap();
    }
}

/// An abort that arrives while a go is being carried out comes too late, and a go after an abort as well.
#[cfg(feature = "failpoints")]
#[test]
fn the_first_decision_wins_however_slow_it_is() {
    for (point, first, second, answer) in [
        ("lander.go", ToLander::Go, ToLander::Abort, FromLander::Went),
        (
            "lander.abort",
            ToLander::Abort,
            ToLander::Go,
            FromLander::Aborted,
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let failpoints = dir.path().join("failpoints");
        std::fs::write(&failpoints, format!("{point}=100\n")).unwrap();
        let shim = Shim::new(dir.path());
        let _thawd = Thawd::start(dir.path(), &files(), Manner::default());
        let env = [(thaw_proto::failpoint::FAILPOINTS_ENV, failpoints.as_path())];
        let (_lander, socket) = Lander::spawn(dir.path(), restore_job(), &env);
        let gate = shim.accept();
        let sentry = Sentry::new(socket);
        let meta = std::thread::spawn(move || sentry.read_stream("pages_meta.img").is_ok());
        assert_eq!(gate.hear(), Some(FromLander::Ready));
        gate.say(first);
        gate.say(second);
        assert_eq!(gate.hear(), Some(answer.clone()));
        assert_eq!(meta.join().unwrap(), answer == FromLander::Went);
    }
}
