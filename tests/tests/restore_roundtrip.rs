//! A guest's memory goes to a store and comes back the same, through the real lander, thawd and store client.

use thaw_testkit::scene::{Scene, StoreKind};

fn round_trip(kind: StoreKind) {
    let mut scene = Scene::new(kind);
    let large = |container: thaw_testkit::node::Container| {
        container.args(&[
            "/bin/thaw-guest",
            "--mib",
            "96",
            "--seed",
            "9",
            "--log",
            "/log/runs",
        ])
    };
    let origin = scene.start_as("origin", large);
    let hash = origin.hash();
    assert_eq!(origin.runs(), ["start"]);
    assert_eq!(origin.count(), 1);
    scene.capture("origin");
    assert_eq!(origin.hash(), hash, "the original runs on");
    assert_eq!(origin.count(), 2);
    scene.remove("origin");

    scene.empty_cache();
    for id in ["empty", "warm"] {
        let copy = scene.start_as(id, large);
        scene.assert_restored(id);
        assert_eq!(copy.hash(), hash);
        assert_eq!(copy.count(), 2, "it goes on where it was captured");
        assert_eq!(copy.runs(), ["wake"]);
        assert!(
            copy.ask("/env").contains("HOSTNAME=start-1"),
            "old environment"
        );
        scene.remove(id);
    }

    // The snapshot of a restored sandbox is as good as any.
    let second = scene.start_as("second", large);
    scene.assert_restored("second");
    assert_eq!(second.count(), 2);
    scene.capture("second");
    scene.remove("second");
    scene.empty_cache();
    let third = scene.start_as("third", large);
    scene.assert_restored("third");
    assert_eq!(third.hash(), hash);
    assert_eq!(third.count(), 3);
    scene.remove("third");
    scene.end();
}

#[test]
fn through_a_directory() {
    round_trip(StoreKind::Directory);
}

#[test]
fn through_s3_with_20_ms_per_request() {
    round_trip(StoreKind::S3 { ms: 20.0 });
}

#[test]
fn several_containers_at_once_from_one_snapshot() {
    let mut scene = Scene::new(StoreKind::S3 { ms: 5.0 });
    let hash = scene.captured();
    // Ids that are prefixes of each other.
    let ids = ["c", "c1", "c11"];
    let plans: Vec<_> = ids.iter().map(|id| scene.plan(id, |c| c)).collect();
    std::thread::scope(|scope| {
        let node = &scene.node;
        let threads: Vec<_> = plans
            .iter()
            .map(|(container, _)| {
                scope.spawn(move || node.run(container).unwrap().success().unwrap())
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
    for (_, guest) in &plans {
        scene.assert_restored(&guest.id);
        assert_eq!(guest.hash(), hash);
        assert_eq!(guest.runs(), ["wake"]);
    }
    for id in ids {
        scene.remove(id);
    }
    scene.end();
}
