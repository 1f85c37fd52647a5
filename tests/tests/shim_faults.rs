//! Faults in the middle of every call: the caller goes away, its time is up, the shim is killed. Whatever was under way is
//! done once or not at all, may be asked for again, and nothing is left behind.

mod faults;

use std::thread;
use std::time::{Duration, Instant};

use containerd_shim_protos::api::StateResponse;
use faults::{Before, CALLS, Call};
use thaw_testkit::mock::{Bundle, CallError, Mock, Peer, Spec, Stage, Streams};
use ttrpc::Code;

/// For what must happen soon.
const SOON: Duration = Duration::from_secs(15);
/// What containerd gives `delete`.
const DELETE_LIMIT: Duration = Duration::from_secs(5);

/// A container in the state that a call needs.
fn prepare(before: Before) -> Stage {
    let mut stage = Stage::new(Mock::start(Peer::thaw().unwrap()).unwrap());
    stage.launch("c", &Spec::sh("sleep 600")).unwrap();
    if before == Before::Nothing {
        return stage;
    }
    assert!(stage.create_on("c", &Streams::default()));
    if before != Before::Created {
        assert!(stage.start("c"));
    }
    match before {
        Before::Paused => assert!(stage.pause("c")),
        Before::Stopped => assert!(stage.kill("c", "", 9) && stage.wait("c", "")),
        Before::Nothing | Before::Created | Before::Running => {}
    }
    stage
}

