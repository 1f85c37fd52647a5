//! The sidecar's command line as runsc builds it (`runsc/sandbox/sandbox.go`, `maybeStartCheckpointGoferAndGetSocket`):
//! global flags in any order, the word `checkpointgofer`, the sidecar's own flags. Unknown flags are ignored on both
//! sides, since runsc passes all that it was given itself.

use std::os::fd::RawFd;

use thiserror::Error;

/// What the command line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    /// Our end of the socket to the sentry.
    pub socket: RawFd,
    /// The options file.
    pub options: RawFd,
    /// Where containerd's shims look for the error of the runsc command.
    pub log: Option<RawFd>,
    /// Where everything else goes.
    pub debug_log: Option<RawFd>,
    /// `-allow-checkpoint-reads`.
    pub reads: bool,
    /// `-allow-checkpoint-writes`.
    pub writes: bool,
}

/// A command line that runsc would not build.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ArgsError {
    /// The subcommand is not there.
    #[error("command line lacks the word checkpointgofer")]
    NoCommand,
    /// A descriptor is not named.
    #[error("flag -{0} is missing")]
    Missing(&'static str),
    /// A value is not a descriptor number or boolean.
    #[error("flag -{flag} has the bad value {value:?}")]
    Value {
        /// The flag.
        flag: String,
        /// Its value.
        value: String,
    },
    /// Neither reads nor writes of checkpoints are allowed.
    #[error("none of -allow-checkpoint-reads and -allow-checkpoint-writes is given")]
    NothingAllowed,
}

const COMMAND: &str = "checkpointgofer";

impl Args {
    /// Reads the command line without `argv[0]`.
    pub fn parse<I>(argv: I) -> Result<Args, ArgsError>
    where
        I: IntoIterator<Item = String>,
    {
        let (mut socket, mut options) = (None, None);
        let (mut log, mut debug_log) = (None, None);
        let (mut reads, mut writes) = (false, false);
        let mut command = false;
        let mut argv = argv.into_iter().peekable();
        while let Some(word) = argv.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                command |= word == COMMAND;
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let mut number = || -> Result<RawFd, ArgsError> {
                let value = match value.clone() {
                    Some(value) => value,
                    None => argv
                        .next_if(|word| !word.starts_with('-'))
                        .unwrap_or_default(),
                };
                value
                    .parse()
                    .ok()
                    .filter(|fd| *fd >= 0)
                    .ok_or(ArgsError::Value {
                        flag: name.to_owned(),
                        value,
                    })
            };
            match (command, name) {
                (false, "log-fd") => log = Some(number()?),
                (false, "debug-log-fd") => debug_log = Some(number()?),
                (true, "sock-fd") => socket = Some(number()?),
                (true, "gcs-opts-fd") => options = Some(number()?),
                (true, "allow-checkpoint-reads") => reads = boolean(name, value)?,
                (true, "allow-checkpoint-writes") => writes = boolean(name, value)?,
                _ => {}
            }
        }
        if !command {
            return Err(ArgsError::NoCommand);
        }
        if !reads && !writes {
            return Err(ArgsError::NothingAllowed);
        }
        Ok(Args {
            socket: socket.ok_or(ArgsError::Missing("sock-fd"))?,
            options: options.ok_or(ArgsError::Missing("gcs-opts-fd"))?,
            log,
            debug_log,
            reads,
            writes,
        })
    }
}

fn boolean(flag: &str, value: Option<String>) -> Result<bool, ArgsError> {
    match value.as_deref() {
        None | Some("true" | "1") => Ok(true),
        Some("false" | "0") => Ok(false),
        Some(value) => Err(ArgsError::Value {
            flag: flag.to_owned(),
            value: value.to_owned(),
        }),
    }
}

/// runsc's version out of `GVISOR_ENFORCE_RELEASE`: `V`, `SKIP:V` or `TESTONLY_SKIP:V`
/// (`runsc/gvisorbinaries`, `WithEnforceRelease`). Not enforced: this program has no gVisor build label.
pub fn runsc_version(value: &str) -> Option<String> {
    let version = ["TESTONLY_SKIP", "SKIP"]
        .iter()
        .find_map(|prefix| value.strip_prefix(prefix))
        .map_or(value, |rest| rest.strip_prefix(':').unwrap_or_default());
    (!version.is_empty()).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, ArgsError> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn runsc_command_lines_are_read() {
        assert_eq!(
            parse(
                "--root=/r --network=none --debug --log-fd=5 --debug-log-fd=6 checkpointgofer \
                 -sock-fd=3 -gcs-opts-fd=4 -allow-checkpoint-reads -new-flag=x"
            ),
            Ok(Args {
                socket: 3,
                options: 4,
                log: Some(5),
                debug_log: Some(6),
                reads: true,
                writes: false,
            })
        );
        let args = parse(
            "-x --debug-log-fd 7 checkpointgofer --sock-fd 8 --gcs-opts-fd=9 --allow-checkpoint-writes=true",
        )
        .unwrap();
        assert_eq!(
            (args.socket, args.options, args.debug_log, args.writes),
            (8, 9, Some(7), true)
        );
    }

    #[test]
    fn other_command_lines_are_refused() {
        assert_eq!(parse("-sock-fd=3"), Err(ArgsError::NoCommand));
        assert_eq!(
            parse("checkpointgofer -sock-fd=3 -gcs-opts-fd=4"),
            Err(ArgsError::NothingAllowed)
        );
        assert_eq!(
            parse("checkpointgofer -gcs-opts-fd=4 -allow-checkpoint-reads"),
            Err(ArgsError::Missing("sock-fd"))
        );
        assert_eq!(
            parse("checkpointgofer -sock-fd=3 -allow-checkpoint-reads"),
            Err(ArgsError::Missing("gcs-opts-fd"))
        );
        assert!(matches!(
            parse("checkpointgofer -sock-fd=x -allow-checkpoint-reads"),
            Err(ArgsError::Value { .. })
        ));
        // Flags before the command are runsc's own.
        assert_eq!(
            parse("-sock-fd=3 checkpointgofer -gcs-opts-fd=4 -allow-checkpoint-reads"),
            Err(ArgsError::Missing("sock-fd"))
        );
    }

    #[test]
    fn versions_are_found_in_all_forms() {
        for (value, version) in [
            ("release-20260905.0", Some("release-20260905.0")),
            ("SKIP:release-20260905.0", Some("release-20260905.0")),
            ("TESTONLY_SKIP:x", Some("x")),
            ("SKIP", None),
            ("", None),
        ] {
            assert_eq!(runsc_version(value).as_deref(), version, "{value}");
        }
    }
}
