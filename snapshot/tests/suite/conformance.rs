//! What every back end must do. Takes an empty store; leaves it empty.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use thaw_proto::Reason;
use thaw_proto::data::{Class, File};
use thaw_snapshot::reader::Snapshot;
use thaw_snapshot::store::{MAX_CANDIDATES, Store, StoreErrorKind};
use thaw_snapshot::{PackId, SnapshotId};

use crate::common::{Files, provenance, read_file, wanted, write};

const DEADLINE: Duration = Duration::from_secs(30);

/// Runs all of it.
pub(crate) async fn conformance(store: &Store) {
    store.prepare().await.expect("prepares");
    store.prepare().await.expect("prepares again");
    store.probe().await.expect("probe");
    objects(store).await;
    newest_entries_come_first(store).await;
    snapshots(store).await;
}

async fn objects(store: &Store) {
    let w = wanted("objects", &["a"]);
    let tenant = w.scope.tenant;
    let bytes = Bytes::from_static(b"0123456789");
    let pack = PackId::from(blake3::hash(&bytes));
    assert!(store.put_pack(&tenant, &pack, bytes.clone()).await.unwrap());
    assert!(
        !store.put_pack(&tenant, &pack, bytes).await.unwrap(),
        "uploaded twice"
    );
    let got = store
        .get_range(&tenant, &pack, 2..5, Class::Demand)
        .await
        .unwrap();
    assert_eq!(got, "234");
    let beyond = store
        .get_range(&tenant, &pack, 5..15, Class::Fill)
        .await
        .unwrap_err();
    assert_eq!(beyond.kind, StoreErrorKind::Body, "{beyond}");
    let after = store
        .get_range(&tenant, &pack, 20..25, Class::Fill)
        .await
        .unwrap_err();
    assert_eq!(after.kind, StoreErrorKind::Body, "{after}");
    let absent = PackId::from_bytes([9; 32]);
    let missing = store
        .get_range(&tenant, &absent, 0..5, Class::Demand)
        .await
        .unwrap_err();
    assert_eq!(missing.kind, StoreErrorKind::Missing, "{missing}");
    assert_eq!(missing.reason(), Reason::SnapshotMissing);
    assert!(missing.path.contains(&absent.to_string()), "{missing}");
    assert_eq!(store.pack_len(&tenant, &absent).await.unwrap(), None);
    let nothing = SnapshotId::from_bytes([9; 32]);
    let error = store.get_manifest(&tenant, &nothing).await.unwrap_err();
    assert_eq!(error.reason(), Reason::SnapshotMissing);
    // Removal goes by references, so that a pack whose manifest is lost goes too.
    let owner = write(store, &Files::mixed(90), provenance(&w, 1))
        .await
        .unwrap();
    store
        .put_reference(&tenant, &pack, &owner.id)
        .await
        .unwrap();
    store.delete(&owner).await.unwrap();
    assert_eq!(store.pack_len(&tenant, &pack).await.unwrap(), None);
}

async fn newest_entries_come_first(store: &Store) {
    let w = wanted("entries", &["a"]);
    let tenant = w.scope.tenant;
    let template = write(store, &Files::mixed(91), provenance(&w, 1))
        .await
        .unwrap();
    let count = MAX_CANDIDATES as u8 + 4;
    for n in 0..count {
        let mut entry = template.clone();
        entry.id = SnapshotId::from_bytes([n + 1; 32]);
        // Far in the future, so that they are newer than the template.
        let at = UNIX_EPOCH + Duration::from_secs(10_000_000_000 + u64::from(n));
        store.put_index(&entry, at).await.unwrap();
        store
            .put_index(&entry, at)
            .await
            .expect("the same entry again");
    }
    let key = template.provenance.key;
    let listed = store.list_index(&tenant, &key, DEADLINE).await.unwrap();
    let ids: Vec<u8> = listed.iter().map(|s| s.id.as_bytes()[0]).collect();
    let newest: Vec<u8> = (1..=count).rev().take(MAX_CANDIDATES).collect();
    assert_eq!(ids, newest);
    assert_eq!(
        store.list_snapshots(&tenant).await.unwrap().len(),
        usize::from(count) + 1
    );
    for entry in store.list_snapshots(&tenant).await.unwrap() {
        store.delete(&entry).await.unwrap();
    }
    assert!(
        store
            .list_index(&tenant, &key, DEADLINE)
            .await
            .unwrap()
            .is_empty()
    );
}

async fn snapshots(store: &Store) {
    let w = wanted("snapshots", &["a"]);
    let (tenant, key) = (w.scope.tenant, w.key());
    assert!(
        store
            .list_index(&tenant, &key, DEADLINE)
            .await
            .unwrap()
            .is_empty()
    );
    let files = Files::mixed(1);
    let first = write(store, &files, provenance(&w, 1)).await.unwrap();
    // Smaller than what it holds: zeros and the repeated stretch are not stored.
    assert!(
        first.stored_bytes < files.len() * 3 / 4,
        "{}",
        first.stored_bytes
    );
    assert_eq!(first.page_bytes, files.pages.len() as u64);
    assert_eq!(
        store.list_index(&tenant, &key, DEADLINE).await.unwrap(),
        std::slice::from_ref(&first)
    );
    let workload = first.provenance.workload;
    let listed = store
        .list_workload(&tenant, &workload, DEADLINE)
        .await
        .unwrap();
    assert_eq!(listed, std::slice::from_ref(&first));
    assert!(store.list_tenants().await.unwrap().contains(&tenant));

    let other = wanted("snapshots", &["b"]);
    let second = write(store, &files, provenance(&other, 2)).await.unwrap();
    assert_ne!(first.id, second.id);
    assert!(
        store
            .list_index(&tenant, &other.key(), DEADLINE)
            .await
            .unwrap()
            .len()
            == 1
    );
    assert_eq!(
        store
            .list_workload(&tenant, &workload, DEADLINE)
            .await
            .unwrap()
            .len(),
        2
    );
    let elsewhere = wanted("another", &["a"]);
    assert!(
        store
            .list_index(&elsewhere.scope.tenant, &elsewhere.key(), DEADLINE)
            .await
            .unwrap()
            .is_empty()
    );

    let deleted = store.delete(&first).await.unwrap();
    assert!(
        deleted.shared_packs > 0 && deleted.freed_bytes == 0,
        "{deleted:?}"
    );
    assert!(
        store
            .list_index(&tenant, &key, DEADLINE)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(store.get_manifest(&tenant, &first.id).await.is_err());

    let opened = Arc::new(Snapshot::open(store, &tenant, &second.id).await.unwrap());
    assert_eq!(opened.manifest.summary(second.id), second);
    for file in File::ALL {
        assert!(
            read_file(store, &opened, file).await.unwrap() == files.get(file),
            "{} differs",
            file.name()
        );
        let hash = blake3::hash(files.get(file)).to_hex().to_string();
        assert_eq!(opened.manifest.file(file).unwrap().hash, hash);
    }
    let deleted = store.delete(&second).await.unwrap();
    assert_eq!(
        (deleted.freed_bytes, deleted.shared_packs),
        (second.stored_bytes, 0)
    );
    store.delete(&second).await.expect("deleting twice");
    assert!(store.list_snapshots(&tenant).await.unwrap().is_empty());
}
