//! gVisor's own shim, of the same version as the runsc behind both.

use thaw_testkit::mock::Difference;

/// The shim learns of an end from `runsc wait`.
const LOST: &str = "the status of a container that holds its sandbox is lost if the sandbox ends before `runsc wait` asks \
    for it, and becomes 128; containerd's pods do not notice, as nothing in them ends with the sandbox";
/// `runsc kill` without a look at the state before it.
const KILL: &str = "a signal for what has ended, or has not begun, is no error";

pub(crate) const RUNSC: &[Difference] = &[
    Difference {
        script: "*",
        lines: &[],
        may: &["- event: create *", "- event: delete *"],
        why: "it tells neither creations nor deletions",
    },
    Difference {
        script: "*",
        lines: &[],
        may: &["- event: exec-started *", "+ event: exec-started *"],
        why: "a quick exec's end may be told before its start",
    },
    Difference {
        script: "*",
        lines: &[],
        may: &[
            "- wait c: *",
            "- state c: c, its pid, STOPPED with *",
            "- delete c: its pid ended with *",
            "- event: exit c status *",
            "+ wait c: 128",
            "+ state c: c, its pid, STOPPED with 128",
            "+ delete c: its pid ended with 128",
            "+ event: exit c status 128, its pid",
        ],
        why: LOST,
    },
    Difference {
        script: "missing program",
        lines: &[
            "- create c: UNKNOWN",
            "+ create c: its pid",
            "+ start c: UNKNOWN",
            "+ state c: c, its pid, CREATED",
            "+ delete c: its pid ended with 0 undated",
        ],
        may: &[],
        why: "runc looks for the program when it creates a container, runsc when it starts it",
    },
    Difference {
        script: "deleted without start",
        lines: &[],
        may: &[],
        why: "runc tells the end of the process that waits for the start; runsc has none (allowed above)",
    },
    Difference {
        script: "out of memory",
        lines: &[
            "- stats c: io.containerd.cgroups.v1.Metrics memory cpu oom-kill",
            "+ stats c: UNKNOWN",
        ],
        may: &[],
        why: "it keeps no last sample, so the reason of the end cannot be told",
    },
    Difference {
        script: "the same id again",
        lines: &[
            "+ delete c: UNKNOWN",
            "- create c: its pid",
            "+ create c: UNKNOWN",
            "- start c: its pid",
            "+ start c: UNKNOWN",
        ],
        may: &["- event: start c, its pid", "+ event: oom c"],
        why: "a second Create of a container that exists spoils the first one",
    },
    Difference {
        script: "exec ends with its container",
        lines: &[],
        may: &[
            "- event: exit c/e status 137, its pid",
            "+ event: exit c/e status 137, its pid",
        ],
        why: "it does not hold back the container's end until its execs have ended",
    },
    Difference {
        script: "exec never started",
        lines: &[
            "- kill c/e by 9: FAILED_PRECONDITION",
            "+ kill c/e by 9: ok",
        ],
        may: &[],
        why: KILL,
    },
    Difference {
        script: "exec killed",
        lines: &["- kill c/e by 9: NOT_FOUND", "+ kill c/e by 9: ok"],
        may: &[],
        why: KILL,
    },
    Difference {
        script: "exec after the container's end",
        lines: &[
            "- start c/before: FAILED_PRECONDITION",
            "+ start c/before: UNKNOWN",
        ],
        may: &[],
        why: "the text of runsc's error is passed on as UNKNOWN",
    },
    Difference {
        script: "processes",
        lines: &[
            "- pids c: [c]",
            "+ pids c: []",
            "- pids c: [c, c/e as containerd.runc.v1.ProcessDetails e]",
            "+ pids c: []",
            "- pids c: [c]",
            "+ pids c: []",
        ],
        may: &[],
        why: "it lists process ids of the guest, which are none of those that it told before",
    },
    Difference {
        script: "unknown container",
        lines: &[
            "- resize c to 80x25: NOT_FOUND",
            "+ resize c to 80x25: FAILED_PRECONDITION",
            "+ delete action of c fails",
        ],
        may: &[],
        why: "another code; and `delete` wants a file that only Create writes",
    },
    Difference {
        script: "created",
        lines: &[
            "- pids c: [c]",
            "- stats c: io.containerd.cgroups.v1.Metrics memory cpu",
            "+ pids c: UNKNOWN",
            "+ stats c: io.containerd.cgroups.v1.Metrics memory",
            "+ wait c: no answer",
            "+ state c: c, its pid, STOPPED with 0 undated",
            "+ delete c: its pid ended with 0 undated",
        ],
        may: &[],
        why: "nobody waits for the end of what was never started",
    },
    Difference {
        script: "kill of the dead",
        lines: &[
            "- kill c by 9: NOT_FOUND",
            "- kill c by 15: NOT_FOUND",
            "+ kill c by 9: ok",
            "+ kill c by 15: ok",
        ],
        may: &[],
        why: KILL,
    },
    Difference {
        script: "pause and resume",
        lines: &["- pids c: [c]", "+ pids c: []"],
        may: &[],
        why: "as in \"processes\"",
    },
    Difference {
        script: "kill while paused",
        lines: &[
            "- kill c by 9: ok",
            "+ kill c by 9: UNKNOWN",
            "+ wait c: no answer",
            "+ delete c: UNKNOWN",
            "+ shim of c does not end",
        ],
        may: &[],
        why: "a paused sandbox takes no signal",
    },
    Difference {
        script: "shutdown with a container",
        lines: &[
            "- shutdown c: ok",
            "+ shutdown c: UNKNOWN",
            "- shutdown c: ok",
            "+ shutdown c: UNKNOWN",
        ],
        may: &[],
        why: "that there still are containers is an error",
    },
    Difference {
        script: "stats",
        lines: &[
            "- stats c: io.containerd.cgroups.v1.Metrics memory cpu",
            "+ stats c: UNKNOWN",
        ],
        may: &[],
        why: "it keeps no last sample",
    },
    Difference {
        script: "stdin of an exec",
        lines: &[
            "- close stdin of c/nobody: UNKNOWN",
            "+ close stdin of c/nobody: NOT_FOUND",
        ],
        may: &[],
        why: "better than the reference",
    },
    Difference {
        script: "terminal",
        lines: &["- resize c to 80x25: ok", "+ resize c to 80x25: UNKNOWN"],
        may: &[],
        why: "a terminal whose process has ended is gone",
    },
    Difference {
        script: "pod",
        lines: &["- shutdown pod: ok", "+ shutdown pod: UNKNOWN"],
        may: &[],
        why: "as in \"shutdown with a container\"",
    },
];
