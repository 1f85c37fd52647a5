//! Writing down starts and wake-ups.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const SPEC_ENVIRON: &str = "/proc/gvisor/spec_environ";

/// Appends `<what> <random id>` to the log.
pub(crate) fn append(log: &Path, what: &str) {
    let line = format!("{what} {}\n", random_id());
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .open(log)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(e) = written {
        // A run that cannot be written down must not go unnoticed.
        eprintln!("thaw-guest: cannot append to {}: {e}", log.display());
        std::process::exit(3);
    }
}

/// Watches on a thread, without ever sleeping, for the sandbox to be another one: the loop's next step after a restore
/// is the one that writes.
pub(crate) fn watch(log: PathBuf) {
    let Ok(mut known) = std::fs::read(SPEC_ENVIRON) else {
        return;
    };
    std::thread::spawn(move || {
        loop {
            match std::fs::read(SPEC_ENVIRON) {
                Ok(now) if now != known => {
                    append(&log, "wake");
                    known = now;
                }
                _ => std::thread::yield_now(),
            }
        }
    });
}

fn random_id() -> String {
    let mut bytes = [0; 8];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    if let Err(e) = read {
        eprintln!("thaw-guest: cannot read /dev/urandom: {e}");
        std::process::exit(3);
    }
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
