//! The order in which the events of one container may be published.
//!
//! containerd and its clients rely on it: create before start before exit before delete, an exec's exit after its start,
//! an out-of-memory notice before the exit, and the exit of the first process last of all exits. What happens in the
//! sandbox keeps no such order (a program can end before the call that started it has returned), so exits that come too
//! early are held back here. No I/O: events go in, and those that may be published now come out.

use std::collections::BTreeMap;

/// What happened, without the event itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Create succeeded.
    Created,
    /// Start was called; until it is decided the first process's exit is held.
    Starting,
    /// Start succeeded.
    Started,
    /// Start failed for good: an exit that was held is the exit of a process that never counted as started.
    StartFailed,
    /// The first process ended.
    Exited,
    /// Memory ran out.
    OutOfMemory,
    /// Delete succeeded.
    Deleted,
    /// Exec succeeded.
    ExecAdded(String),
    /// Start of an exec succeeded.
    ExecStarted(String),
    /// An exec's process ended.
    ExecExited(String),
    /// An exec was deleted.
    ExecDeleted(String),
    /// Paused, resumed, checkpointed.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Fresh,
    Created,
    Starting,
    Started,
    Exited,
    Deleted,
}

#[derive(Debug)]
struct Exec<E> {
    started: bool,
    exited: bool,
    held: Option<E>,
}

/// One container's order. `E` is the event.
#[derive(Debug)]
pub(crate) struct Order<E> {
    stage: Stage,
    held_exit: Option<E>,
    execs: BTreeMap<String, Exec<E>>,
}

impl<E> Default for Order<E> {
    fn default() -> Self {
        Order {
            stage: Stage::Fresh,
            held_exit: None,
            execs: BTreeMap::new(),
        }
    }
}

impl<E> Order<E> {
    /// Takes one event and gives back those that are to be published now, in order. [`Step::Starting`] and
    /// [`Step::StartFailed`] have no event of their own. Events that break the rules (a second exit, a start after the
    /// exit was published) are swallowed.
    pub(crate) fn push(&mut self, step: Step, event: Option<E>) -> Vec<E> {
        let mut out = Vec::new();
        match step {
            Step::Created if self.stage == Stage::Fresh => {
                self.stage = Stage::Created;
                out.extend(event);
            }
            Step::Starting if self.stage == Stage::Created => self.stage = Stage::Starting,
            Step::Started if matches!(self.stage, Stage::Created | Stage::Starting) => {
                self.stage = Stage::Started;
                out.extend(event);
            }
            Step::StartFailed if self.stage == Stage::Starting => {
                self.stage = Stage::Exited;
                self.held_exit = None;
            }
            Step::Exited if self.stage < Stage::Exited && self.held_exit.is_none() => {
                self.held_exit = event;
            }
            Step::OutOfMemory
                if matches!(
                    self.stage,
                    Stage::Created | Stage::Starting | Stage::Started
                ) =>
            {
                out.extend(event);
            }
            Step::Deleted if (Stage::Created..Stage::Deleted).contains(&self.stage) => {
                // Whoever deletes has seen the end: nothing may stay behind its back.
                for exec in self.execs.values_mut() {
                    if exec.started {
                        out.extend(exec.held.take());
                    }
                }
                if self.stage != Stage::Starting {
                    out.extend(self.held_exit.take());
                }
                self.stage = Stage::Deleted;
                out.extend(event);
            }
            Step::ExecAdded(id) if self.stage < Stage::Exited => {
                self.execs.insert(
                    id,
                    Exec {
                        started: false,
                        exited: false,
                        held: None,
                    },
                );
                out.extend(event);
            }
            Step::ExecStarted(id) if self.stage < Stage::Exited => {
                if let Some(exec) = self.execs.get_mut(&id).filter(|exec| !exec.started) {
                    exec.started = true;
                    out.extend(event);
                    out.extend(exec.held.take());
                }
            }
            Step::ExecExited(id) if self.stage < Stage::Exited => {
                if let Some(exec) = self.execs.get_mut(&id).filter(|exec| !exec.exited) {
                    exec.exited = true;
                    if exec.started {
                        out.extend(event);
                    } else {
                        exec.held = event;
                    }
                }
            }
            Step::ExecDeleted(id) => {
                self.execs.remove(&id);
            }
            Step::Other if (Stage::Created..Stage::Exited).contains(&self.stage) => {
                out.extend(event)
            }
            _ => {}
        }
        self.release_exit(&mut out);
        out
    }

    /// Whether an exec's exit is what the first process's exit waits for.
    pub(crate) fn running_execs(&self) -> bool {
        self.execs.values().any(|exec| exec.started && !exec.exited)
    }

