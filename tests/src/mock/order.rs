//! The rules for the order of events, which are a part of the API.

use std::collections::BTreeMap;

use super::event::{Event, Received};

/// How far one process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Added,
    Started,
    Exited,
    Deleted,
}

/// What is wrong with the order of these events, in the order of their arrival; empty: nothing.
///
/// - A container is created, then started, exits and is deleted; it may be deleted without having been started.
/// - An exec is added, then started and exits.
/// - Every process exits at most once, and the container's own last.
/// - A lack of memory is told before the exit that it caused.
/// - Times never run backwards within a container.
pub fn violations(events: &[Received]) -> Vec<String> {
    let mut found = Vec::new();
    let mut steps: BTreeMap<(String, String), Step> = BTreeMap::new();
    let mut last: BTreeMap<String, std::time::SystemTime> = BTreeMap::new();
    for received in events {
        let event = &received.event;
        let (id, process) = (event.container().to_owned(), event.process().to_owned());
        let mut wrong = |why: &str| found.push(format!("{event}: {why}"));
        if received.topic != event.topic() {
            wrong(&format!("its topic is {}", received.topic));
        }
        if last
            .insert(id.clone(), received.at)
            .is_some_and(|before| before > received.at)
        {
            wrong("it is older than the event before it");
        }
        let key = (id.clone(), process.clone());
        let before = steps.get(&key).copied();
        let container = steps.get(&(id.clone(), id.clone())).copied();
        match event {
            Event::Create { .. } => {
                if before.is_some_and(|step| step != Step::Deleted) {
                    wrong("there is one already");
                }
                steps.retain(|(of, _), _| *of != id);
                steps.insert(key, Step::Added);
            }
            Event::ExecAdded { .. } => {
                if before.is_some_and(|step| step != Step::Deleted && step != Step::Exited) {
                    wrong("there is one already");
                }
                if !matches!(container, Some(Step::Added | Step::Started)) {
                    wrong("its container is not alive");
                }
                steps.insert(key, Step::Added);
            }
            Event::Start { .. } | Event::ExecStarted { .. } => {
                if before != Some(Step::Added) {
                    wrong("it was not added just before");
                }
                if matches!(container, Some(Step::Exited | Step::Deleted) | None) {
                    wrong("its container is not alive");
                }
                steps.insert(key, Step::Started);
            }
            Event::Exit { .. } => {
                if before == Some(Step::Exited) {
                    wrong("it has exited before");
                } else if before != Some(Step::Started)
                    && !(process == id && before == Some(Step::Added))
                {
                    wrong("it was not started");
                }
                if process == id {
                    let alive = steps.iter().any(|((of, other), step)| {
                        *of == id && *other != id && *step == Step::Started
                    });
                    if alive {
                        wrong("execs are still to exit");
                    }
                } else if container == Some(Step::Exited) {
                    wrong("its container has exited before it");
                }
                steps.insert(key, Step::Exited);
            }
            Event::Delete { .. } => {
                if !matches!(before, Some(Step::Added | Step::Exited)) {
                    wrong("it has not exited, or was never there");
                }
                steps.insert(key, Step::Deleted);
            }
            Event::Oom { .. } if matches!(container, Some(Step::Exited | Step::Deleted) | None) => {
                wrong("its container has exited before");
            }
            Event::Unknown { .. } => wrong("containerd does not know it"),
            Event::Oom { .. }
            | Event::Paused { .. }
            | Event::Resumed { .. }
            | Event::Checkpointed { .. } => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use super::*;

    fn received(events: Vec<Event>) -> Vec<Received> {
        let start = SystemTime::UNIX_EPOCH;
        events
            .into_iter()
            .enumerate()
            .map(|(i, event)| Received {
                topic: event.topic().to_owned(),
                namespace: "ns".into(),
                at: start + Duration::from_secs(i as u64),
                arrived: Instant::now(),
                event,
            })
            .collect()
    }

    fn create() -> Event {
        Event::Create {
            id: "c".into(),
            pid: 1,
            bundle: String::new(),
            mounts: 0,
            io: Default::default(),
            terminal: false,
        }
    }
    fn start() -> Event {
        Event::Start {
            id: "c".into(),
            pid: 1,
        }
    }
    fn added() -> Event {
        Event::ExecAdded {
            id: "c".into(),
            exec: "e".into(),
        }
    }
    fn exec_started() -> Event {
        Event::ExecStarted {
            id: "c".into(),
            exec: "e".into(),
            pid: 2,
        }
    }
    fn exit(process: &str) -> Event {
        Event::Exit {
            id: "c".into(),
            process: process.into(),
            pid: 1,
            status: 0,
            at: None,
        }
    }
    fn delete() -> Event {
        Event::Delete {
            id: "c".into(),
            process: String::new(),
            pid: 1,
            status: 0,
        }
    }
    fn oom() -> Event {
        Event::Oom { id: "c".into() }
    }

    #[test]
    fn good_lives_have_no_violations() {
        for events in [
            vec![create(), start(), exit("c"), delete()],
            vec![
                create(),
                delete(),
                create(),
                start(),
                oom(),
                exit("c"),
                delete(),
            ],
            vec![
                create(),
                start(),
                added(),
                exec_started(),
                exit("e"),
                exit("c"),
                delete(),
            ],
        ] {
            assert_eq!(violations(&received(events)), Vec::<String>::new());
        }
    }

    #[test]
    fn every_rule_is_watched() {
        for events in [
            vec![start()],
            vec![create(), create()],
            vec![create(), start(), delete()],
            vec![create(), start(), exit("c"), exit("c")],
            vec![create(), start(), exit("c"), start()],
            vec![create(), start(), exec_started()],
            vec![
                create(),
                start(),
                added(),
                exec_started(),
                exit("c"),
                exit("e"),
            ],
            vec![create(), start(), exit("c"), added()],
            vec![create(), start(), exit("c"), oom()],
            vec![create(), Event::Unknown { kind: "x".into() }],
        ] {
            assert!(
                !violations(&received(events.clone())).is_empty(),
                "{events:?}"
            );
        }
    }
}
