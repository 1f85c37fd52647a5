//! The S3 back end, against a server that can fail on purpose.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use thaw_proto::Reason;
use thaw_proto::data::File;
use thaw_snapshot::matching::Wanted;
use thaw_snapshot::reader::Snapshot;
use thaw_snapshot::store::{Store, StoreErrorKind};
use thaw_snapshot::summary::Summary;
use thaw_testkit::s3::{Fault, FaultRule, S3Options, S3Server};

use crate::common::{Files, provenance, read_file, wanted, write};
use crate::conformance::conformance;

const DEADLINE: Duration = Duration::from_secs(30);

fn open(endpoint: &str, more: &[(&str, &str)]) -> Store {
    let options = [
        ("aws_endpoint", endpoint),
        ("aws_region", "test"),
        ("aws_access_key_id", "id"),
        ("aws_secret_access_key", "secret"),
        ("aws_allow_http", "true"),
    ];
    let options: BTreeMap<String, String> = options
        .iter()
        .chain(more)
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Store::open("s3://bucket/some/prefix", &options).unwrap()
}

/// A server with one snapshot in it.
struct Served {
    server: S3Server,
    store: Store,
    wanted: Wanted,
    files: Files,
    summary: Summary,
}

impl Served {
    async fn new() -> Served {
        let server = S3Server::start(S3Options::default()).unwrap();
        let store = open(&server.endpoint(), &[]);
        store.prepare().await.unwrap();
        let wanted = wanted("default", &["a"]);
        let files = Files::mixed(1);
        let summary = write(&store, &files, provenance(&wanted, 1)).await.unwrap();
        Served {
            server,
            store,
            wanted,
            files,
            summary,
        }
    }

    fn fail(&self, rules: Vec<FaultRule>) {
        self.server.set_faults(rules);
    }

    /// Whether the snapshot is found and everything in it reads back right.
    async fn reads_back(&self) {
        let tenant = self.wanted.scope.tenant;
        let key = self.wanted.key();
        let listed = self
            .store
            .list_index(&tenant, &key, DEADLINE)
            .await
            .unwrap();
        assert_eq!(listed, std::slice::from_ref(&self.summary));
        let snapshot = Snapshot::open(&self.store, &tenant, &self.summary.id)
            .await
            .unwrap();
        let snapshot = Arc::new(snapshot);
        for file in File::ALL {
            let read = read_file(&self.store, &snapshot, file).await.unwrap();
            assert!(read == self.files.get(file), "{} differs", file.name());
        }
    }

