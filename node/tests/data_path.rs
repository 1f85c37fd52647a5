//! Captures and restores through thawd's sockets, against a store in a local directory.

mod common;

use std::fs;
use std::time::Duration;

use common::{Began, CaptureLander, RestoreLander, TestNode, checkpoint, context, facts, spec};
use thaw_proto::data::{Class, File, FromNode};
use thaw_proto::v1::*;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_captured_is_restored_and_shared() {
    let node = TestNode::new().await;
    let files = checkpoint(1, 6000);
    let missed = node.lookup("c1", &spec("a")).await;
    assert_eq!(
        missed.miss.reason, "store-unreachable",
        "{}",
        missed.miss.detail
    );
    let snapshot = node.capture("c1", &spec("a"), &files).await;

    // Two at a time share what is fetched.
    node.know("c2", "docker.io/library/app:2", "a");
    let mut first = RestoreLander::restore(&node, "c1", &spec("a")).await;
    let mut second = RestoreLander::restore(&node, "c2", &spec("a")).await;
    tokio::join!(first.verify(&files, 7), second.verify(&files, 8));
    let (one, two) = (node.complete("c1").await, node.complete("c2").await);
    let packs: u64 = node
        .stored("/packs/")
        .iter()
        .map(|p| fs::metadata(p).unwrap().len())
        .sum();
    assert!(one.fetched_bytes + two.fetched_bytes <= packs + (2 << 20));
    assert_eq!((one.healed_chunks, two.healed_chunks), (0, 0));

    // A third one needs nothing from the store.
    let mut third = RestoreLander::restore(&node, "c2", &spec("a")).await;
    third.verify(&files, 9).await;
    let three = node.complete("c2").await;
    assert_eq!(three.fetched_bytes, 0);
    assert!(three.cache_hit_bytes > 0);

    // In use, it cannot be removed; then it can, and is gone.
    let remove = RemoveRequest {
        snapshot: snapshot[..12].into(),
        ..Default::default()
    };
    let refused = node.client.remove(context(), &remove).await.unwrap_err();
    assert!(
        refused.to_string().contains("is being restored"),
        "{refused}"
    );
    drop((first, second, third));
    let removed = loop {
        match node.client.remove(context(), &remove).await {
            Ok(removed) => break removed,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    assert_eq!(removed.snapshot, snapshot);
    assert!(removed.freed_bytes > 0);
    let missed = node.lookup("c1", &spec("a")).await;
    assert_eq!(missed.miss.reason, "no-snapshot", "{}", missed.miss.detail);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_survives_a_restart_and_landers_connect_anew() {
    let mut node = TestNode::new().await;
    let files = checkpoint(2, 3000);
    node.capture("c1", &spec("a"), &files).await;
    let mut lander = RestoreLander::restore(&node, "c1", &spec("a")).await;
    lander.verify(&files, 1).await;
    node.complete("c1").await;

    node.restart().await;
    assert_eq!(lander.take().await, Err("hung up".to_owned()));
    // No pack is needed any more.
    for pack in node.stored("/packs/") {
        fs::remove_file(pack).unwrap();
    }
    let mut lander = RestoreLander::restore(&node, "c1", &spec("a")).await;
    lander.verify(&files, 2).await;
    let stats = node.complete("c1").await;
    assert!(stats.fetched_bytes < 1 << 20, "{}", stats.fetched_bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_byte_is_healed_and_a_missing_pack_is_said() {
    let mut node = TestNode::new().await;
    let files = checkpoint(3, 3000);
    let snapshot = node.capture("c1", &spec("a"), &files).await;
    let (pack, at) = node.place_of_block(&snapshot, 3).await;
    let mut bytes = fs::read(&pack).unwrap();
    bytes[at] ^= 0x10;
    fs::write(&pack, &bytes).unwrap();

    let mut lander = RestoreLander::restore(&node, "c1", &spec("a")).await;
    lander.verify(&files, 3).await;
    assert_eq!(node.complete("c1").await.healed_chunks, 1);
    drop(lander);

    node.stop().await;
    fs::remove_dir_all(node.config.cache_dir()).unwrap();
    node.begin().await;
    for pack in node.stored("/packs/") {
        fs::remove_file(pack).unwrap();
    }
    let mut lander = RestoreLander::restore(&node, "c1", &spec("a")).await;
    let (reason, detail) = lander.wait_ready().await.unwrap_err();
    assert_eq!(reason, "snapshot-missing", "{detail}");

    fs::remove_dir_all(node.store_dir()).unwrap();
    let missed = node.lookup("c1", &spec("a")).await;
    assert_eq!(
        missed.miss.reason, "store-unreachable",
        "{}",
        missed.miss.detail
    );
    match RestoreLander::connect(&node.config, "x", "y", "c1").await {
        Began::Failed { reason, .. } => assert_eq!(reason, "snapshot-missing"),
        Began::Lander(_) => panic!("ids are checked"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_lost_after_ready_ends_the_session_with_a_strike() {
    let mut node = TestNode::new().await;
    let files = checkpoint(4, 40_000);
    let snapshot = node.capture("c1", &spec("a"), &files).await;
    let packs = node.stored("/packs/");
    assert!(packs.len() > 2, "{packs:?}");
    // The pack with the end of the memory is the one that is not needed first.
    let opened = node.lookup("c1", &spec("a")).await;
    node.restart().await;
    fs::remove_dir_all(node.config.cache_dir()).ok();
    node.restart().await;
    let manifest = node
        .client
        .show(
            context(),
            &ShowRequest {
                snapshot: snapshot.clone(),
                ..Default::default()
            },
        )
        .await
        .unwrap()
        .manifest;
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let last = manifest["packs"].as_array().unwrap().last().unwrap()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let last = packs
        .iter()
        .find(|p| p.to_str().unwrap().contains(&last))
        .unwrap();
    fs::remove_file(last).unwrap();
    let tenant = &opened.match_.tenant;
    let Began::Lander(mut lander) =
        RestoreLander::connect(&node.config, tenant, &snapshot, "c1").await
    else {
        panic!("the manifest is there");
    };
    let ready = lander.wait_ready().await;
    if ready.is_ok() {
        lander
            .ask(
                File::Pages,
                Class::Demand,
                files[2].len() as u64 - 4096,
                4096,
            )
            .await;
        assert_eq!(lander.take().await, Err("snapshot-missing".to_owned()));
        let strike = StrikeRequest {
            tenant: tenant.clone(),
            snapshot: snapshot.clone(),
            cause: "exit 139".into(),
            ..Default::default()
        };
        let struck = node.client.strike(context(), &strike).await.unwrap();
        assert!(struck.quarantined);
        let missed = node.lookup("c1", &spec("a")).await;
        assert_eq!(missed.miss.reason, "quarantined");
        assert!(missed.miss.detail.contains("exit 139"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn misses_are_explained() {
    let node = TestNode::new().await;
    let files = checkpoint(5, 100);
    let snapshot = node.capture("c1", &spec("a"), &files).await;
    let missed = node.lookup("c1", &spec("b")).await;
    assert_eq!(missed.miss.reason, "no-snapshot");
    let explain = ExplainRequest {
        lookup_id: missed.lookup_id,
        ..Default::default()
    };
    let explained = node.client.explain(context(), &explain).await.unwrap();
    assert_eq!(explained.miss.reason, "spec-differs");
    assert_eq!(explained.miss.nearest_snapshot, snapshot);
    assert_eq!(explained.miss.differences[0].field, "process.args[1]");
    assert_eq!(explained.miss.differences[0].stored, "a");

    // The same name with other content is another image; the same content under another name is the same one.
    node.know("c2", "docker.io/library/app:1", "b");
    let explain = ExplainRequest {
        container: Some(node.container("c2")).into(),
        spec: spec("a").into_bytes(),
        runtime: Some(facts()).into(),
        ..Default::default()
    };
    let explained = node.client.explain(context(), &explain).await.unwrap();
    assert_eq!(explained.miss.reason, "image-differs");
    node.know("c3", "example.com/other:9", "a");
    let found = node.lookup("c3", &spec("a")).await;
    assert_eq!(found.match_.snapshot, snapshot);

    // A root filesystem that is not from an image, and a container that is not there.
    node.know("c4", "x", "not-hex");
    for id in ["c4", "nobody"] {
        let missed = node.lookup(id, &spec("a")).await;
        assert_eq!(missed.miss.reason, "image-unknown", "{id}");
        assert!(missed.miss.detail.contains(id), "{}", missed.miss.detail);
    }

    let mut other = facts();
    other.runsc_version = "release-next".into();
    let ask = LookupRequest {
        container: Some(node.container("c1")).into(),
        spec: spec("a").into_bytes(),
        runtime: Some(other).into(),
        ..Default::default()
    };
    let missed = node.client.lookup(context(), &ask).await.unwrap();
    assert_eq!(missed.miss.reason, "runsc-differs");
    let pinned = LookupRequest {
        pinned_snapshot: snapshot.clone(),
        runtime: Some(facts()).into(),
        ..ask.clone()
    };
    let found = node.client.lookup(context(), &pinned).await.unwrap();
    assert_eq!(found.match_.snapshot, snapshot);
    let pinned = LookupRequest {
        pinned_snapshot: "ab".repeat(32),
        ..pinned
    };
    let missed = node.client.lookup(context(), &pinned).await.unwrap();
    assert_eq!(
        missed.miss.reason, "snapshot-missing",
        "{}",
        missed.miss.detail
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_capture_is_never_listed() {
    let node = TestNode::new().await;
    let files = checkpoint(6, 500);

    // A lander that leaves.
    let capture = node.capture_begin("c1", &spec("a")).await.unwrap();
    let busy = node.capture_begin("c1", &spec("a")).await.unwrap_err();
    assert!(busy.to_string().contains("capture-busy"), "{busy}");
    let lander = CaptureLander::connect(&node.config, &capture).await;
    assert!(matches!(lander.answer().await, FromNode::Welcome { .. }));
    lander.write(File::State, &files[0]).await;
    drop(lander);
    let status = node.settled(&capture).await;
    assert_eq!(status.error_code, "capture-aborted", "{}", status.error);
    assert!(node.commit(&capture).await.is_err());

    // One that says it is done too early.
    let capture = node.capture_begin("c1", &spec("a")).await.unwrap();
    let lander = CaptureLander::connect(&node.config, &capture).await;
    assert!(matches!(lander.answer().await, FromNode::Welcome { .. }));
    lander.write(File::State, &files[0]).await;
    lander.finalize(File::State).await;
    let error = node.commit(&capture).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("pages_meta.img, pages.img not finalized"),
        "{error}"
    );
    let second = CaptureLander::connect(&node.config, &capture).await;
    assert!(matches!(second.answer().await, FromNode::Failed { .. }));

    // One that is aborted after everything was written.
    let capture = node.capture_begin("c1", &spec("a")).await.unwrap();
    let lander = CaptureLander::connect(&node.config, &capture).await;
    lander.save(&files).await;
    let abort = CaptureAbortRequest {
        capture_id: capture.clone(),
        cause: "test".into(),
        ..Default::default()
    };
    node.client.capture_abort(context(), &abort).await.unwrap();
    assert_eq!(node.capture_status(&capture).await.state, "failed");

    let listed = node
        .client
        .list(context(), &ListRequest::default())
        .await
        .unwrap();
    assert!(listed.snapshots.is_empty());
    assert_eq!(fs::read_dir(node.config.spool_dir()).unwrap().count(), 0);
    assert_eq!(
        node.lookup("c1", &spec("a")).await.miss.reason,
        "no-snapshot"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_answered_with_a_sentence() {
    let node = TestNode::new().await;
    let ask = LookupRequest {
        container: Some(node.container("c1")).into(),
        spec: b"{".to_vec(),
        ..Default::default()
    };
    let error = node.client.lookup(context(), &ask).await.unwrap_err();
    assert!(
        error.to_string().contains("config.json is not JSON"),
        "{error}"
    );
    let ask = LookupRequest {
        pinned_snapshot: "../../x".into(),
        ..ask
    };
    let error = node.client.lookup(context(), &ask).await.unwrap_err();
    assert!(error.to_string().contains("hexadecimal"), "{error}");
    for prefix in ["", "abc", "../../../etc", &"0".repeat(65)] {
        let show = ShowRequest {
            snapshot: prefix.into(),
            ..Default::default()
        };
        let error = node.client.show(context(), &show).await.unwrap_err();
        assert!(error.to_string().contains("at least 8 digits"), "{error}");
    }
    let error = node.commit("capture-0-0").await.unwrap_err();
    assert!(error.to_string().contains("capture-unknown"), "{error}");
    let outcome = OutcomeRequest {
        record: "{}".into(),
        ..Default::default()
    };
    let error = node.client.outcome(context(), &outcome).await.unwrap_err();
    assert!(error.to_string().contains("not a start record"), "{error}");

    let status = StatusRequest {
        probe_store: true,
        ..Default::default()
    };
    let status = node.client.status(context(), &status).await.unwrap();
    assert_eq!(status.pid, std::process::id());
    assert!(status.cache_limit > 0);
}
