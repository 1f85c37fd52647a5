//! Thaw.

use thaw_testkit::mock::Difference;

/// Why most codes differ.
const TYPED: &str = "runc's shim passes on runc's text as UNKNOWN; Thaw says what kind of error it is, as containerd's \
    own error package asks for";
/// A container that is deleted and asked for once more.
const KEPT: &str = "a caller that lost the answer to Delete may ask again";

pub(crate) const THAW: &[Difference] = &[
    Difference {
        script: "bad root",
        lines: &["- create c: UNKNOWN", "+ create c: INTERNAL"],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "bad specification",
        lines: &["- create c: UNKNOWN", "+ create c: INVALID_ARGUMENT"],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "missing program",
        lines: &[
            "- create c: UNKNOWN",
            "+ create c: its pid",
            "+ start c: INTERNAL",
            "+ state c: c, its pid, STOPPED with 128",
            "+ delete c: its pid ended with 128",
            "+ event: create c, its pid",
            "+ event: delete c status 128, its pid",
        ],
        may: &[],
        why: "runc looks for the program when it creates a container, runsc when it starts it",
    },
    Difference {
        script: "deleted without start",
        lines: &[
            "- delete c: its pid ended with 0 undated",
            "+ delete c: its pid ended with 0",
        ],
        may: &["- event: exit c status 137 undated, its pid"],
        why: "runc has a process that waits for the start and is killed, and tells its end after the deletion; runsc has \
            none, so nothing exits",
    },
    Difference {
        script: "the same id again",
        lines: &["- create c: UNKNOWN", "+ create c: ALREADY_EXISTS"],
        // The reference takes the removal of a version 1 cgroup for a lack of memory if one of the same name follows.
        may: &["- event: oom c"],
        why: TYPED,
    },
    Difference {
        script: "exec of a missing program",
        lines: &[
            "- start c/e: UNKNOWN",
            "+ start c/e: INTERNAL",
            "- delete c/e: no process ended with 0 undated",
            "+ delete c/e: no process ended with 255",
        ],
        may: &[],
        why: "typed; and what could not be started has not ended well",
    },
    Difference {
        script: "exec id twice",
        lines: &["- start c/e: UNKNOWN", "+ start c/e: FAILED_PRECONDITION"],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "exec never started",
        lines: &[
            "- delete c/e: no process ended with 0 undated",
            "+ delete c/e: no process ended with 0",
        ],
        may: &[],
        why: "Thaw dates every end",
    },
    Difference {
        script: "exec killed",
        lines: &["- delete c/e: UNKNOWN", "+ delete c/e: FAILED_PRECONDITION"],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "exec after the container's end",
        lines: &[
            "- exec c/after: UNKNOWN",
            "+ exec c/after: FAILED_PRECONDITION",
        ],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "created",
        lines: &[
            "- pause c: UNKNOWN",
            "- resume c: UNKNOWN",
            "+ pause c: FAILED_PRECONDITION",
            "+ resume c: FAILED_PRECONDITION",
            "- start c: UNKNOWN",
            "+ start c: FAILED_PRECONDITION",
        ],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "start twice",
        lines: &[
            "- start c: UNKNOWN",
            "+ start c: FAILED_PRECONDITION",
            "- start c: UNKNOWN",
            "+ start c: FAILED_PRECONDITION",
        ],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "kill of the dead",
        lines: &[
            "- kill all of c by 9: ok",
            "- pause c: UNKNOWN",
            "- resume c: UNKNOWN",
            "- update c: UNKNOWN",
            "+ kill all of c by 9: NOT_FOUND",
            "+ pause c: FAILED_PRECONDITION",
            "+ resume c: FAILED_PRECONDITION",
            "+ update c: FAILED_PRECONDITION",
        ],
        may: &[],
        why: "typed; and no process is left to kill, whether one is meant or all",
    },
    Difference {
        script: "delete running",
        lines: &["- delete c: UNKNOWN", "+ delete c: FAILED_PRECONDITION"],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "delete running",
        lines: &[
            "- delete c: NOT_FOUND",
            "- wait c: NOT_FOUND",
            "+ delete c: its pid ended with 137",
            "+ wait c: 137",
        ],
        may: &[],
        why: KEPT,
    },
    Difference {
        script: "pause and resume",
        lines: &[
            "- pause c: UNKNOWN",
            "+ pause c: FAILED_PRECONDITION",
            "- start c: UNKNOWN",
            "- delete c: UNKNOWN",
            "+ start c: FAILED_PRECONDITION",
            "+ delete c: FAILED_PRECONDITION",
            "- resume c: UNKNOWN",
            "+ resume c: FAILED_PRECONDITION",
        ],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "stdin of an exec",
        lines: &[
            "- close stdin of c/nobody: UNKNOWN",
            "+ close stdin of c/nobody: NOT_FOUND",
        ],
        may: &[],
        why: TYPED,
    },
    Difference {
        script: "update",
        lines: &["- update c: UNKNOWN", "+ update c: INVALID_ARGUMENT"],
        may: &[],
        why: TYPED,
    },
];
