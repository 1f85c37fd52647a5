//! Streams of a script's processes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Output, Stage, name};
use crate::mock::calls::Streams;
use crate::mock::error::MockError;

/// For output that is awaited.
const PATIENCE: Duration = Duration::from_secs(10);

impl Stage {
    /// Makes FIFOs for a process and reads its output from now on. A terminal has no standard error.
    pub(super) fn streams(
        &mut self,
        name: &str,
        terminal: bool,
        stdin: bool,
    ) -> Result<(Streams, Output), MockError> {
        self.fifos += 1;
        let prefix = format!("{}-{}", self.fifos, name.replace('/', "-"));
        let fifo = |stream: &str| self.mock.fifo(&format!("{prefix}-{stream}"));
        let stdout = fifo("stdout")?;
        let stderr = if terminal {
            None
        } else {
            Some(fifo("stderr")?)
        };
        let stdin = if stdin { Some(fifo("stdin")?) } else { None };
        let shown = |path: &Option<PathBuf>| {
            path.as_ref()
                .map(|path| path.display().to_string())
                .unwrap_or_default()
        };
        let streams = Streams {
            stdin: shown(&stdin),
            stdout: stdout.display().to_string(),
            stderr: shown(&stderr),
            terminal,
        };
        let open = |path: &PathBuf| self.mock.read(path);
        let output = Output {
            stdout: open(&stdout)?,
            stderr: stderr.as_ref().map(open).transpose()?,
            stdin,
        };
        Ok((streams, output))
    }

    /// Where a process's standard input is.
    pub fn stdin_path(&self, id: &str, exec: &str) -> Option<&Path> {
        self.output_of(id, exec)?.stdin.as_deref()
    }

    fn output_of(&self, id: &str, exec: &str) -> Option<&Output> {
        match exec {
            "" => self.member(id).output.as_ref(),
            _ => self.exec_output.get(&name(id, exec)),
        }
    }

    /// What a process wrote, up to its end.
    pub fn output(&mut self, id: &str, exec: &str) {
        let line = match self.output_of(id, exec) {
            None => "not read".to_owned(),
            Some(output) => {
                let both = std::iter::once(&output.stdout).chain(&output.stderr);
                let texts: Vec<String> = both
                    .map(|collector| match collector.wait_end(PATIENCE) {
                        true => format!("{:?}", collector.text()),
                        false => format!("does not end after {:?}", collector.text()),
                    })
                    .collect();
                texts.join(" and ")
            }
        };
        self.note(format!("output of {}: {line}", name(id, exec)));
    }

    /// Waits until a process has written this to its standard output.
    pub fn output_has(&mut self, id: &str, exec: &str, text: &str) {
        let bytes = text.as_bytes();
        let has = self.output_of(id, exec).is_some_and(|output| {
            output.stdout.wait_until(PATIENCE, |seen, _| {
                seen.windows(bytes.len()).any(|part| part == bytes)
            })
        });
        let verb = if has { "has" } else { "lacks" };
        self.note(format!("output of {} {verb} {text:?}", name(id, exec)));
    }
}