    fn release_exit(&mut self, out: &mut Vec<E>) {
        if matches!(self.stage, Stage::Created | Stage::Started)
            && self.held_exit.is_some()
            && !self.running_execs()
        {
            self.stage = Stage::Exited;
            out.extend(self.held_exit.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(steps: &[(Step, &'static str)]) -> Vec<&'static str> {
        let mut order = Order::default();
        steps
            .iter()
            .flat_map(|(step, name)| order.push(step.clone(), (!name.is_empty()).then_some(*name)))
            .collect()
    }

    #[test]
    fn an_exit_before_its_start_is_held() {
        let out = run(&[
            (Step::Created, "create"),
            (Step::Starting, ""),
            (Step::Exited, "exit"),
            (Step::Started, "start"),
            (Step::Deleted, "delete"),
        ]);
        assert_eq!(out, ["create", "start", "exit", "delete"]);
    }

    #[test]
    fn a_created_container_that_dies_has_an_exit() {
        assert_eq!(
            run(&[
                (Step::Created, "create"),
                (Step::Exited, "exit"),
                (Step::Deleted, "delete")
            ]),
            ["create", "exit", "delete"]
        );
    }

    #[test]
    fn a_failed_start_has_no_exit() {
        let out = run(&[
            (Step::Created, "create"),
            (Step::Starting, ""),
            (Step::Exited, "exit"),
            (Step::StartFailed, ""),
            (Step::Exited, "exit"),
            (Step::Deleted, "delete"),
        ]);
        assert_eq!(out, ["create", "delete"]);
    }

    #[test]
    fn the_first_process_exits_last() {
        let out = run(&[
            (Step::Created, "create"),
            (Step::Started, "start"),
            (Step::ExecAdded("a".into()), "added"),
            (Step::ExecStarted("a".into()), "exec-start"),
            (Step::Exited, "exit"),
            (Step::OutOfMemory, "oom"),
            (Step::ExecExited("a".into()), "exec-exit"),
            (Step::ExecExited("a".into()), "exec-exit"),
            (Step::Exited, "exit"),
        ]);
        assert_eq!(
            out,
            [
                "create",
                "start",
                "added",
                "exec-start",
                "oom",
                "exec-exit",
                "exit"
            ]
        );
    }

    fn step() -> impl Strategy<Value = Step> {
        let id = prop_oneof![Just("a".to_owned()), Just("b".to_owned())];
        prop_oneof![
            Just(Step::Created),
            Just(Step::Starting),
            Just(Step::Started),
            Just(Step::StartFailed),
            Just(Step::Exited),
            Just(Step::OutOfMemory),
            Just(Step::Deleted),
            Just(Step::Other),
            id.clone().prop_map(Step::ExecAdded),
            id.clone().prop_map(Step::ExecStarted),
            id.prop_map(Step::ExecExited),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order, what comes out keeps the rules.
        #[test]
        fn the_rules_hold_for_any_input(steps in proptest::collection::vec(step(), 0..40)) {
            let mut order = Order::default();
            let mut out = Vec::new();
            for step in steps {
                let event = match step {
                    Step::Starting | Step::StartFailed => None,
                    ref step => Some(step.clone()),
                };
                out.extend(order.push(step, event));
            }
            let at = |wanted: &Step| out.iter().position(|step| step == wanted);
            let count = |wanted: &Step| out.iter().filter(|step| *step == wanted).count();
            for once in [Step::Created, Step::Started, Step::Exited, Step::Deleted] {
                prop_assert!(count(&once) <= 1, "{once:?} twice in {out:?}");
            }
            let before = |a: &Step, b: &Step| match (at(a), at(b)) {
                (Some(a), Some(b)) => a < b,
                (None, Some(_)) => false,
                _ => true,
            };
            if at(&Step::Started).is_some() {
                prop_assert!(before(&Step::Created, &Step::Started), "{out:?}");
            }
            if let (Some(start), Some(exit)) = (at(&Step::Started), at(&Step::Exited)) {
                prop_assert!(start < exit, "{out:?}");
            }
            if let (Some(exit), Some(delete)) = (at(&Step::Exited), at(&Step::Deleted)) {
                prop_assert!(exit < delete, "{out:?}");
            }
            if let Some(exit) = at(&Step::Exited) {
                prop_assert!(out[exit + 1..].iter().all(|step| *step == Step::Deleted), "{out:?}");
            }
            for id in ["a", "b"] {
                let exits = count(&Step::ExecExited(id.into()));
                let starts = count(&Step::ExecStarted(id.into()));
                prop_assert!(exits <= starts, "{out:?}");
            }
        }
    }
}
