//! Events as containerd receives them.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use containerd_shim_protos::events::task;
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;

/// One event with what came around it.
#[derive(Debug, Clone)]
pub struct Received {
    /// e.g. `/tasks/exit`.
    pub topic: String,
    /// containerd's namespace.
    pub namespace: String,
    /// When the shim says that it happened.
    pub at: SystemTime,
    /// When it arrived here.
    pub arrived: Instant,
    /// What happened.
    pub event: Event,
}

/// What happened to a container or to a process in it. `exec` is empty for the container's own process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `TaskCreate`.
    Create {
        /// The container.
        id: String,
        /// Its process.
        pid: u32,
        /// The bundle, as in the request.
        bundle: String,
        /// How many mounts the root consists of.
        mounts: usize,
        /// Standard input, output and error, as in the request.
        io: [String; 3],
        /// With a terminal.
        terminal: bool,
    },
    /// `TaskStart`.
    Start {
        /// The container.
        id: String,
        /// Its process.
        pid: u32,
    },
    /// `TaskExecAdded`.
    ExecAdded {
        /// The container.
        id: String,
        /// The exec.
        exec: String,
    },
    /// `TaskExecStarted`.
    ExecStarted {
        /// The container.
        id: String,
        /// The exec.
        exec: String,
        /// Its process.
        pid: u32,
    },
    /// `TaskExit`.
    Exit {
        /// The container.
        id: String,
        /// The process: the container's id or the exec's.
        process: String,
        /// Its process id.
        pid: u32,
        /// Exit status.
        status: u32,
        /// When it ended, if the event says so.
        at: Option<SystemTime>,
    },
    /// `TaskDelete`.
    Delete {
        /// The container.
        id: String,
        /// Empty, or the process: newer shims name an exec here.
        process: String,
        /// Its process id.
        pid: u32,
        /// Exit status.
        status: u32,
    },
    /// `TaskPaused`.
    Paused {
        /// The container.
        id: String,
    },
    /// `TaskResumed`.
    Resumed {
        /// The container.
        id: String,
    },
    /// `TaskCheckpointed`.
    Checkpointed {
        /// The container.
        id: String,
    },
    /// `TaskOOM`.
    Oom {
        /// The container.
        id: String,
    },
    /// Nothing that containerd knows, or no message of the type it claims to be.
    Unknown {
        /// The type that it claims to be.
        kind: String,
    },
}

impl Event {
    /// Understands an event by its type's name.
    pub(super) fn decode(any: &Any) -> Event {
        Event::known(any).unwrap_or_else(|| Event::Unknown {
            kind: any.type_url.clone(),
        })
    }

    fn known(any: &Any) -> Option<Event> {
        let bytes = &any.value;
        Some(match any.type_url.as_str() {
            "containerd.events.TaskCreate" => {
                let m = task::TaskCreate::parse_from_bytes(bytes).ok()?;
                let io = m.io.unwrap_or_default();
                Event::Create {
                    id: m.container_id,
                    pid: m.pid,
                    bundle: m.bundle,
                    mounts: m.rootfs.len(),
                    terminal: io.terminal,
                    io: [io.stdin, io.stdout, io.stderr],
                }
            }
            "containerd.events.TaskStart" => {
                let m = task::TaskStart::parse_from_bytes(bytes).ok()?;
                Event::Start {
                    id: m.container_id,
                    pid: m.pid,
                }
            }
            "containerd.events.TaskExecAdded" => {
                let m = task::TaskExecAdded::parse_from_bytes(bytes).ok()?;
                Event::ExecAdded {
                    id: m.container_id,
                    exec: m.exec_id,
                }
            }
            "containerd.events.TaskExecStarted" => {
                let m = task::TaskExecStarted::parse_from_bytes(bytes).ok()?;
                Event::ExecStarted {
                    id: m.container_id,
                    exec: m.exec_id,
                    pid: m.pid,
                }
            }
            "containerd.events.TaskExit" => {
                let m = task::TaskExit::parse_from_bytes(bytes).ok()?;
                Event::Exit {
                    id: m.container_id,
                    process: m.id,
                    pid: m.pid,
                    status: m.exit_status,
                    at: m.exited_at.into_option().map(|at| time(&at)),
                }
            }
            "containerd.events.TaskDelete" => {
                let m = task::TaskDelete::parse_from_bytes(bytes).ok()?;
                Event::Delete {
                    id: m.container_id,
                    process: m.id,
                    pid: m.pid,
                    status: m.exit_status,
                }
            }
            "containerd.events.TaskPaused" => Event::Paused {
                id: task::TaskPaused::parse_from_bytes(bytes).ok()?.container_id,
            },
            "containerd.events.TaskResumed" => Event::Resumed {
                id: task::TaskResumed::parse_from_bytes(bytes)
                    .ok()?
                    .container_id,
            },
            "containerd.events.TaskCheckpointed" => Event::Checkpointed {
                id: task::TaskCheckpointed::parse_from_bytes(bytes)
                    .ok()?
                    .container_id,
            },
            "containerd.events.TaskOOM" => Event::Oom {
                id: task::TaskOOM::parse_from_bytes(bytes).ok()?.container_id,
            },
            _ => return None,
        })
    }

    /// The topic under which containerd expects it.
    pub fn topic(&self) -> &'static str {
        match self {
            Event::Create { .. } => "/tasks/create",
            Event::Start { .. } => "/tasks/start",
            Event::ExecAdded { .. } => "/tasks/exec-added",
            Event::ExecStarted { .. } => "/tasks/exec-started",
            Event::Exit { .. } => "/tasks/exit",
            Event::Delete { .. } => "/tasks/delete",
            Event::Paused { .. } => "/tasks/paused",
            Event::Resumed { .. } => "/tasks/resumed",
            Event::Checkpointed { .. } => "/tasks/checkpointed",
            Event::Oom { .. } => "/tasks/oom",
            Event::Unknown { .. } => "/tasks/?",
        }
    }

    /// The container that it is about; empty if it cannot be known.
    pub fn container(&self) -> &str {
        match self {
            Event::Create { id, .. }
            | Event::Start { id, .. }
            | Event::ExecAdded { id, .. }
            | Event::ExecStarted { id, .. }
            | Event::Exit { id, .. }
            | Event::Delete { id, .. }
            | Event::Paused { id }
            | Event::Resumed { id }
            | Event::Checkpointed { id }
            | Event::Oom { id } => id,
            Event::Unknown { .. } => "",
        }
    }

    /// The process's id: the container's for its own process.
    pub fn process(&self) -> &str {
        match self {
            Event::ExecAdded { exec, .. } | Event::ExecStarted { exec, .. } => exec,
            Event::Exit { process, .. } => process,
            Event::Delete { process, .. } if !process.is_empty() => process,
            other => other.container(),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, process) = (self.container(), self.process());
        f.write_str(self.topic().trim_start_matches("/tasks/"))?;
        match self {
            Event::Unknown { kind } => return write!(f, " {kind}"),
            _ if process == id => write!(f, " {id}")?,
            _ => write!(f, " {id}/{process}")?,
        }
        match self {
            Event::Exit { status, .. } | Event::Delete { status, .. } => {
                write!(f, " status {status}")
            }
            _ => Ok(()),
        }
    }
}

/// A time as messages carry it.
pub(super) fn time(at: &Timestamp) -> SystemTime {
    let since = Duration::new(
        u64::try_from(at.seconds).unwrap_or(0),
        u32::try_from(at.nanos).unwrap_or(0),
    );
    SystemTime::UNIX_EPOCH + since
}
