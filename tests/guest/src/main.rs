//! The program inside test containers: fills memory with seeded data, hashes it anew on each request, and writes down
//! each of its starts and wake-ups.
//!
//! `thaw-guest [--mib N] [--seed S] [--port P] [--log FILE] [--page TEXT] [--pid-file FILE]`, or
//! `thaw-guest --effective-uid` to print that and end, or `thaw-guest --pause` to do nothing for ever
//!
//! | request | answer |
//! |---|---|
//! | `/hash` | XXH3-128 of the data, computed now, in hex |
//! | `/count` | how often this was asked, from 1 |
//! | `/env` | the environment that the program was started with, one `NAME=value` per line |
//! | `/args` | the arguments, one per line |
//! | `/` | the text of `--page` |
//!
//! With `--log` it appends `start <id>` to FILE as its first act, and `wake <id>` as soon as it runs in a restored
//! sandbox; each id is 16 random hex digits. A restore is noticed by the environment that gVisor shows in
//! `/proc/gvisor/spec_environ`, which is the new container's, so each start must be given a HOSTNAME of its own. FILE is
//! opened for each line: nothing in its volume is held open by a snapshot.

mod data;
mod serve;
mod wake;

use std::path::PathBuf;

struct Arguments {
    mib: usize,
    seed: u64,
    port: u16,
    log: Option<PathBuf>,
    page: Option<String>,
    pid_file: Option<PathBuf>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments {
        mib: 16,
        seed: 1,
        port: 8000,
        log: None,
        page: None,
        pid_file: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name} wants a value"))?;
        let bad = |_| format!("{name} {value} is not a number");
        match name.as_str() {
            "--mib" => parsed.mib = value.parse().map_err(bad)?,
            "--seed" => parsed.seed = value.parse().map_err(bad)?,
            "--port" => parsed.port = value.parse().map_err(bad)?,
            "--log" => parsed.log = Some(value.into()),
            "--page" => parsed.page = Some(value),
            "--pid-file" => parsed.pid_file = Some(value.into()),
            _ => return Err(format!("unknown argument {name}")),
        }
    }
    Ok(parsed)
}

/// What `--effective-uid` prints; the kernel lists the real, effective, saved and file system user.
fn effective_uid() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    Some(format!(
        "Effective uid: {}",
        users.split_whitespace().nth(1)?
    ))
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--effective-uid") => match effective_uid() {
            Some(text) => return println!("{text}"),
            None => std::process::exit(1),
        },
        Some("--pause") => loop {
            std::thread::park();
        },
        _ => {}
    }
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(e) => {
            eprintln!("thaw-guest: {e}");
            std::process::exit(2);
        }
    };
    if let Some(log) = arguments.log {
        wake::append(&log, "start");
        wake::watch(log);
    }
    if let Some(file) = arguments.pid_file
        && let Err(e) = std::fs::write(&file, format!("{}\n", std::process::id()))
    {
        eprintln!("thaw-guest: {}: {e}", file.display());
        std::process::exit(1);
    }
    let data = data::fill(arguments.mib, arguments.seed);
    if let Err(e) = serve::serve(arguments.port, &data, arguments.page.as_deref()) {
        eprintln!("thaw-guest: port {}: {e}", arguments.port);
        std::process::exit(1);
    }
}
