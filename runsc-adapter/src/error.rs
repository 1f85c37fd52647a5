//! What can go wrong with a runsc command, as a closed set.
//!
//! runsc reports failures as text only. [`Failure::classify`] is the one place that reads that text; its fixtures were
//! recorded from release 20260905. Values that runsc prints from a container's spec may be secrets of the workload and
//! never get into a [`Failure`].

use std::path::PathBuf;
use std::time::Duration;

/// Longest message that is passed on; runsc's may hold whole specs and stack traces.
const MAX_MESSAGE: usize = 400;

/// A runsc command that failed.
#[derive(Debug, thiserror::Error)]
#[error("runsc {verb} {id}: {failure}")]
pub struct RunscError {
    /// The subcommand.
    pub verb: &'static str,
    /// The container's id, or the file that the command was about.
    pub id: String,
    /// What went wrong.
    pub failure: Failure,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// runsc knows no such container.
    #[error("container does not exist")]
    NotFound,
    /// A container of this id exists.
    #[error("container already exists")]
    AlreadyExists,
    /// The id is a prefix of several containers' ids, none of which it equals.
    #[error("id is ambiguous")]
    Ambiguous,
    /// The container's state does not allow the command.
    #[error("container is in state {state}")]
    WrongState {
        /// As runsc names it: creating, created, running, paused, stopped, restoring, not started.
        state: String,
    },
    /// The container lives but the process that was meant does not.
    #[error("no such process")]
    NoSuchProcess,
    /// The snapshot cannot be restored into this sandbox.
    #[error("snapshot refused: {0}")]
    RestoreRefused(Refusal),
    /// An earlier start left its filestore in the root filesystem.
    #[error("filestore {name} of an earlier start is in {}", dir.display())]
    FilestoreLeftover {
        /// The directory.
        dir: PathBuf,
        /// `.gvisor.filestore.<sandbox id>`.
        name: String,
    },
    /// The sandbox ended and took the container's exit status with it.
    #[error("sandbox is gone and the exit status with it")]
    StatusLost,
    /// The sandbox process ended during the command, or its control socket answers no more.
    #[error("sandbox died: {0}")]
    Died(String),
    /// The image directory is in use or holds a snapshot already.
    #[error("image directory already holds a snapshot")]
    ImageExists,
    /// Killed at its time limit.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// runsc could not be run.
    #[error("cannot run {}: {source}", binary.display())]
    Spawn {
        /// The binary.
        binary: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// runsc succeeded but printed something else than expected.
    #[error("answer not understood: {0}")]
    Answer(String),
    /// What it was given is not what the command takes.
    #[error("{0}")]
    BadInput(String),
    /// Anything else, in runsc's words.
    #[error("{0}")]
    Other(String),
}

/// Why gVisor would not restore a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Saved by another runsc build.
    #[error("runsc version differs: saved by {saved}, this is {current}")]
    Version {
        /// The saver's version.
        saved: String,
        /// The version that created this sandbox.
        current: String,
    },
    /// The host lacks CPU features that the saved kernel uses.
    #[error("CPU lacks {}", missing.join(", "))]
    CpuFeatures {
        /// Sorted names.
        missing: Vec<String>,
    },
    /// A field of the OCI spec differs. Values are not given, they may be secrets.
    #[error("spec field {field} of container {container} differs")]
    Spec {
        /// gVisor's name of the field.
        field: String,
        /// gVisor's name of the container.
        container: String,
    },
    /// The snapshot has no container of this name, or the containers came in a way that does not fit.
    #[error("snapshot holds other containers: {0}")]
    Containers(String),
    /// Saved with another kind of network.
    #[error("network mode differs")]
    Network,
    /// Overlay, volumes or file access are configured in another way than at the save.
    #[error("file system configuration differs")]
    Configuration,
    /// A file that the snapshot holds open is missing or has another type.
    #[error("files differ from those at the save: {0}")]
    Files(String),
    /// The snapshot has a terminal or stream that this container lacks.
    #[error("standard streams differ")]
    Streams,
    /// The image directory has no readable snapshot.
    #[error("no readable snapshot in the image directory")]
    NoImage,
    /// The saved state does not decode, or its pages could not be loaded.
    #[error("saved state is damaged: {0}")]
    Damaged(String),
    /// The lander could not be started or went away.
    #[error("checkpoint gofer failed: {0}")]
    Gofer(String),
    /// GPU or CPU count do not fit.
    #[error("hardware differs: {0}")]
    Hardware(String),
    /// The save/restore helper inside the sandbox failed.
    #[error("save/restore helper failed")]
    Helper,
}

