//! The 17 calls in which faults strike.

use serde_json::json;
use thaw_testkit::mock::{Bundle, CallError, Spec, Streams, TaskClient};
use ttrpc::Code;

/// What a container is when a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Nothing,
    Created,
    Running,
    Paused,
    Stopped,
}

/// One of the 17 calls.
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) before: Before,
    pub(crate) make: fn(&TaskClient, &Bundle) -> Result<(), CallError>,
    /// Codes that a second call may answer if the first one was done.
    pub(crate) done: &'static [Code],
    /// Codes by which it may say that the first one is still being worked on.
    pub(crate) busy: &'static [Code],
    /// Milliseconds after which the fault comes: several for calls that take their time.
    pub(crate) moments: &'static [u64],
}

const QUICK: &[u64] = &[1];
const SLOW: &[u64] = &[1, 20, 60, 140];

pub(crate) const CALLS: &[Call] = &[
    Call {
        method: "Create",
        before: Before::Nothing,
        make: |client, bundle| client.create(bundle, &Streams::default()).map(drop),
        done: &[Code::ALREADY_EXISTS],
        busy: &[],
        moments: SLOW,
    },
    Call {
        method: "Start",
        before: Before::Created,
        make: |client, _| client.start("c", "").map(drop),
        done: &[Code::FAILED_PRECONDITION],
        busy: &[],
        moments: SLOW,
    },
    Call {
        method: "State",
        before: Before::Running,
        make: |client, _| client.state("c", "").map(drop),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Wait",
        before: Before::Stopped,
        make: |client, _| client.wait("c", "").map(drop),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Kill",
        before: Before::Running,
        make: |client, _| client.kill("c", "", 9, false),
        done: &[Code::NOT_FOUND],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Delete",
        before: Before::Stopped,
        make: |client, _| client.delete("c", "").map(drop),
        done: &[Code::NOT_FOUND],
        busy: &[],
        moments: SLOW,
    },
    Call {
        method: "Exec",
        before: Before::Running,
        make: |client, _| {
            let process = Spec::process(&["/bin/true"], false);
            client.exec("c", "e", &process, &Streams::default())
        },
        done: &[Code::ALREADY_EXISTS],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "ResizePty",
        before: Before::Running,
        make: |client, _| client.resize("c", "", 80, 25),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "CloseIO",
        before: Before::Running,
        make: |client, _| client.close_stdin("c", ""),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Pids",
        before: Before::Running,
        make: |client, _| client.pids("c").map(drop),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Pause",
        before: Before::Running,
        make: |client, _| client.pause("c"),
        done: &[Code::FAILED_PRECONDITION],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Resume",
        before: Before::Paused,
        make: |client, _| client.resume("c"),
        done: &[Code::FAILED_PRECONDITION],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Checkpoint",
        before: Before::Running,
        make: |client, bundle| {
            let path = bundle.path().join("checkpoint");
            // A new one each time: an image does not replace another.
            let _ = std::fs::remove_dir_all(&path);
            client.checkpoint("c", &path.display().to_string())
        },
        // It needs content that only a whole containerd has, so here it ends with an error: what is asked is that the
        // container does not suffer.
        done: &[Code::UNAVAILABLE],
        busy: &[Code::FAILED_PRECONDITION],
        moments: SLOW,
    },
    Call {
        method: "Update",
        before: Before::Running,
        make: |client, _| client.update("c", &json!({"cpu": {"shares": 512}})),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Stats",
        before: Before::Running,
        make: |client, _| client.stats("c").map(drop),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Connect",
        before: Before::Running,
        make: |client, _| client.connect_task("c").map(drop),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
    Call {
        method: "Shutdown",
        before: Before::Running,
        make: |client, _| client.shutdown("c"),
        done: &[],
        busy: &[],
        moments: QUICK,
    },
];
