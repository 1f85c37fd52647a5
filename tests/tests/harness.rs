//! The harness itself, held against a runtime that is known to work: what fails here is not Thaw's fault.

use std::time::Duration;

use thaw_testkit::image;
use thaw_testkit::netns::Cable;
use thaw_testkit::node::{Container, NodeOptions, Settings, TestNode, assert_clean};
use thaw_testkit::tools::{self, Tools};

const RUNC: &str = "io.containerd.runc.v2";
const BUSYBOX: &str = "thaw.dev/test/busybox:1";

#[test]
fn a_node_runs_containers_and_leaves_nothing() {
    let tools = Tools::find().unwrap();
    let busybox = image::busybox(BUSYBOX, &tools.busybox).unwrap();
    let guest = image::guest("thaw.dev/test/guest:1", &tools::guest().unwrap()).unwrap();
    let node = TestNode::start(NodeOptions {
        product: None,
        tools,
        settings: Settings::default(),
        cri: None,
    })
    .unwrap();
    node.install(&tools::runc_shim().unwrap()).unwrap();
    node.import(&busybox).unwrap();
    node.import(&guest).unwrap();
    let runc = |mut container: Container| {
        container.runtime = RUNC.into();
        container.flag(&format!(
            "--runc-root={}",
            node.files().top().join("runc").display()
        ))
    };

    let once = runc(Container::new("once", BUSYBOX).args(&["sh", "-c", "echo out; exit 7"]));
    let output = node.run_attached(&once).unwrap();
    assert_eq!(output.status.code(), Some(7), "{output}");
    assert_eq!(output.stdout, "out\n", "{output}");

    let cable = Cable::new(&node.files().scratch(), "net").unwrap();
    let log = node.files().scratch().join("log");
    std::fs::create_dir(&log).unwrap();
    let served = Container::new("served", guest.name())
        .args(&["/bin/thaw-guest", "--mib", "4", "--log", "/log/runs"])
        .env("HOSTNAME=one")
        .mount(&log, "/log")
        .join(cable.pod());
    node.run(&runc(served)).unwrap().success().unwrap();
    let (hash, _) = cable
        .first_response(8000, "/hash", Duration::from_secs(20), |a| {
            a.body.len() == 32
        })
        .unwrap()
        .unwrap();
    let again = cable
        .get(8000, "/hash", Duration::from_secs(5))
        .unwrap()
        .unwrap();
    assert_eq!(hash.text(), again.text());
    assert_eq!(
        node.task_state("served").unwrap().as_deref(),
        Some("RUNNING")
    );
    let runs = std::fs::read_to_string(log.join("runs")).unwrap();
    assert!(
        runs.starts_with("start ") && runs.lines().count() == 1,
        "{runs}"
    );
    let exec = node
        .exec("served", &["/bin/thaw-guest", "--nonsense", "1"])
        .unwrap();
    assert_eq!(exec.status.code(), Some(2), "{exec}");

    node.remove("served").unwrap();
    assert_eq!(node.task_state("served").unwrap(), None);
    assert_clean(&node);
    drop(cable);
    node.end().unwrap();
}