    async fn look_up_fails(&self, deadline: Duration) -> (StoreErrorKind, Reason) {
        let (tenant, key) = (self.wanted.scope.tenant, self.wanted.key());
        let error = self
            .store
            .list_index(&tenant, &key, deadline)
            .await
            .unwrap_err();
        assert!(!error.message.is_empty());
        (error.kind, error.reason())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let server = S3Server::start(S3Options::default()).unwrap();
    conformance(&open(&server.endpoint(), &[])).await;
    let left = server.backend().keys("bucket").unwrap();
    assert_eq!(left, ["bucket/some/prefix/v1/store"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_without_conditional_put() {
    let server = S3Server::start(S3Options::default()).unwrap();
    let store = open(&server.endpoint(), &[("aws_conditional_put", "disabled")]);
    conformance(&store).await;
}

#[tokio::test]
async fn a_look_up_is_one_list_and_one_get_per_candidate() {
    let s = Served::new().await;
    s.server.journal().clear();
    let (tenant, key) = (s.wanted.scope.tenant, s.wanted.key());
    s.store.list_index(&tenant, &key, DEADLINE).await.unwrap();
    let methods: Vec<String> = s
        .server
        .journal()
        .entries()
        .iter()
        .map(|e| e.method.clone())
        .collect();
    assert_eq!(methods, ["GET", "GET"]);
    let all = s.server.journal().entries();
    assert!(all[0].detail.contains("16"), "{:?}", all[0]);
}

#[tokio::test]
async fn passing_faults_are_outlived() {
    let s = Served::new().await;
    for fault in [
        Fault::Status { status: 500 },
        Fault::Status { status: 503 },
        Fault::Status { status: 429 },
        Fault::Cut { after: 100 },
        Fault::Empty,
    ] {
        s.fail(vec![FaultRule::new("*", fault).method("GET").times(2)]);
        s.reads_back().await;
        s.fail(vec![FaultRule::new("*/packs/*", fault).times(2)]);
        s.reads_back().await;
    }
    // Not for a LIST: the client takes that for an empty one, which is a miss.
    for rule in [
        FaultRule::new("*/index/*", Fault::ErrorDocument).skip(1),
        FaultRule::new("*/manifest", Fault::ErrorDocument),
        FaultRule::new("*/packs/*", Fault::ErrorDocument),
    ] {
        s.fail(vec![rule.times(1)]);
        s.reads_back().await;
    }
}

#[tokio::test]
async fn wrong_bytes_on_the_way_are_never_handed_out() {
    let s = Served::new().await;
    for offset in [0, 1_000, 50_000, 200_000] {
        let flip = Fault::Flip { offset };
        s.fail(vec![FaultRule::new("*/packs/*", flip).times(1)]);
        s.reads_back().await;
        s.fail(vec![FaultRule::new("*/manifest", flip).times(1)]);
        s.reads_back().await;
    }
    s.fail(vec![FaultRule::new(
        "*/manifest",
        Fault::Flip { offset: 9 },
    )]);
    let tenant = s.wanted.scope.tenant;
    let error = Snapshot::open(&s.store, &tenant, &s.summary.id)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::SnapshotCorrupt);
}

#[tokio::test]
async fn lasting_faults_have_their_reasons() {
    let s = Served::new().await;
    for (fault, kind, reason) in [
        (403, StoreErrorKind::Denied, Reason::StoreDenied),
        (401, StoreErrorKind::Denied, Reason::StoreDenied),
        (500, StoreErrorKind::Unreachable, Reason::StoreUnreachable),
        (404, StoreErrorKind::Missing, Reason::StoreUnreachable),
    ] {
        s.fail(vec![FaultRule::new("*", Fault::Status { status: fault })]);
        assert_eq!(s.look_up_fails(DEADLINE).await, (kind, reason), "{fault}");
    }
    s.fail(vec![FaultRule::new("*", Fault::Delay { ms: 60_000 })]);
    let late = s.look_up_fails(Duration::from_millis(300)).await;
    assert_eq!(late, (StoreErrorKind::Slow, Reason::StoreSlow));
    s.fail(vec![FaultRule::new(
        "*",
        Fault::Stall {
            after: 3,
            ms: 60_000,
        },
    )]);
    let stalled = s.look_up_fails(Duration::from_millis(300)).await;
    assert_eq!(stalled, (StoreErrorKind::Slow, Reason::StoreSlow));
    s.fail(Vec::new());
    s.reads_back().await;
}

#[tokio::test]
async fn nobody_listening_is_unreachable() {
    let s = Served::new().await;
    let Served {
        server,
        store,
        wanted,
        ..
    } = s;
    drop(server);
    let error = store
        .list_index(&wanted.scope.tenant, &wanted.key(), DEADLINE)
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unreachable, "{error}");
    assert!(error.message.contains("refused"), "{error}");
}

#[tokio::test]
async fn writes_outlive_passing_faults_and_say_what_lasts() {
    let s = Served::new().await;
    let other = wanted("default", &["b"]);
    let files = Files::mixed(2);
    s.fail(vec![
        FaultRule::new("*", Fault::Status { status: 503 })
            .method("PUT")
            .times(2),
    ]);
    write(&s.store, &files, provenance(&other, 2))
        .await
        .unwrap();
    s.fail(vec![
        FaultRule::new("*", Fault::Status { status: 403 }).method("PUT"),
    ]);
    let denied = wanted("default", &["c"]);
    let error = write(&s.store, &Files::mixed(3), provenance(&denied, 3))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("denies access"), "{error}");
    s.fail(Vec::new());
    let tenant = denied.scope.tenant;
    let listed = s
        .store
        .list_index(&tenant, &denied.key(), DEADLINE)
        .await
        .unwrap();
    assert!(listed.is_empty());
}
