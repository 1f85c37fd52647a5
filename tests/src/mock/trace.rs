//! What a script saw, in words that do not depend on process ids and times, and how two of them differ.

use std::fmt;

/// What a script did and was answered, and the events that came of it. Two lists, since nothing says which of a call's
/// answer and its event comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// One line per call.
    pub calls: Vec<String>,
    /// One line per event.
    pub events: Vec<String>,
}

impl Trace {
    fn lines(&self) -> Vec<String> {
        let events = self.events.iter().map(|event| format!("event: {event}"));
        self.calls.iter().cloned().chain(events).collect()
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines() {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}

/// Lines of one script in which a shim differs from the reference on purpose or by its nature: `-` and what the reference
/// says, `+` and what the shim says.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The script, or `*` for all of them.
    pub script: &'static str,
    /// Lines that always differ, none for `*`.
    pub lines: &'static [&'static str],
    /// Lines that may differ. A `*` at the end stands for anything.
    pub may: &'static [&'static str],
    /// Why that is right, or where it comes from.
    pub why: &'static str,
}

/// Compares a shim's trace to the reference's. An error shows both and every line that nobody expected to differ, and
/// every expected difference that is not there.
pub fn compare(
    script: &str,
    reference: &Trace,
    seen: &Trace,
    known: &[Difference],
) -> Result<(), String> {
    let here = known
        .iter()
        .filter(|difference| difference.script == "*" || difference.script == script);
    let mut wanted: Vec<&str> = here
        .clone()
        .flat_map(|known| known.lines)
        .copied()
        .collect();
    let may: Vec<&str> = here.flat_map(|known| known.may).copied().collect();
    let fits = |line: &str, pattern: &str| match pattern.strip_suffix('*') {
        Some(start) => line.starts_with(start),
        None => line == pattern,
    };
    let mut surprises = Vec::new();
    for line in diff(&reference.lines(), &seen.lines()) {
        match wanted.iter().position(|known| *known == line) {
            Some(at) => drop(wanted.remove(at)),
            None if may.iter().any(|pattern| fits(&line, pattern)) => {}
            None => surprises.push(line),
        }
    }
    if surprises.is_empty() && wanted.is_empty() {
        return Ok(());
    }
    let list = |title: &str, lines: &str| match lines {
        "" => String::new(),
        lines => format!("  {title}:\n    {lines}\n"),
    };
    Err(format!(
        "script {script:?} does not go as expected\n{}{}  the reference:\n{reference}  seen:\n{seen}",
        list("unexpected differences", &surprises.join("\n    ")),
        list(
            "expected differences that are not there",
            &wanted.join("\n    ")
        ),
    ))
}

/// The lines that are only in one of two lists, by their longest common subsequence.
fn diff(old: &[String], new: &[String]) -> Vec<String> {
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            i += 1;
            j += 1;
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(format!("- {}", old[i]));
            i += 1;
        } else {
            lines.push(format!("+ {}", new[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(calls: &[&str], events: &[&str]) -> Trace {
        let own = |lines: &[&str]| lines.iter().map(|l| (*l).to_owned()).collect();
        Trace {
            calls: own(calls),
            events: own(events),
        }
    }

    const KNOWN: [Difference; 2] = [
        Difference {
            script: "twice",
            lines: &["- start c: UNKNOWN", "+ start c: FAILED_PRECONDITION"],
            may: &[],
            why: "",
        },
        Difference {
            script: "*",
            lines: &[],
            may: &["- event: create*"],
            why: "",
        },
    ];

    #[test]
    fn known_differences_are_no_surprise() {
        let reference = trace(&["create c: ok", "start c: UNKNOWN"], &["create c"]);
        let seen = trace(&["create c: ok", "start c: FAILED_PRECONDITION"], &[]);
        compare("twice", &reference, &seen, &KNOWN).unwrap();
        compare("once", &reference, &reference, &KNOWN).unwrap();
    }

    #[test]
    fn surprises_and_vanished_differences_are_shown() {
        let reference = trace(&["create c: ok", "start c: UNKNOWN"], &["exit c"]);
        let error =
            compare("twice", &reference, &trace(&["create c: ok"], &[]), &KNOWN).unwrap_err();
        assert!(error.contains("- event: exit c"), "{error}");
        assert!(
            error.contains("not there:\n    + start c: FAILED_PRECONDITION"),
            "{error}"
        );
    }
}
