//! Content decides, not names.

use thaw_proto::Reason;
use thaw_testkit::image;
use thaw_testkit::scene::{GUEST, Scene, StoreKind};
use thaw_testkit::tools;

#[test]
fn another_content_under_the_same_name_is_cold() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();
    let image = image::guest(GUEST, &tools::guest().unwrap()).unwrap();
    scene.import(&image.clone().file("etc/added", "by another push", 0o644));
    let guest = scene.start("retagged");
    scene.assert_cold("retagged", Reason::ImageDiffers);
    assert_eq!(guest.runs(), ["start"]);
    assert_eq!(guest.hash(), hash);
    scene.remove("retagged");

    scene.import(&image);
    let guest = scene.start("back");
    scene.assert_restored("back");
    assert_eq!(guest.hash(), hash);
    scene.remove("back");
    scene.end();
}

#[test]
fn the_same_content_under_another_name_restores() {
    let mut scene = Scene::new(StoreKind::Directory);
    let hash = scene.captured();
    let other = "thaw.dev/elsewhere/renamed:7";
    let image = image::guest(other, &tools::guest().unwrap()).unwrap();
    scene.import(&image);
    let guest = scene.start_as("renamed", |mut container| {
        container.image = other.into();
        container
    });
    scene.assert_restored("renamed");
    assert_eq!(guest.hash(), hash);
    scene.remove("renamed");
    scene.end();
}
