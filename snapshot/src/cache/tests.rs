use std::fs::OpenOptions;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::format::PAGE;

fn tenant(n: u8) -> TenantId {
    TenantId::from_bytes([n; 32])
}

fn id(n: u32) -> ChunkId {
    ChunkId::from(blake3::hash(&n.to_le_bytes()))
}

fn content(n: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&n.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn segments(dir: &TempDir) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir.path().join(LAYOUT))
        .unwrap()
        .flat_map(|tenant| fs::read_dir(tenant.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect();
    found.sort();
    found
}

fn damage(path: &Path, offset: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], offset).unwrap();
}

#[test]
fn chunks_are_found_again_by_their_tenant_only() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(dir.path(), 64 << 20).unwrap();
    let bytes = content(1, 10_000);
    let put = cache.insert(&tenant(1), &id(1), &bytes).unwrap();
    assert_eq!(put.offset % PAGE as u64, 0);
    let got = cache.get(&tenant(1), &id(1)).unwrap();
    assert_eq!(got.read().unwrap(), bytes);
    assert!(cache.get(&tenant(2), &id(1)).is_none());
    assert!(cache.get(&tenant(1), &id(2)).is_none());
    let again = cache.insert(&tenant(1), &id(1), &bytes).unwrap();
    assert_eq!(
        (again.segment.number(), again.offset),
        (put.segment.number(), put.offset)
    );
    assert!(
        put.segment.file().set_len(0).is_err(),
        "handed out for reading only"
    );
    assert_eq!(cache.bytes(), segments(&dir)[0].metadata().unwrap().len());
}

#[test]
fn files_are_for_the_owner_only() {
    use std::os::unix::fs::MetadataExt;
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(dir.path(), 64 << 20).unwrap();
    cache.insert(&tenant(1), &id(1), b"x").unwrap();
    let segment = &segments(&dir)[0];
    assert_eq!(segment.metadata().unwrap().mode() & 0o777, 0o600);
    let parent = segment.parent().unwrap().metadata().unwrap();
    assert_eq!(parent.mode() & 0o777, 0o700);
}

#[test]
fn what_was_kept_is_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(dir.path(), 64 << 20).unwrap();
    for n in 0..20 {
        cache
            .insert(&tenant(1), &id(n), &content(n, 1 + n as usize * 1000))
            .unwrap();
    }
    drop(cache);
    let cache = Cache::open(dir.path(), 64 << 20).unwrap();
    for n in 0..20 {
        let located = cache.get(&tenant(1), &id(n)).unwrap();
        assert_eq!(located.read().unwrap(), content(n, 1 + n as usize * 1000));
    }
    let new = cache.insert(&tenant(1), &id(99), b"new").unwrap();
    let old = cache.get(&tenant(1), &id(0)).unwrap();
    assert_ne!(new.segment.number(), old.segment.number());
}

#[test]
fn every_damaged_byte_of_a_record_is_noticed_after_a_restart() {
    let len = 600;
    let probe = TempDir::new().unwrap();
    let cache = Cache::open(probe.path(), 64 << 20).unwrap();
    cache.insert(&tenant(1), &id(1), &content(1, len)).unwrap();
    drop(cache);
    let segment = &segments(&probe)[0];
    let meaning = (0..record::HEADER as u64).chain(PAGE as u64..(PAGE + len) as u64);
    for offset in meaning {
        damage(segment, offset);
        let cache = Cache::open(probe.path(), 64 << 20).unwrap();
        assert!(cache.get(&tenant(1), &id(1)).is_none(), "byte {offset}");
        drop(cache);
        // A damaged header cuts the segment, so start over.
        fs::remove_file(segment).unwrap();
        let cache = Cache::open(probe.path(), 64 << 20).unwrap();
        cache.insert(&tenant(1), &id(1), &content(1, len)).unwrap();
        assert_eq!(&segments(&probe)[0], segment);
    }
}

