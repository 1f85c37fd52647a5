//! Reading what a Go test binary prints with `-test.v=test2json`, line by line as it comes.

use super::outcome::{Outcome, Status};

/// Marks where the test framework itself speaks, also in the middle of a line.
const MARK: char = '\u{16}';
/// Lines kept of each test's output: the last ones tell why it failed.
const KEPT: usize = 40;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Event {
    /// A test runs from now on.
    Running(String),
    /// A test ended.
    Ended(Outcome),
}

/// Reads a test binary's output.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The test whose output comes next.
    current: Option<String>,
    /// Tests that were started and have not ended, with their last lines.
    open: Vec<(String, Vec<String>)>,
}

impl Reader {
    /// Takes one line without its end.
    pub(super) fn line(&mut self, line: &str) -> Vec<Event> {
        let mut events = Vec::new();
        for (i, part) in line.split(MARK).enumerate() {
            // Before the first mark the tests themselves speak.
            if i == 0 || !self.framework(part, &mut events) {
                self.output(part);
            }
        }
        events
    }

    /// The tests that never ended, as failures: the one that ran last, if any did.
    pub(super) fn unfinished(&mut self, why: &str) -> Option<Outcome> {
        let current = self.current.take()?;
        let lines = self.close(&current)?;
        Some(Outcome {
            name: current,
            status: Status::Failed,
            seconds: 0.0,
            detail: format!("{}\n{why}", lines.join("\n")).trim().to_owned(),
        })
    }

    fn framework(&mut self, part: &str, events: &mut Vec<Event>) -> bool {
        let text = part.trim_start();
        for mark in ["=== RUN ", "=== CONT ", "=== NAME "] {
            let Some(name) = text.strip_prefix(mark) else {
                continue;
            };
            let name = name.trim().to_owned();
            if name.is_empty() {
                self.current = None;
                return true;
            }
            if !self.open.iter().any(|(open, _)| *open == name) {
                self.open.push((name.clone(), Vec::new()));
            }
            self.current = Some(name.clone());
            if mark != "=== NAME " {
                events.push(Event::Running(name));
            }
            return true;
        }
        if text.starts_with("=== PAUSE") {
            self.current = None;
            return true;
        }
        match ended(text) {
            Some((status, name, seconds)) => {
                let lines = self.close(&name).unwrap_or_default();
                if self.current.as_ref() == Some(&name) {
                    self.current = None;
                }
                events.push(Event::Ended(Outcome {
                    name,
                    status,
                    seconds,
                    detail: lines.join("\n"),
                }));
                true
            }
            None => false,
        }
    }

    fn output(&mut self, text: &str) {
        let text = text.trim();
        // The client library's debugging says too much; it is in the suite's log.
        if text.is_empty() || text.starts_with("log_hook.go:") {
            return;
        }
        let Some(current) = &self.current else {
            return;
        };
        if let Some((_, lines)) = self.open.iter_mut().find(|(name, _)| name == current) {
            lines.push(text.to_owned());
            if lines.len() > KEPT {
                lines.remove(0);
            }
        }
    }

    fn close(&mut self, name: &str) -> Option<Vec<String>> {
        let at = self.open.iter().position(|(open, _)| open == name)?;
        Some(self.open.remove(at).1)
    }
}

/// `--- PASS: TestX (0.01s)`.
fn ended(text: &str) -> Option<(Status, String, f64)> {
    let (status, rest) = [
        ("--- PASS: ", Status::Passed),
        ("--- FAIL: ", Status::Failed),
        ("--- SKIP: ", Status::Skipped),
    ]
    .iter()
    .find_map(|(mark, status)| Some((*status, text.strip_prefix(mark)?)))?;
    let (name, took) = rest.trim_end().rsplit_once(" (")?;
    let seconds = took.strip_suffix("s)")?.parse().ok()?;
    Some((status, name.to_owned(), seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Reader, Vec<Outcome>) {
        let mut reader = Reader::default();
        let mut ended = Vec::new();
        for line in text.lines() {
            for event in reader.line(line) {
                if let Event::Ended(outcome) = event {
                    ended.push(outcome);
                }
            }
        }
        (reader, ended)
    }

    #[test]
    fn results_come_with_their_output() {
        let (_, ended) = read(concat!(
            "noise before\n",
            "\u{16}=== RUN   TestA\n",
            "\u{16}=== RUN   TestA/sub\n",
            "    a_test.go:1: bad\n",
            "no newline\u{16}    --- FAIL: TestA/sub (0.25s)\n",
            "\u{16}=== NAME  TestA\n",
            "\u{16}--- FAIL: TestA (1.50s)\n",
            "\u{16}=== RUN   TestB\n",
            "    b_test.go:2: not here\n",
            "\u{16}--- SKIP: TestB (0.00s)\n",
        ));
        assert_eq!(ended.len(), 3);
        assert_eq!(
            (ended[0].name.as_str(), ended[0].status, ended[0].seconds),
            ("TestA/sub", Status::Failed, 0.25)
        );
        assert_eq!(ended[0].detail, "a_test.go:1: bad\nno newline");
        assert_eq!(ended[1].name, "TestA");
        assert_eq!(
            (ended[2].status, ended[2].detail.as_str()),
            (Status::Skipped, "b_test.go:2: not here")
        );
    }

    #[test]
    fn what_never_ended_has_failed() {
        let (mut reader, ended) = read(concat!(
            "\u{16}=== RUN   TestPaused\n",
            "\u{16}=== PAUSE TestPaused\n",
            "\u{16}=== RUN   TestHangs\n",
            "    h_test.go:1: waiting\n",
        ));
        assert!(ended.is_empty());
        let outcome = reader.unfinished("killed").unwrap();
        assert_eq!(outcome.name, "TestHangs");
        assert_eq!(outcome.detail, "h_test.go:1: waiting\nkilled");
        assert!(reader.unfinished("killed").is_none());
    }
}
