//! The local back end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use thaw_proto::Reason;
use thaw_snapshot::store::{Store, StoreErrorKind};
use thaw_snapshot::writer::WriteError;

use crate::common::{Files, provenance, wanted, write};

const DEADLINE: Duration = Duration::from_secs(30);

fn open(dir: &Path) -> Store {
    Store::open(&format!("file://{}", dir.display()), &BTreeMap::new()).unwrap()
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
            found.push(path);
        } else {
            found.push(path);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_and_leaves_nothing_behind() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("a directory").join("store");
    let store = Store::open(
        url::Url::from_file_path(&root).unwrap().as_str(),
        &BTreeMap::new(),
    )
    .unwrap();
    crate::conformance::conformance(&store).await;
    assert_eq!(files_below(&root), [root.join("v1/store"), root.join("v1")]);
}

#[tokio::test]
async fn a_store_that_is_gone_is_not_an_empty_one() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("store");
    let store = open(&root);
    let w = wanted("default", &["a"]);
    let (tenant, key) = (w.scope.tenant, w.key());
    let error = store.list_index(&tenant, &key, DEADLINE).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unreachable);
    assert_eq!(error.reason(), Reason::StoreUnreachable);
    assert!(error.to_string().contains("store"), "{error}");
    assert!(!root.exists(), "a look-up made the directory");

    store.prepare().await.unwrap();
    assert!(
        store
            .list_index(&tenant, &key, DEADLINE)
            .await
            .unwrap()
            .is_empty()
    );
    let summary = write(&store, &Files::mixed(1), provenance(&w, 1))
        .await
        .unwrap();

    std::fs::rename(&root, dir.path().join("away")).unwrap();
    let error = store.list_index(&tenant, &key, DEADLINE).await.unwrap_err();
    assert_eq!(error.reason(), Reason::StoreUnreachable);
    let error = store.get_manifest(&tenant, &summary.id).await.unwrap_err();
    assert_eq!(error.reason(), Reason::StoreUnreachable);
    let error = write(&store, &Files::mixed(1), provenance(&w, 2))
        .await
        .unwrap_err();
    assert!(matches!(error, WriteError::Store(e) if e.kind == StoreErrorKind::Unreachable));
    assert!(!root.exists(), "a write made the directory");
}

#[tokio::test]
async fn a_root_that_is_no_directory_cannot_be_prepared() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let error = open(&file.join("store")).prepare().await.unwrap_err();
    assert!(error.to_string().contains("prepare"), "{error}");
    assert_eq!(error.reason(), Reason::StoreUnreachable);
}

#[tokio::test]
async fn bad_entries_are_left_out() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path());
    store.prepare().await.unwrap();
    let w = wanted("default", &["a"]);
    let (tenant, key) = (w.scope.tenant, w.key());
    let good = write(&store, &Files::mixed(1), provenance(&w, 1))
        .await
        .unwrap();
    let entries = dir.path().join(format!("v1/t/{tenant}/index/{key}"));
    let name = std::fs::read_dir(&entries)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .file_name();
    let name = name.to_str().unwrap();
    let bytes = std::fs::read(entries.join(name)).unwrap();
    let time = &name[..17];
    for (id, content) in [
        ("aa".repeat(32), b"not json".to_vec()),
        ("bb".repeat(32), bytes.clone()),
        ("cc".repeat(32), Vec::new()),
        ("junk".to_owned(), bytes.clone()),
    ] {
        std::fs::write(entries.join(format!("{time}{id}")), content).unwrap();
    }
    // A good entry in the wrong place must not be restored for another key.
    let other = wanted("default", &["b"]).key();
    let wrong = dir.path().join(format!("v1/t/{tenant}/index/{other}"));
    std::fs::create_dir(&wrong).unwrap();
    std::fs::write(wrong.join(name), &bytes).unwrap();
    assert_eq!(
        store.list_index(&tenant, &key, DEADLINE).await.unwrap(),
        [good]
    );
    assert!(
        store
            .list_index(&tenant, &other, DEADLINE)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_capture_that_is_broken_off_is_never_found() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path());
    store.prepare().await.unwrap();
    let w = wanted("default", &["a"]);
    let files = Files::mixed(1);
    for step in 0..40 {
        let writing = write(&store, &files, provenance(&w, 1));
        let limit = Duration::from_millis(step * 3);
        if let Ok(done) = tokio::time::timeout(limit, writing).await {
            store.delete(&done.unwrap()).await.unwrap();
        }
        let key = w.key();
        let listed = store
            .list_index(&w.scope.tenant, &key, DEADLINE)
            .await
            .unwrap();
        for summary in listed {
            // It was committed at the very moment in which it was broken off: then it is whole.
            store
                .get_manifest(&w.scope.tenant, &summary.id)
                .await
                .unwrap();
            store.delete(&summary).await.unwrap();
        }
    }
    let whole = write(&store, &files, provenance(&w, 1)).await.unwrap();
    let listed = store
        .list_index(&w.scope.tenant, &w.key(), DEADLINE)
        .await
        .unwrap();
    assert_eq!(listed, [whole]);
}

#[tokio::test]
async fn a_source_that_is_shorter_than_it_says_is_not_stored() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path());
    store.prepare().await.unwrap();
    let w = wanted("default", &["a"]);
    let mut sources = Files::mixed(1).sources();
    sources.pages.as_mut().unwrap().len += 1;
    let error = thaw_snapshot::writer::write_snapshot(
        &store,
        sources,
        provenance(&w, 1),
        std::sync::Arc::new(|_| {}),
    )
    .await
    .unwrap_err();
    assert!(error.to_string().contains("pages.img"), "{error}");
    assert!(
        store
            .list_snapshots(&w.scope.tenant)
            .await
            .unwrap()
            .is_empty()
    );
}
