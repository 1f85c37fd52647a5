use std::io::{Read, Write};
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::*;

fn fifo(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    path
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn out(streams: Streams) -> File {
    match streams.stdout {
        Output::Fd(fd) => File::from(fd),
        other => panic!("{other:?} is no descriptor"),
    }
}

#[tokio::test]
async fn a_replaced_sandbox_goes_on_in_the_same_fifo_and_the_end_comes_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = fifo(dir.path(), "out");
    let mut reader = pipe::OpenOptions::new().open_receiver(&path).unwrap();
    let wanted = Wanted {
        stdout: text(&path),
        ..Wanted::default()
    };
    let io = ProcessIo::open(wanted, "ns", "id").await.unwrap();
    let mut first = out(io.attach().unwrap());
    first.write_all(b"one ").unwrap();
    drop(first);
    io.detach(Duration::from_secs(5)).await;
    let mut second = out(io.attach().unwrap());
    second.write_all(b"two").unwrap();
    drop(second);
    io.process_ended();
    let mut all = String::new();
    reader.read_to_string(&mut all).await.unwrap();
    assert_eq!(all, "one two");
}

#[tokio::test]
async fn input_waits_until_it_may_flow_and_ends_after_close() {
    let dir = tempfile::tempdir().unwrap();
    let path = fifo(dir.path(), "in");
    let wanted = Wanted {
        stdin: text(&path),
        ..Wanted::default()
    };
    let io = ProcessIo::open(wanted, "ns", "id").await.unwrap();
    let mut writer = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    writer.write_all(b"typed early").unwrap();
    // A sandbox that is given up has taken nothing.
    drop(io.attach().unwrap());
    io.detach(Duration::from_secs(1)).await;
    let Input::Fd(stdin) = io.attach().unwrap().stdin else {
        panic!("no descriptor");
    };
    io.close_input();
    io.begin_input().unwrap();
    drop(writer);
    let read = tokio::task::spawn_blocking(move || {
        let mut all = String::new();
        File::from(stdin).read_to_string(&mut all).map(|_| all)
    });
    assert_eq!(read.await.unwrap().unwrap(), "typed early");
}

#[tokio::test]
async fn a_reader_that_does_not_read_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = fifo(dir.path(), "out");
    let _reader = pipe::OpenOptions::new().open_receiver(&path).unwrap();
    let wanted = Wanted {
        stdout: text(&path),
        ..Wanted::default()
    };
    let io = ProcessIo::open(wanted, "ns", "id").await.unwrap();
    let mut process = out(io.attach().unwrap());
    let flood = tokio::task::spawn_blocking(move || process.write_all(&[0; 1 << 20]));
    tokio::task::yield_now().await;
    io.process_ended();
    io.finish(Duration::from_millis(50)).await;
    // The pipe broke when the copy was given up.
    assert!(flood.await.unwrap().is_err());
    assert!(io.lock().holds.is_empty());
}

#[tokio::test]
async fn a_file_is_written_by_the_process_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let wanted = Wanted {
        stdout: format!("file://{}", path.display()),
        ..Wanted::default()
    };
    let io = ProcessIo::open(wanted, "ns", "id").await.unwrap();
    out(io.attach().unwrap()).write_all(b"line\n").unwrap();
    io.process_ended();
    assert_eq!(std::fs::read(&path).unwrap(), b"line\n");
    assert!(io.attach().is_err());
}

#[tokio::test]
async fn a_logging_program_gets_both_outputs_and_the_names() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("logger");
    let log = dir.path().join("log");
    let script = format!(
        "#!/bin/sh\nexec 5>&-\necho \"$CONTAINER_NAMESPACE/$CONTAINER_ID $1=$2\" >{0}\ncat <&3 >>{0}\ncat <&4 >>{0}\necho end >>{0}\n",
        log.display()
    );
    std::fs::write(&program, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&program, mode).unwrap();
    let uri = format!("binary://{}?k=v", program.display());
    let wanted = Wanted {
        stdout: uri.clone(),
        stderr: uri,
        ..Wanted::default()
    };
    let io = ProcessIo::open(wanted, "ns", "id").await.unwrap();
    out(io.attach().unwrap()).write_all(b"hello\n").unwrap();
    io.process_ended();
    let mut written = String::new();
    for _ in 0..500 {
        written = std::fs::read_to_string(&log).unwrap_or_default();
        if written.ends_with("end\n") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(written, "ns/id k=v\nhello\nend\n");
}
