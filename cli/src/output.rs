//! What people and programs get to read.

use std::io::{ErrorKind, IsTerminal, Write};

use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

/// Prints one JSON value.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Prints text and a newline.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}

/// Prints columns under their heads.
pub(crate) fn table<const N: usize>(
    heads: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    let mut table = plain();
    table.set_header(heads);
    for row in rows {
        table.add_row(row.map(|cell| clean(&cell)));
    }
    text(&trim(&table))
}

/// Prints names and values; empty values are left out.
pub(crate) fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> anyhow::Result<()> {
    let mut table = plain();
    for (name, value) in pairs {
        if !value.is_empty() {
            table.add_row([name.to_owned(), clean(&value)]);
        }
    }
    text(&trim(&table))
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    // Lines are folded for people, never for programs.
    table.set_content_arrangement(if std::io::stdout().is_terminal() {
        ContentArrangement::Dynamic
    } else {
        ContentArrangement::Disabled
    });
    table
}

fn trim(table: &Table) -> String {
    table
        .lines()
        .map(|line| {
            line.strip_prefix(' ')
                .unwrap_or(&line)
                .trim_end()
                .to_owned()
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// Without what a terminal would obey: names come from images and stores.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c == '\n' || c == '\t' { ' ' } else { c })
        .filter(|c| !c.is_control())
        .collect()
}

/// `172.4 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `412 ms` or `3.1 s`.
pub(crate) fn millis(n: u64) -> String {
    if n < 1000 {
        format!("{n} ms")
    } else {
        format!("{:.1} s", n as f64 / 1000.0)
    }
}

/// As much of an id as people need; `thaw show` takes it.
pub(crate) fn short(id: &str) -> String {
    id.chars().take(12).collect()
}

/// An error and its causes in one line; messages often contain their cause already.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|c| c.to_string()) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    clean(&text)
}

pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(172 << 20), "172.0 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(millis(412), "412 ms");
        assert_eq!(millis(3_140), "3.1 s");
        assert_eq!(short("0123456789abcdef"), "0123456789ab");
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = || std::io::Error::other("no room");
        let error = anyhow::Error::new(cause()).context("cannot write f: no room");
        assert_eq!(sentence(&error), "cannot write f: no room");
        let error = anyhow::Error::new(cause()).context("cannot write f");
        assert_eq!(sentence(&error), "cannot write f: no room");
    }

    #[test]
    fn nothing_reaches_the_terminal_that_it_would_obey() {
        assert_eq!(clean("a\u{1b}[2Jb\nc"), "a[2Jb c");
    }
}
