//! Bytes of real snapshots are flipped one at a time: a start is healed or cold, and never has a wrong byte.

use thaw_proto::Outcome;
use thaw_testkit::s3::Admin;
use thaw_testkit::scene::{BUCKET, Scene, StoreKind};

const FLIPS: u64 = 30;
const SEED: u64 = 0x7468_6177;

/// SplitMix64: the same positions in every run.
fn random(index: u64) -> u64 {
    let mut z = SEED.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A node that never saw the snapshot, nor failed with it: two damaged manifests would quarantine it.
fn fresh(scene: &mut Scene) {
    scene.empty_cache();
    let strikes = scene.node.files().thaw_state().join("strikes.json");
    match std::fs::remove_file(&strikes) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{}: {e}", strikes.display()),
        _ => {}
    }
}

#[test]
fn one_flipped_bit_anywhere_is_never_a_wrong_byte() {
    let mut scene = Scene::new(StoreKind::S3 { ms: 0.0 });
    let hash = scene.captured();
    let admin = Admin::new(scene.server().address());
    // Weighted by size, so that most hits are in packs; every object gets one for sure.
    let objects: Vec<(String, u64)> = admin
        .keys(&format!("{BUCKET}/"))
        .unwrap()
        .into_iter()
        .map(|key| {
            let object = scene.server().backend().get(&key).unwrap().unwrap();
            (key, object.size)
        })
        .filter(|(_, size)| *size > 0)
        .collect();
    let total: u64 = objects.iter().map(|(_, size)| size).sum();
    let position = |index: u64| -> (String, u64) {
        if let Some((key, size)) = objects.get(index as usize) {
            return (key.clone(), random(index) % size);
        }
        let mut at = random(index) % total;
        for (key, size) in &objects {
            if at < *size {
                return (key.clone(), at);
            }
            at -= size;
        }
        unreachable!("positions are below the total")
    };

    let (mut restored, mut cold) = (0, 0);
    for index in 0..FLIPS.max(objects.len() as u64) {
        let (key, offset) = position(index);
        admin.flip(&key, offset).unwrap();
        fresh(&mut scene);
        let id = format!("flip{index}");
        let guest = scene.start(&id);
        let record = scene.record(&id);
        assert_eq!(guest.hash(), hash, "{key} byte {offset}: {record:#?}");
        assert_eq!(guest.runs().len(), 1, "{key} byte {offset}: {record:#?}");
        match record.outcome {
            Outcome::Restored => restored += 1,
            Outcome::Cold => {
                assert!(record.reason.is_some(), "{record:#?}");
                cold += 1;
            }
            Outcome::Refused => panic!("{key} byte {offset}: {record:#?}"),
        }
        scene.remove(&id);
        admin.flip(&key, offset).unwrap();
    }
    println!("{restored} restored, {cold} cold");
    fresh(&mut scene);
    scene.start("whole");
    scene.assert_restored("whole");
    scene.remove("whole");
    scene.end();
}

#[test]
fn a_destroyed_pack_is_cold_and_never_wrong() {
    let mut scene = Scene::new(StoreKind::S3 { ms: 0.0 });
    let hash = scene.captured();
    let backend = scene.server().backend();
    let packs: Vec<String> = backend
        .keys(&format!("{BUCKET}/"))
        .unwrap()
        .into_iter()
        .filter(|key| key.contains("/packs/"))
        .collect();
    assert!(!packs.is_empty());
    for key in &packs {
        let size = backend.get(key).unwrap().unwrap().size as usize;
        let noise: Vec<u8> = (0..size as u64 / 8 + 1)
            .flat_map(|i| random(i).to_le_bytes())
            .take(size)
            .collect();
        backend.put(key, noise.into()).unwrap();
    }
    let guest = scene.start("destroyed");
    scene.assert_cold("destroyed", thaw_proto::Reason::SnapshotCorrupt);
    assert_eq!(guest.hash(), hash);
    assert_eq!(guest.runs(), ["start"]);
    scene.remove("destroyed");
    scene.end();
}
