//! Running a command with a time limit and its output kept.

use std::fmt;
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use thiserror::Error;

/// What a finished command left.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command as typed.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// From start to end.
    pub took: Duration,
}

impl Output {
    /// Whether it ended with status 0.
    pub fn ok(&self) -> bool {
        self.status.success()
    }

    /// Itself if it ended with status 0, else an error that shows everything.
    pub fn success(self) -> Result<Output, CommandError> {
        if self.ok() {
            Ok(self)
        } else {
            Err(CommandError::Failed(Box::new(self)))
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} after {} ms",
            self.command,
            self.status,
            self.took.as_millis()
        )?;
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.trim().is_empty() {
                write!(f, "\n  {name}: {}", text.trim_end().replace('\n', "\n    "))?;
            }
        }
        Ok(())
    }
}

/// Why a command gave no result.
#[derive(Debug, Error)]
pub enum CommandError {
    /// It could not be started or awaited.
    #[error("cannot run {command}: {source}")]
    Run {
        /// The command as typed.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended with another status than 0.
    #[error("{0}")]
    Failed(Box<Output>),
    /// It was killed at its time limit.
    #[error("{0}\n  it was killed at its time limit")]
    Late(Box<Output>),
}

/// The same for commands whose output is no text.
#[derive(Debug, Clone)]
pub struct Raw {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// From start to end.
    pub took: Duration,
    /// It was killed at its time limit.
    pub late: bool,
}

/// Runs a command to its end, at most for `limit`, then kills it. Standard input is empty.
///
/// Its output is read until the command ends and not until the pipes close: a child that outlives it may keep them.
pub fn run(command: &mut Command, limit: Duration) -> Result<Output, CommandError> {
    let raw = run_raw(command, &[], limit)?;
    let output = Output {
        command: describe(command),
        status: raw.status,
        stdout: String::from_utf8_lossy(&raw.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&raw.stderr).into_owned(),
        took: raw.took,
    };
    if raw.late {
        return Err(CommandError::Late(Box::new(output)));
    }
    Ok(output)
}

/// The same with something on standard input and output that need not be text. Reaching the limit is no error here.
pub fn run_raw(command: &mut Command, input: &[u8], limit: Duration) -> Result<Raw, CommandError> {
    let text = describe(command);
    let fail = |source| CommandError::Run {
        command: text.clone(),
        source,
    };
    let started = Instant::now();
    let out = tempfile::tempfile().map_err(fail)?;
    let err = tempfile::tempfile().map_err(fail)?;
    let stdin = if input.is_empty() {
        Stdio::null()
    } else {
        let mut file = tempfile::tempfile().map_err(fail)?;
        io::Write::write_all(&mut file, input).map_err(fail)?;
        io::Seek::rewind(&mut file).map_err(fail)?;
        file.into()
    };
    let mut child = command
        .stdin(stdin)
        .stdout(out.try_clone().map_err(fail)?)
        .stderr(err.try_clone().map_err(fail)?)
        .spawn()
        .map_err(fail)?;
    let mut late = false;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(fail)? {
            break status;
        }
        if started.elapsed() > limit {
            late = true;
            child.kill().map_err(fail)?;
            break child.wait().map_err(fail)?;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = started.elapsed();
    let read = |mut file: std::fs::File| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut file)?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    Ok(Raw {
        status,
        stdout: read(out).map_err(fail)?,
        stderr: read(err).map_err(fail)?,
        took,
        late,
    })
}

fn describe(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let name = program.rsplit('/').next().unwrap_or(&program).to_owned();
    command.get_args().fold(name, |text, argument| {
        format!("{text} {}", argument.to_string_lossy())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_are_kept() {
        let output = run(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Duration::from_secs(10),
        )
        .unwrap();
        assert_eq!((output.stdout.trim(), output.stderr.trim()), ("out", "err"));
        assert_eq!(output.status.code(), Some(3));
        let error = output.success().unwrap_err().to_string();
        assert!(
            error.contains("exit 3") && error.contains("stderr: err"),
            "{error}"
        );
    }

    #[test]
    fn a_command_is_killed_at_its_limit() {
        let error = run(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, CommandError::Late(_)), "{error}");
    }
}