/// Asks again until the shim says that it is done, now or before.
fn ask_again(call: &Call, stage: &Stage) -> Result<(), String> {
    let client = stage.client("c");
    let started = Instant::now();
    loop {
        let error = match (call.make)(&client, stage.bundle("c")) {
            Ok(()) => return Ok(()),
            Err(error) if call.done.iter().any(|code| error.is(*code)) => return Ok(()),
            Err(error) if call.busy.iter().any(|code| error.is(*code)) => error,
            Err(error) => return Err(format!("asked again it answers {error}")),
        };
        if started.elapsed() > SOON {
            return Err(format!("asked again it keeps answering {error}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The container's state once nothing is under way that makes it.
fn settled_state(stage: &Stage) -> Result<StateResponse, CallError> {
    let started = Instant::now();
    loop {
        match stage.client("c").state("c", "") {
            Err(error) if error.is(Code::UNAVAILABLE) && started.elapsed() < SOON => {
                thread::sleep(Duration::from_millis(20));
            }
            state => return state,
        }
    }
}

/// What must be true of the container once the call was asked for again.
fn state_after(call: &Call) -> &'static [&'static str] {
    match call.method {
        "Create" => &["CREATED"],
        "Kill" => &["STOPPED", "RUNNING"],
        "Pause" => &["PAUSED"],
        "Delete" => &[],
        _ if call.before == Before::Stopped => &["STOPPED"],
        _ => &["RUNNING"],
    }
}

/// Goes on as if nothing had been, to the end of the container.
fn go_on(call: &Call, mut stage: Stage) -> Result<(), String> {
    let asked = ask_again(call, &stage).and_then(|()| {
        let state = settled_state(&stage);
        let wanted = state_after(call);
        match state {
            Ok(state) => {
                let status = state
                    .status
                    .enum_value()
                    .map(|s| format!("{s:?}"))
                    .unwrap_or_default();
                if wanted.contains(&status.as_str()) {
                    Ok(())
                } else {
                    Err(format!("the container is {status}, not {wanted:?}"))
                }
            }
            Err(error) if wanted.is_empty() && error.is(Code::NOT_FOUND) => Ok(()),
            Err(error) => Err(format!("State answers {error}")),
        }
    });
    stage.adopt("c");
    if call.method == "Exec" && asked.is_ok() {
        assert!(stage.start_exec("c", "e") && stage.wait("c", "e"));
    }
    if call.method == "Kill" && asked.is_ok() {
        assert!(stage.wait("c", ""));
    }
    if call.method == "Pause" && asked.is_ok() {
        assert!(stage.resume("c"));
    }
    let played = stage.finish();
    let mut problems: Vec<String> = asked.err().into_iter().collect();
    problems.extend(
        played
            .violations
            .iter()
            .map(|line| format!("order: {line}")),
    );
    problems.extend(
        played
            .left
            .iter()
            .map(|line| format!("left behind: {line}")),
    );
    let exits = played
        .trace
        .events
        .iter()
        .filter(|line| line.starts_with("exit c status"))
        .count();
    let creates = played
        .trace
        .events
        .iter()
        .filter(|line| line.starts_with("create c"))
        .count();
    if exits > 1 || creates != 1 {
        problems.push(format!("{creates} creations and {exits} exits were told"));
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\n{}  log:\n{}",
        problems.join("\n"),
        played.trace,
        played.logs
    ))
}

/// Runs this for every call and moment, and shows everything that went wrong.
#[track_caller]
fn for_all(fault: impl Fn(&Call, u64) -> Result<(), String>) {
    let mut problems = Vec::new();
    for call in CALLS {
        for moment in call.moments {
            if let Err(problem) = fault(call, *moment) {
                problems.push(format!("{} after {moment} ms: {problem}", call.method));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_caller_hangs_up() {
    for_all(|call, moment| {
        let stage = prepare(call.before);
        let client = stage.connect_again("c").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| (call.make)(&client, stage.bundle("c")));
            thread::sleep(Duration::from_millis(moment));
            client.hang_up();
        });
        go_on(call, stage)
    });
}

#[test]
fn the_callers_time_is_up() {
    for call in CALLS {
        let stage = prepare(call.before);
        let client = stage
            .connect_again("c")
            .unwrap()
            .with_limit(Duration::from_millis(1));
        let answer = (call.make)(&client, stage.bundle("c"));
        if let Err(CallError::Status { code, message }) = answer {
            assert_eq!(code, Code::DEADLINE_EXCEEDED, "{}: {message}", call.method);
        }
        go_on(call, stage).unwrap_or_else(|e| panic!("{}: {e}", call.method));
    }
}

#[test]
fn the_shim_is_killed() {
    for_all(|call, moment| {
        let stage = prepare(call.before);
        thread::scope(|scope| {
            let client = stage.client("c");
            let bundle = stage.bundle("c");
            scope.spawn(move || (call.make)(&client, bundle));
            thread::sleep(Duration::from_millis(moment));
            stage.kill_shim("c");
        });
        clean_up(&stage)
    });
}

/// `delete` as containerd runs it, twice, and once more for a bundle with nothing in it.
fn clean_up(stage: &Stage) -> Result<(), String> {
    let bundle = stage.bundle("c");
    let mut problems = Vec::new();
    let mut delete = |what: &str| match stage.mock().delete_shim(bundle) {
        Ok(reply) => {
            if reply.took > DELETE_LIMIT {
                problems.push(format!("{what} takes {} ms", reply.took.as_millis()));
            }
            if reply.status != 137 || !reply.dated {
                problems.push(format!("{what} answers {reply:?}"));
            }
            if !reply.stderr.is_empty() {
                problems.push(format!("{what} warns: {}", reply.stderr));
            }
        }
        Err(error) => problems.push(format!("{what}: {error}")),
    };
    delete("delete");
    delete("delete once more");
    empty(bundle);
    delete("delete of an empty bundle");
    let left = stage.mock().leftovers_after(Duration::from_secs(3));
    problems.extend(left.iter().map(|line| format!("left behind: {line}")));
    if let Err(error) = bundle.remove() {
        problems.push(error.to_string());
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n  log:\n{}", problems.join("\n"), bundle.log()))
}

fn empty(bundle: &Bundle) {
    for entry in std::fs::read_dir(bundle.path()).unwrap().flatten() {
        // The root may still be mounted, which is what is looked for afterwards.
        if entry.file_type().is_ok_and(|kind| !kind.is_dir()) {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[test]
fn state_answers_while_others_are_worked_on() {
    for (before, method) in [(Before::Nothing, "Create"), (Before::Created, "Start")] {
        let stage = prepare(before);
        let call = CALLS.iter().find(|call| call.method == method).unwrap();
        let client = stage.connect_again("c").unwrap();
        thread::scope(|scope| {
            let worked_on = scope.spawn(|| (call.make)(&client, stage.bundle("c")));
            while !worked_on.is_finished() {
                let asked = Instant::now();
                // containerd gives it two seconds.
                let _ = stage.client("c").state("c", "");
                assert!(
                    asked.elapsed() < Duration::from_secs(1),
                    "{method}: {:?}",
                    asked.elapsed()
                );
                thread::sleep(Duration::from_millis(5));
            }
            worked_on.join().unwrap().unwrap();
        });
        let mut stage = stage;
        stage.adopt("c");
        stage.finish();
    }
}
