//! All kinds of streams: FIFOs, files, logging programs of both protocols, nothing, terminals. Every case is held against
//! containerd's own shim first, so that what is asked of Thaw is what the reference does.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use thaw_testkit::mock::{Event, Mock, Peer, Spec, Stage, Streams};

const PATIENCE: Duration = Duration::from_secs(20);

/// Plays a case on the reference and on Thaw. What Thaw leaves behind, or tells in the wrong order, is a failure.
#[track_caller]
fn on_both(case: impl Fn(&mut Stage)) {
    for peer in [Peer::runc(), Peer::thaw()] {
        let peer = peer.unwrap();
        let name = peer.runtime().name();
        eprintln!("with {name}:");
        let mut stage = Stage::new(Mock::start(peer).unwrap());
        case(&mut stage);
        let played = stage.finish();
        if name == "thaw" {
            assert!(played.violations.is_empty(), "{:?}", played.violations);
            assert!(
                played.left.is_empty(),
                "left behind: {:#?}\n{}",
                played.left,
                played.logs
            );
        }
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn uri(scheme: &str, path: &Path, query: &str) -> String {
    format!("{scheme}://{}{query}", path.display())
}

/// Both outputs to the same place.
fn outputs(to: &str) -> Streams {
    Streams {
        stdout: to.to_owned(),
        stderr: to.to_owned(),
        ..Streams::default()
    }
}

#[track_caller]
fn until(what: &str, is: impl Fn() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn exited(stage: &Stage) -> bool {
    let received = stage.mock().events().received();
    received
        .iter()
        .any(|received| matches!(received.event, Event::Exit { .. }))
}

#[test]
fn a_hundred_mebibytes_arrive_without_loss() {
    const LINE: &[u8] = b"0123456789abcde\n";
    const SIZE: usize = 100 << 20;
    on_both(|stage| {
        let script = format!("yes 0123456789abcde | head -c {SIZE}");
        stage.launch("c", &Spec::sh(&script)).unwrap();
        let fifo = stage.mock().fifo("out").unwrap();
        let output = stage.mock().read(&fifo).unwrap();
        let errors = stage.mock().fifo("err").unwrap();
        let _errors = stage.mock().read(&errors).unwrap();
        let streams = Streams {
            stdout: fifo.display().to_string(),
            stderr: errors.display().to_string(),
            ..Streams::default()
        };
        assert!(stage.create_on("c", &streams) && stage.start("c") && stage.wait("c", ""));
        assert!(
            output.wait_end(PATIENCE),
            "{} bytes and no end",
            output.len()
        );
        let bytes = output.take();
        assert_eq!(bytes.len(), SIZE);
        assert!(
            bytes.chunks(LINE.len()).all(|line| line == LINE),
            "bytes came out of order"
        );
    });
}

#[test]
fn input_arrives_without_loss() {
    on_both(|stage| {
        stage.launch("c", &Spec::new(&["/bin/wc", "-c"])).unwrap();
        stage.create_with_input("c", true).unwrap();
        let path = stage.stdin_path("c", "").unwrap().to_owned();
        assert!(stage.start("c"));
        let mut stdin = fs::OpenOptions::new().write(true).open(path).unwrap();
        std::io::Write::write_all(&mut stdin, &vec![b'x'; 8 << 20]).unwrap();
        drop(stdin);
        assert!(stage.close_stdin("c", "") && stage.wait("c", ""));
        stage.output_has("c", "", &format!("{}\n", 8 << 20));
        stage.output("c", "");
    });
}

#[test]
fn a_file_is_appended_to_by_both_outputs() {
    on_both(|stage| {
        stage
            .launch("c", &Spec::sh("echo one; echo two >&2"))
            .unwrap();
        let dir = stage.mock().io_dir().join("logs/of/c");
        fs::create_dir_all(&dir).unwrap();
        let log = dir.join("a log");
        fs::write(&log, "before\n").unwrap();
        let name = uri("file", &dir, "/a%20log");
        assert!(stage.create_on("c", &outputs(&name)) && stage.start("c") && stage.wait("c", ""));
        until("both lines are in the file", || {
            text(&log).contains("one\n") && text(&log).contains("two\n")
        });
        assert!(text(&log).starts_with("before\n"), "{}", text(&log));
        assert!(stage.delete("c", ""));
    });
}

#[test]
fn a_files_directory_is_made() {
    on_both(|stage| {
        stage.launch("c", &Spec::sh("echo one")).unwrap();
        let log = stage.mock().io_dir().join("not/there/yet/log");
        assert!(stage.create_on("c", &outputs(&uri("file", &log, ""))) && stage.start("c"));
        assert!(stage.wait("c", ""));
        until("the line is in the file", || text(&log) == "one\n");
    });
}

#[test]
fn nothing_is_a_kind_of_stream() {
    on_both(|stage| {
        stage
            .launch("c", &Spec::sh("echo one; cat; exit 3"))
            .unwrap();
        assert!(stage.create_on("c", &Streams::default()) && stage.start("c"));
        assert!(stage.wait("c", ""));
        assert_eq!(stage.client("c").wait("c", "").unwrap().status, 3);
    });
}

#[test]
fn a_terminal_may_be_written_to_by_one_stream_only() {
    on_both(|stage| {
        stage
            .launch(
                "c",
                &Spec::sh("test -t 2 && echo three are one >&2").terminal(),
            )
            .unwrap();
        let fifo = stage.mock().fifo("out").unwrap();
        let output = stage.mock().read(&fifo).unwrap();
        let streams = Streams {
            stdout: fifo.display().to_string(),
            terminal: true,
            ..Streams::default()
        };
        assert!(stage.create_on("c", &streams) && stage.start("c") && stage.wait("c", ""));
        assert!(output.wait_end(PATIENCE));
        assert_eq!(output.text(), "three are one\r\n");
    });
}

/// A logging program: notes its environment and arguments, says how it is ready, then keeps both outputs.
fn logger(stage: &Stage, ready: &str) -> (PathBuf, PathBuf) {
    let dir = stage.mock().io_dir();
    let script = format!(
        "#!/bin/sh\ncd {}\n# Told to end, it still writes what it has.\ntrap '' TERM\n\
         echo \"$CONTAINER_NAMESPACE $CONTAINER_ID $*\" > who\n{ready}\n\
         cat <&3 > stdout & cat <&4 > stderr & wait; echo done > done\n",
        dir.display()
    );
    (stage.mock().script("logger", &script).unwrap(), dir)
}

fn logging_program(scheme: &str, ready: &str) {
    on_both(|stage| {
        stage
            .launch("c", &Spec::sh("echo one; echo two >&2; sleep 600"))
            .unwrap();
        let (program, dir) = logger(stage, ready);
        let name = uri(scheme, &program, "?--to=a%20file");
        assert!(
            stage.create_on("c", &outputs(&name)),
            "{}",
            stage.bundle("c").log()
        );
        assert!(stage.start("c"));
        until("the logger has both outputs", || {
            text(&dir.join("stdout")) == "one\n" && text(&dir.join("stderr")) == "two\n"
        });
        let who = format!("{} c --to a file\n", stage.mock().namespace());
        assert_eq!(text(&dir.join("who")), who);
        assert!(
            !dir.join("done").exists(),
            "the outputs ended while the container runs"
        );
        assert!(stage.kill("c", "", 9) && stage.wait("c", "") && stage.delete("c", ""));
        until("the logger has ended", || dir.join("done").exists());
    });
}

#[test]
fn a_logging_program_is_ready_when_it_closes_its_pipe() {
    logging_program("binary", "exec 5>&-");
}

#[test]
fn a_logging_program_of_version_2_is_ready_when_it_says_so() {
    logging_program("binary-v2", "printf x >&5; exec 5>&-");
}

#[test]
fn a_logging_program_that_cannot_be_used_fails_the_create() {
    on_both(|stage| {
        let mute = stage
            .mock()
            .script("mute", "#!/bin/sh\nexec 5>&-\nexit 1\n")
            .unwrap();
        let missing = stage.mock().io_dir().join("missing");
        stage.launch("c", &Spec::new(&["/bin/true"])).unwrap();
        for name in [
            uri("binary", &missing, ""),
            uri("binary-v2", &mute, ""),
            "nonsense:///x".to_owned(),
        ] {
            assert!(!stage.create_on("c", &outputs(&name)), "{name}");
        }
        assert!(
            stage.create_on("c", &Streams::default()),
            "{}",
            stage.bundle("c").log()
        );
        assert!(stage.start("c") && stage.wait("c", "") && stage.delete("c", ""));
    });
}

/// Output to FIFOs that somebody has opened and does not read.
fn stalled(stage: &mut Stage, script: &str) -> fs::File {
    stage.launch("c", &Spec::sh(script)).unwrap();
    let fifo = stage.mock().fifo("out").unwrap();
    let reader = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&fifo)
        .unwrap();
    let streams = outputs(&fifo.display().to_string());
    assert!(stage.create_on("c", &streams) && stage.start("c"));
    reader
}

#[test]
fn a_stalled_reader_holds_up_neither_kill_nor_exit_nor_delete() {
    on_both(|stage| {
        let _reader = stalled(stage, "yes");
        thread::sleep(Duration::from_millis(500));
        let started = Instant::now();
        assert!(stage.kill("c", "", 9));
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "Kill: {:?}",
            started.elapsed()
        );
        let started = Instant::now();
        assert!(stage.wait("c", ""));
        assert!(
            exited(stage) && started.elapsed() < Duration::from_secs(3),
            "exit: {:?}",
            started.elapsed()
        );
        let started = Instant::now();
        assert!(stage.delete("c", ""));
        // containerd's shim waits ten seconds for the reader.
        assert!(
            started.elapsed() < Duration::from_secs(12),
            "Delete: {:?}",
            started.elapsed()
        );
    });
}

#[test]
fn output_that_nobody_reads_yet_does_not_hold_up_the_exit() {
    on_both(|stage| {
        // More than the FIFO holds, less than FIFO and pipe hold together.
        let _reader = stalled(stage, "head -c 90000 /dev/zero");
        assert!(stage.wait("c", "") && exited(stage));
    });
}

#[test]
fn a_reader_that_goes_and_comes_back_misses_nothing_later() {
    on_both(|stage| {
        let script = "echo first; while test ! -e /tmp/go; do sleep 0.05; done; echo second";
        stage.launch("c", &Spec::sh(script)).unwrap();
        let fifo = stage.mock().fifo("out").unwrap();
        let before = stage.mock().read(&fifo).unwrap();
        assert!(stage.create_on("c", &outputs(&fifo.display().to_string())) && stage.start("c"));
        assert!(before.wait_until(PATIENCE, |bytes, _| bytes == b"first\n"));
        // As when containerd is restarted.
        drop(before);
        // There again before the program goes on: what nobody has read when it ends, the FIFO does not keep.
        let after = stage.mock().read(&fifo).unwrap();
        stage.exec("c", "go", &["/bin/touch", "/tmp/go"]).unwrap();
        assert!(stage.start_exec("c", "go") && stage.wait("c", "go"));
        assert!(stage.wait("c", ""));
        assert_eq!(stage.client("c").wait("c", "").unwrap().status, 0);
        assert!(
            after.wait_until(PATIENCE, |bytes, _| bytes == b"second\n"),
            "{}",
            after.text()
        );
    });
}

/// Descriptors that a process has open, apart from those that belong to its connections.
fn descriptors(pid: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|target| !target.to_string_lossy().starts_with("socket:"))
        .count()
}

#[test]
fn execs_leave_no_descriptors_behind() {
    const EXECS: usize = 20;
    on_both(|stage| {
        stage.launch("c", &Spec::sh("sleep 600")).unwrap();
        assert!(stage.create("c").unwrap() && stage.start("c"));
        let run = |stage: &mut Stage, count: usize| {
            for _ in 0..count {
                let process = Spec::process(&["/bin/echo", "x"], false);
                stage.exec_with("c", "e", &process, false, true).unwrap();
                assert!(stage.start_exec("c", "e") && stage.wait("c", "e"));
                assert!(stage.delete("c", "e"));
            }
        };
        // What is opened once and kept is open after the first few.
        run(stage, 3);
        let shim = stage.shim_pid("c");
        let before = descriptors(shim);
        run(stage, EXECS);
        let after = descriptors(shim);
        // runc's shim opens one or two of its runtime's own as it goes; a leak is one or more for each exec.
        assert!(
            after < before + EXECS / 4,
            "{before} descriptors, then {after}"
        );
    });
}