impl Failure {
    /// Reads runsc's error text. The only place that does.
    pub fn classify(text: &str) -> Failure {
        let has = |needle: &str| text.contains(needle);
        if let Some(refusal) = refusal(text) {
            return Failure::RestoreRefused(refusal);
        }
        if has("already has a filestore file") {
            return Failure::FilestoreLeftover {
                dir: before(text, "\" mount source already has")
                    .and_then(|head| head.rsplit('"').next())
                    .unwrap_or_default()
                    .into(),
                name: between(text, "already has a filestore file \"", "\"")
                    .unwrap_or_default()
                    .to_owned(),
            };
        }
        if has("is ambiguous and could refer to multiple containers") {
            return Failure::Ambiguous;
        }
        if has("exit status is unavailable") {
            return Failure::StatusLost;
        }
        if has("container already exists") {
            return Failure::AlreadyExists;
        }
        if has("no such process") || has("no such thread group") {
            return Failure::NoSuchProcess;
        }
        if let Some(state) = wrong_state(text) {
            return Failure::WrongState { state };
        }
        if (has("loading container")
            && (has("file does not exist") || has("no such file or directory")))
            || (has("container \"") && has("\" not found"))
            || (has("container ") && has(" does not exist"))
        {
            return Failure::NotFound;
        }
        if has("json: cannot unmarshal") {
            return Failure::BadInput(shorten(text));
        }
        if has("checkpoint failed") && has("file exists") {
            return Failure::ImageExists;
        }
        if (has("urpc method") && has("EOF"))
            || has("connecting to control server")
            || has("cannot read client sync file")
            || has("sandbox is not running")
            || has("broken pipe")
        {
            return Failure::Died(shorten(text));
        }
        Failure::Other(shorten(text))
    }
}

fn refusal(text: &str) -> Option<Refusal> {
    let has = |needle: &str| text.contains(needle);
    if has("runsc version does not match across checkpoint restore") {
        return Some(Refusal::Version {
            saved: between(text, "checkpoint: ", " ").unwrap_or("?").to_owned(),
            current: text
                .split("current: ")
                .nth(1)
                .and_then(|t| t.split_whitespace().next())
                .unwrap_or("?")
                .to_owned(),
        });
    }
    if has("incompatible FeatureSet") {
        let mut missing: Vec<String> = between(text, "missing features: map[", "]")
            .unwrap_or_default()
            .split_whitespace()
            .map(|f| f.trim_end_matches(":{}").to_owned())
            .collect();
        missing.sort();
        return Some(Refusal::CpuFeatures { missing });
    }
    if let Some(head) = before(
        text,
        "\" does not match across checkpoint restore for container",
    ) {
        return Some(Refusal::Spec {
            field: head.rsplit('"').next().unwrap_or_default().to_owned(),
            container: between(text, "checkpoint restore for container: \"", "\"")
                .unwrap_or_default()
                .to_owned(),
        });
    }
    if let Some(name) = between(
        text,
        "checkpoint image does not contain spec for container: \"",
        "\"",
    ) {
        return Some(Refusal::Containers(format!("no container {name}")));
    }
    if has("already restored") || has("already belongs to container") {
        return Some(Refusal::Containers("a container was restored twice".into()));
    }
    if has("networking cannot be restored with") || has("checkpoint not supported when using") {
        return Some(Refusal::Network);
    }
    if has("not found in CtxMemoryFileMap") || has("inconsistent private memory files on restore") {
        return Some(Refusal::Configuration);
    }
    if has("no server FD available")
        || has("no image FD available")
        || has("superblock mismatch")
        || has("failed to initialize client and get root in mount")
    {
        return Some(Refusal::Configuration);
    }
    if has("vfs.CompleteRestore() failed") {
        // `failed to walk "<path>" of type 0100000 in mount ...: <reason>`; a path in the image is no secret.
        let path = between(text, "failed to walk \"", "\"").unwrap_or("?");
        return Some(Refusal::Files(format!("cannot open {path:?} again")));
    }
    if has("no host FD available for") {
        return Some(Refusal::Streams);
    }
    if has("nvidia driver version changed")
        || has("can't remap")
        || has("heterogeneous GPUs")
        || has("can't increase ApplicationCores")
    {
        return Some(Refusal::Hardware(shorten(text)));
    }
    if has("failed to start checkpoint gofer")
        || has("sidecar binary \"checkpointgofer\" not found")
        || has("flipcall connection shutdown")
    {
        return Some(Refusal::Gofer(shorten(text)));
    }
    if has("opening state file") {
        return Some(Refusal::NoImage);
    }
    if has("post restore work failed") || has("save/restore binary is already set") {
        return Some(Refusal::Helper);
    }
    if has("failed to load kernel")
        || has("async MemoryFile loading failed")
        || has("failed to load private memory files")
        || has("RestoreSubcontainer failed")
    {
        return Some(Refusal::Damaged(shorten(text)));
    }
    None
}