#[test]
fn a_damaged_record_is_replaced() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(dir.path(), 64 << 20).unwrap();
    let bytes = content(1, 5000);
    let at = cache.insert(&tenant(1), &id(1), &bytes).unwrap().offset;
    drop(cache);
    damage(&segments(&dir)[0], at + 4999);
    let cache = Cache::open(dir.path(), 64 << 20).unwrap();
    let located = cache.insert(&tenant(1), &id(1), &bytes).unwrap();
    assert_eq!(located.read().unwrap(), bytes);
    assert_eq!(
        cache.get(&tenant(1), &id(1)).unwrap().read().unwrap(),
        bytes
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_torn_segment_keeps_what_is_whole(cut in 0u64..60_000, junk in any::<bool>()) {
        let dir = TempDir::new().unwrap();
        let cache = Cache::open(dir.path(), 64 << 20).unwrap();
        let located: Vec<Located> = (0..4)
            .map(|n| cache.insert(&tenant(1), &id(n), &content(n, 9000)).unwrap())
            .collect();
        drop(cache);
        let path = segments(&dir).remove(0);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let cut = cut.min(path.metadata().unwrap().len());
        file.set_len(cut).unwrap();
        if junk {
            file.write_all_at(&content(7, 5000), cut).unwrap();
        }
        let cache = Cache::open(dir.path(), 64 << 20).unwrap();
        for (n, was) in (0u32..).zip(&located) {
            match cache.get(&tenant(1), &id(n)) {
                Some(found) => prop_assert_eq!(found.read().unwrap(), content(n, 9000)),
                None => prop_assert!(was.offset + 9000u64.next_multiple_of(PAGE as u64) > cut),
            }
        }
        prop_assert_eq!(cache.bytes(), path.metadata().unwrap().len());
    }
}

#[test]
fn the_limit_is_kept_and_handed_out_segments_stay_readable() {
    let dir = TempDir::new().unwrap();
    let limit = 20 << 20;
    let cache = Cache::open(dir.path(), limit).unwrap();
    let len = 1 << 20;
    let first = cache.insert(&tenant(1), &id(0), &content(0, len)).unwrap();
    for n in 1..60 {
        let owner = tenant(1 + (n % 2) as u8);
        cache.insert(&owner, &id(n), &content(n, len)).unwrap();
        assert!(cache.bytes() <= limit);
    }
    let on_disk: u64 = segments(&dir)
        .iter()
        .map(|p| p.metadata().unwrap().len())
        .sum();
    assert_eq!(on_disk, cache.bytes());
    assert!(cache.get(&tenant(1), &id(0)).is_none(), "the oldest went");
    assert_eq!(first.read().unwrap(), content(0, len));
    assert!(cache.get(&tenant(2), &id(59)).is_some());
    drop(cache);
    let smaller = Cache::open(dir.path(), 8 << 20).unwrap();
    assert!(smaller.bytes() <= 8 << 20);
    assert!(smaller.get(&tenant(2), &id(59)).is_some());
}

#[test]
fn chunks_that_cannot_fit_are_refused() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(dir.path(), 10_000).unwrap();
    for len in [0, 10_000, MAX_LEN + 1] {
        let refused = cache.insert(&tenant(1), &id(1), &vec![1; len]);
        assert!(matches!(refused, Err(CacheError::Length { .. })), "{len}");
    }
    assert!(cache.insert(&tenant(1), &id(1), &[1; 4096]).is_ok());
}

#[test]
fn many_threads_share_a_cache() {
    let dir = TempDir::new().unwrap();
    let cache = Cache::open(dir.path(), 8 << 20).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u8 {
            let cache = &cache;
            scope.spawn(move || {
                for n in 0..100 {
                    let bytes = content(n % 40, 100_000);
                    let located = cache.insert(&tenant(t % 2), &id(n % 40), &bytes).unwrap();
                    assert!(located.read().unwrap() == bytes);
                    if let Some(found) = cache.get(&tenant(t % 2), &id(n % 7)) {
                        assert!(found.read().unwrap() == content(n % 7, 100_000));
                    }
                }
            });
        }
    });
    assert!(cache.bytes() <= 8 << 20);
}

#[test]
fn junk_in_the_directory_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let owner = dir.path().join(LAYOUT).join(tenant(1).to_string());
    fs::create_dir_all(&owner).unwrap();
    fs::create_dir_all(dir.path().join("v2")).unwrap();
    fs::create_dir_all(dir.path().join(LAYOUT).join("..x")).unwrap();
    for name in ["a.seg", "1.seg", "0000000000000001.tmp"] {
        fs::write(owner.join(name), b"junk").unwrap();
    }
    fs::write(owner.join(file_name(5)), content(1, 9000)).unwrap();
    let cache = Cache::open(dir.path(), 64 << 20).unwrap();
    assert!(cache.get(&tenant(1), &id(1)).is_none());
    let located = cache.insert(&tenant(1), &id(1), b"x").unwrap();
    assert_eq!(located.segment.number(), 6);
    assert!(owner.join("a.seg").exists());
}
