//! Events: their order when many processes end at once, and what becomes of them while containerd is away.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use thaw_testkit::mock::{Event, Mock, Peer, Spec, Stage, Streams, TaskClient, order};

const PATIENCE: Duration = Duration::from_secs(20);

fn stage() -> Stage {
    Stage::new(Mock::start(Peer::thaw().unwrap()).unwrap())
}

fn running(stage: &mut Stage, id: &str) {
    stage.launch(id, &Spec::sh("sleep 600")).unwrap();
    assert!(stage.create_on(id, &Streams::default()) && stage.start(id));
}

/// One exec from its beginning to its end.
fn exec(client: &TaskClient, id: &str, exec: &str) {
    let process = Spec::process(&["/bin/true"], false);
    client
        .exec(id, exec, &process, &Streams::default())
        .unwrap();
    client.start(id, exec).unwrap();
    assert_eq!(client.wait(id, exec).unwrap().status, 0);
    client.delete(id, exec).unwrap();
}

/// Events of one kind so far.
fn count(stage: &Stage, is: impl Fn(&Event) -> bool) -> usize {
    let received = stage.mock().events().received();
    received
        .iter()
        .filter(|received| is(&received.event))
        .count()
}

fn is_exit(event: &Event) -> bool {
    matches!(event, Event::Exit { .. })
}

fn is_delete(event: &Event) -> bool {
    matches!(event, Event::Delete { .. })
}

/// Ends the stage; nothing may be wrong with the order of its events, and nothing left.
#[track_caller]
fn end(stage: Stage) {
    let played = stage.finish();
    assert!(
        played.violations.is_empty(),
        "{:#?}\n{}",
        played.violations,
        played.trace
    );
    assert!(
        played.left.is_empty(),
        "left behind: {:#?}\n{}",
        played.left,
        played.logs
    );
}

#[test]
fn a_hundred_quick_execs_keep_their_order() {
    let mut stage = stage();
    running(&mut stage, "c");
    thread::scope(|scope| {
        for worker in 0..5 {
            let client = stage.client("c");
            scope.spawn(move || {
                for i in 0..20 {
                    exec(&client, "c", &format!("e{worker}-{i}"));
                }
            });
        }
    });
    assert!(stage.mock().events().wait_until(PATIENCE, |events| {
        events
            .iter()
            .filter(|received| is_exit(&received.event))
            .count()
            == 100
    }));
    end(stage);
}

#[test]
fn a_hundred_quick_containers_keep_their_order() {
    let mock = Arc::new(Mock::start(Peer::thaw().unwrap()).unwrap());
    thread::scope(|scope| {
        for worker in 0..4 {
            let mock = mock.clone();
            scope.spawn(move || {
                for i in 0..25 {
                    quick_life(&mock, &format!("c{worker}-{i}"));
                }
            });
        }
    });
    let whole = mock.events().wait_until(PATIENCE, |events| {
        events
            .iter()
            .filter(|received| is_delete(&received.event))
            .count()
            == 100
    });
    let received = mock.events().received();
    assert!(whole, "{} events", received.len());
    assert_eq!(order::violations(&received), Vec::<String>::new());
    assert_eq!(
        received.len(),
        400,
        "each is created, started, exits and is deleted"
    );
    assert_eq!(mock.leftovers_after(PATIENCE), Vec::<String>::new());
}

/// As quick as a caller can be: nothing is waited for that need not be.
fn quick_life(mock: &Mock, id: &str) {
    let bundle = mock
        .bundle(
            id,
            &Spec::new(&["/bin/true"]),
            thaw_testkit::mock::Root::Overlay,
        )
        .unwrap();
    let reply = mock
        .start_shim(&bundle, thaw_testkit::mock::Dialect::Message)
        .unwrap();
    let client = mock.connect(&reply.address, reply.version).unwrap();
    client.create(&bundle, &Streams::default()).unwrap();
    client.start(id, "").unwrap();
    assert_eq!(client.wait(id, "").unwrap().status, 0);
    client.delete(id, "").unwrap();
    // The shim may be quicker to end than to answer.
    let _ = client.shutdown(id);
    client.hang_up();
    mock.delete_shim(&bundle).unwrap();
    bundle.remove().unwrap();
}

#[test]
fn events_of_an_outage_arrive_after_it() {
    const AWAY: Duration = Duration::from_secs(30);
    let mut stage = stage();
    for id in ["ends", "gone", "stays"] {
        running(&mut stage, id);
    }
    let before = stage.mock().events().received().len();
    stage.mock().events().down();
    let began = Instant::now();
    for i in 0..10 {
        exec(&stage.client("stays"), "stays", &format!("e{i}"));
    }
    for id in ["ends", "gone"] {
        let client = stage.client(id);
        client.kill(id, "", 9, false).unwrap();
        assert_eq!(client.wait(id, "").unwrap().status, 137);
    }
    stage.client("gone").delete("gone", "").unwrap();
    stage.adopt("gone");
    thread::sleep(AWAY.saturating_sub(began.elapsed()));
    assert_eq!(
        stage.mock().events().received().len(),
        before,
        "nobody was there to take any"
    );

    stage.mock().events().up().unwrap();
    // Ten execs with three events each, two ends, one deletion.
    let missing = 10 * 3 + 2 + 1;
    let all = stage
        .mock()
        .events()
        .wait_until(PATIENCE, |events| events.len() == before + missing);
    let received = stage.mock().events().received();
    assert!(
        all,
        "{} of {missing} came: {received:#?}",
        received.len() - before
    );
    // Dated when they happened, not when they could be told.
    assert!(
        received[before..]
            .iter()
            .all(|late| { late.at.elapsed().unwrap_or_default() >= Duration::from_secs(15) })
    );
    end(stage);
}

#[test]
fn without_an_event_service_containers_run_as_usual() {
    let mut stage = stage();
    stage.mock().events().down();
    running(&mut stage, "c");
    exec(&stage.client("c"), "c", "e");
    assert!(stage.kill("c", "", 9));
    assert_eq!(stage.client("c").wait("c", "").unwrap().status, 137);
    let started = Instant::now();
    stage.client("c").delete("c", "").unwrap();
    stage.adopt("c");
    stage.client("c").shutdown("c").unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(count(&stage, |_| true), 0);
    let played = stage.finish();
    assert!(
        played.left.is_empty(),
        "left behind: {:#?}\n{}",
        played.left,
        played.logs
    );
}