fn wrong_state(text: &str) -> Option<String> {
    // `cannot <action> container "<id>" in state <state>`, or the loader's `...: state=<state>`.
    let word = |s: &str| {
        s.split(|c: char| !c.is_ascii_alphanumeric())
            .next()
            .filter(|w| !w.is_empty())
            .map(str::to_owned)
    };
    if let Some(state) = text.split("\" in state ").nth(1).and_then(word) {
        return Some(state);
    }
    if let Some(state) = text.split("state=").nth(1).and_then(word) {
        return Some(state);
    }
    if text.contains("that is not stopped without --force flag") {
        return Some("running".into());
    }
    if text.contains("container \"") && text.contains("\" not started") {
        return Some("not started".into());
    }
    None
}

fn before<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.find(mark).map(|at| &text[..at])
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let rest = &text[text.find(open)? + open.len()..];
    Some(rest.find(close).map_or(rest, |end| &rest[..end]))
}

/// The first line without control characters, cut to a length that fits an event.
fn shorten(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let clean: String = line.chars().filter(|c| !c.is_control()).collect();
    if clean.is_empty() {
        return "failed without a message".into();
    }
    match clean.char_indices().nth(MAX_MESSAGE) {
        None => clean,
        Some((end, _)) => format!("{}...", &clean[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_refusals_are_told_apart_and_values_never_shown() {
        let cases: &[(&str, Refusal)] = &[
            (
                "starting container: restoring container \"v1\": runsc version does not match across checkpoint restore, checkpoint: release-20260905.0-thaw current: release-20260901.0",
                Refusal::Version {
                    saved: "release-20260905.0-thaw".into(),
                    current: "release-20260901.0".into(),
                },
            ),
            (
                "starting container: restoring container \"v1\": failed to load kernel: incompatible FeatureSet: missing features: map[avx512f:{} amx_tile:{}]",
                Refusal::CpuFeatures {
                    missing: vec!["amx_tile".into(), "avx512f".into()],
                },
            ),
            (
                "starting container: restoring container \"v1\": failed to handle restore spec validation: failed to validate restore spec: failed to validate spec for container \"__no_name_0\": \"Args\" does not match across checkpoint restore for container: \"__no_name_0\", checkpoint []string{\"sleep\", \"--token=s3cret\"} restore []string{\"sleep\"}, got error length mismatch",
                Refusal::Spec {
                    field: "Args".into(),
                    container: "__no_name_0".into(),
                },
            ),
            (
                "starting container: starting sub-container [sh]: failed to handle restore spec validation: failed to validate restore spec: checkpoint image does not contain spec for container: \"c3\"",
                Refusal::Containers("no container c3".into()),
            ),
            (
                "starting container: restoring container \"v1\": checkpoint created with sandbox networking cannot be restored with host networking",
                Refusal::Network,
            ),
            (
                "starting container: restoring container \"v1\": failed to load kernel: Memory file for \"__no_name_0:/\" not found in CtxMemoryFileMap",
                Refusal::Configuration,
            ),
            (
                "starting container: restoring container \"v1\": failed to load kernel: vfs.CompleteRestore() failed: failed to complete restore for filesystem type \"9p\": failed to walk \"a\" of type 0100000 in mount \"__no_name_0:/vol\": no such file or directory",
                Refusal::Files("cannot open \"a\" again".into()),
            ),
            (
                "starting container: starting sub-container [sh]: failed to load kernel: error executing callbacks: no host FD available for \"c1:host:0\"",
                Refusal::Streams,
            ),
            (
                "starting container: restoring container \"v1\": opening state file \"/d/checkpoint.img\" failed: open /d/checkpoint.img: no such file or directory",
                Refusal::NoImage,
            ),
            (
                "starting container: restoring container \"v1\": container \"c1\" already restored",
                Refusal::Containers("a container was restored twice".into()),
            ),
        ];
        for (text, want) in cases {
            match Failure::classify(text) {
                Failure::RestoreRefused(got) => assert_eq!(got, *want, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
            assert!(!Failure::classify(text).to_string().contains("s3cret"));
        }
    }

    #[test]
    fn recorded_failures_are_told_apart() {
        let name = |text: &str| {
            let failure = format!("{:?}", Failure::classify(text));
            failure
                .split(|c: char| !c.is_ascii_alphanumeric())
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        for (text, want) in [
            ("loading container: file does not exist", "NotFound"),
            ("container \"c1\" not found", "NotFound"),
            (
                "creating container: container already exists",
                "AlreadyExists",
            ),
            (
                "FetchSpec failed: loading container: id \"p1\" is ambiguous and could refer to multiple containers: \"p1/p1\", {\"p1\" \"p1c1\"}",
                "Ambiguous",
            ),
            (
                "cannot start container \"x\" in state stopped",
                "WrongState",
            ),
            (
                "starting container: cannot restore container \"X\" in state running",
                "WrongState",
            ),
            (
                "starting container: starting sub-container [sh]: sandbox is not in started state, cannot start subcontainer: state=created",
                "WrongState",
            ),
            (
                "cannot delete container that is not stopped without --force flag",
                "WrongState",
            ),
            (
                "executing command \"ps\" in sandbox: container \"q1\" not started",
                "WrongState",
            ),
            (
                "signaling process in container \"c1\" PID 0: no such process with PID 0",
                "NoSuchProcess",
            ),
            (
                "waiting on container \"X\": sandbox no longer running and its exit status is unavailable",
                "StatusLost",
            ),
            (
                "starting container: restoring container \"v1\": urpc method \"containerManager.Restore\" failed: EOF",
                "Died",
            ),
            (
                "cannot create sandbox: cannot read client sync file: waiting for sandbox to start: EOF",
                "Died",
            ),
            (
                "waiting for restore to complete: connecting to control server at PID 7: connection refused",
                "Died",
            ),
            (
                "checkpoint failed: creating checkpoint state file \"/d/checkpoint.img\": open /d/checkpoint.img: file exists",
                "ImageExists",
            ),
            ("something new", "Other"),
        ] {
            assert_eq!(name(text), want, "{text}");
        }
    }

    #[test]
    fn a_leftover_filestore_is_named() {
        let text = "starting container: creating gofer filestore files: \"/b/rootfs\" mount source already has a filestore file \".gvisor.filestore.sb\"; repeated submounts are not supported with overlay optimizations";
        match Failure::classify(text) {
            Failure::FilestoreLeftover { dir, name } => {
                assert_eq!(dir, PathBuf::from("/b/rootfs"));
                assert_eq!(name, ".gvisor.filestore.sb");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn long_texts_are_cut_to_one_clean_line() {
        let text = format!("a\u{7}b{}\nstack", "x".repeat(2000));
        let Failure::Other(message) = Failure::classify(&text) else {
            panic!()
        };
        assert!(message.starts_with("abx") && message.ends_with("...") && message.len() < 500);
    }
}
