//! containerd's `integration/client`, which starts and restarts its own containerd.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use super::gotest::{Event, Reader};
use super::inside::{Desk, InsideError, setup};
use super::outcome::{Outcome, Status};
use super::suite::Shim;

pub(super) fn run(desk: &mut Desk) -> Result<(), InsideError> {
    let images = desk.places.tmp().join("images.toml");
    std::fs::write(
        &images,
        format!("BusyBoxByDigest = \"{}\"\n", desk.job.by_digest.busybox),
    )
    .map_err(setup("write the list of images"))?;
    let mut child = desk
        .command("client.test")
        .current_dir(desk.places.tmp())
        .env("TEST_RUNTIME", desk.job.shim.runtime())
        // Three tests make runc itself fail, and are skipped for others.
        .env(
            "RUNC_FLAVOR",
            if desk.job.shim == Shim::Runc {
                "runc"
            } else {
                "runsc"
            },
        )
        .env("TEST_IMAGE_LIST", &images)
        .env("HTTP_PROXY", format!("http://{}", desk.registry))
        // CRIU is runc's way to checkpoint.
        .args(["-test.root", "-no-criu"])
        .args(["-test.v=test2json", "-test.parallel=1", "-test.timeout=0"])
        .arg(format!("-test.run=^({})$", desk.job.tests.join("|")))
        .stdout(Stdio::piped())
        .stderr(desk.log("containerd.log")?)
        .spawn()
        .map_err(setup("start client.test"))?;
    let Some(stdout) = child.stdout.take() else {
        return Ok(());
    };
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { break };
            if send
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                break;
            }
        }
    });
    follow(desk, &lines)
    // A suite that hangs is killed with its world.
}

/// Writes results down until the suite ends or stalls.
fn follow(desk: &mut Desk, lines: &mpsc::Receiver<String>) -> Result<(), InsideError> {
    let mut log = desk.log("suite.log")?;
    let mut reader = Reader::default();
    let mut last = Instant::now();
    let why = loop {
        let line = match lines.recv_timeout(desk.job.stall.saturating_sub(last.elapsed())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break "the suite ended in this test".to_owned(),
            Err(RecvTimeoutError::Timeout) => {
                break format!("no sign of life for {} s", desk.job.stall.as_secs());
            }
        };
        std::io::Write::write_all(&mut log, format!("{line}\n").as_bytes())
            .map_err(setup("write the suite's log"))?;
        for event in reader.line(&line) {
            last = Instant::now();
            if let Event::Ended(outcome) = event {
                tell(desk, &outcome)?;
            }
        }
    };
    if let Some(outcome) = reader.unfinished(&why) {
        tell(desk, &outcome)?;
    }
    Ok(())
}

fn tell(desk: &mut Desk, outcome: &Outcome) -> Result<(), InsideError> {
    let verb = match outcome.status {
        Status::Passed => "passed",
        Status::Failed => "FAILED",
        Status::Skipped => "skipped",
    };
    desk.say(&format!(
        "{verb:7} {} ({:.1} s)",
        outcome.name, outcome.seconds
    ));
    desk.put(outcome)
}
