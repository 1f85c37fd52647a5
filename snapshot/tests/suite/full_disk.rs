//! A disk that is full, in a mount namespace of its own that ends with the test.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use thaw_snapshot::ChunkId;
use thaw_snapshot::cache::{Cache, CacheError, Located};
use thaw_snapshot::store::{Store, StoreErrorKind};
use thaw_snapshot::writer::WriteError;

use crate::common::{Files, noise, provenance, wanted, write};

const DISK: &str = "THAW_TEST_SMALL_DISK";
const MOUNT: &str =
    r#"mount -t tmpfs -o size=12m small-disk "$1" && exec "$2" --exact --ignored "$3""#;

fn on_a_small_disk(test: &str) {
    let dir = TempDir::new().unwrap();
    let status = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", MOUNT, "sh"])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(DISK, dir.path())
        .status()
        .unwrap();
    assert!(status.success(), "{test}: {status}");
}

fn small_disk() -> PathBuf {
    PathBuf::from(std::env::var_os(DISK).expect("run by the test of the same name"))
}

#[test]
fn the_cache_says_so_and_stays_right() {
    on_a_small_disk("full_disk::cache_on_a_small_disk");
}

#[test]
#[ignore = "needs a small disk"]
fn cache_on_a_small_disk() {
    const LEN: usize = 700_000;
    let cache = Cache::open(&small_disk(), 1 << 30).unwrap();
    let tenant = wanted("default", &["a"]).scope.tenant;
    let id = |n: u64| ChunkId::from(blake3::hash(&n.to_le_bytes()));
    // Descriptors that are held keep evicted segments on the disk.
    let mut held: Vec<Located> = Vec::new();
    let error = loop {
        let n = held.len() as u64;
        match cache.insert(&tenant, &id(n), &noise(LEN, n)) {
            Ok(located) => held.push(located),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, CacheError::Full { .. }), "{error}");
    assert!(held.len() > 10, "{}", held.len());
    for (n, located) in (0..).zip(&held) {
        assert!(located.read().unwrap() == noise(LEN, n), "chunk {n}");
        if let Some(found) = cache.get(&tenant, &id(n)) {
            assert!(found.read().unwrap() == noise(LEN, n), "chunk {n}");
        }
    }
    held.clear();
    for n in 100..140 {
        let located = cache.insert(&tenant, &id(n), &noise(LEN, n)).unwrap();
        assert!(located.read().unwrap() == noise(LEN, n), "chunk {n}");
    }
    drop(cache);
    let cache = Cache::open(&small_disk(), 1 << 30).unwrap();
    assert!(cache.get(&tenant, &id(139)).is_some());
}

#[test]
fn the_store_says_so_and_lists_nothing() {
    on_a_small_disk("full_disk::store_on_a_small_disk");
}

#[tokio::test]
#[ignore = "needs a small disk"]
async fn store_on_a_small_disk() {
    let url = format!("file://{}/store", small_disk().display());
    let store = Store::open(&url, &BTreeMap::new()).unwrap();
    store.prepare().await.unwrap();
    let w = wanted("default", &["a"]);
    let mut files = Files::mixed(1);
    files.pages = noise(20 << 20, 1);
    let error = write(&store, &files, provenance(&w, 1)).await.unwrap_err();
    assert!(
        matches!(&error, WriteError::Store(e) if e.kind == StoreErrorKind::NoSpace),
        "{error}"
    );
    assert!(
        store
            .list_snapshots(&w.scope.tenant)
            .await
            .unwrap()
            .is_empty()
    );
    // What was half-written does not keep others from being stored.
    let fits = write(&store, &Files::mixed(1), provenance(&w, 2))
        .await
        .unwrap();
    assert_eq!(store.list_snapshots(&w.scope.tenant).await.unwrap(), [fits]);
}
