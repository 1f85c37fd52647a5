//! Pods as CRI makes them: one shim, a container that holds the sandbox, and app containers without a `start`.

use super::Script;
use crate::mock::error::MockError;
use crate::mock::spec::Spec;
use crate::mock::stage::Stage;

type Done = Result<(), MockError>;

pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "pod",
        play: pod,
    },
    Script {
        name: "pod container again",
        play: container_again,
    },
    Script {
        name: "pod's own container ends first",
        play: pause_ends,
    },
];

fn begin(stage: &mut Stage) -> Done {
    stage.launch_pod("pod", Spec::sh("sleep 600"))?;
    stage.create("pod")?;
    stage.start("pod");
    Ok(())
}

fn pod(stage: &mut Stage) -> Done {
    begin(stage)?;
    for id in ["a", "b"] {
        stage.join_pod("pod", id, Spec::sh("echo here; sleep 600"))?;
        stage.connect(id, "pod");
        stage.create(id)?;
        stage.connect(id, "pod");
        stage.start(id);
        stage.output_has(id, "", "here");
    }
    stage.exec("a", "e", &["/bin/sh", "-c", "echo inside; exit 5"])?;
    stage.start_exec("a", "e");
    stage.wait("a", "e");
    stage.output("a", "e");
    stage.delete("a", "e");
    stage.kill("a", "", 9);
    stage.wait("a", "");
    stage.delete("a", "");
    stage.shutdown("pod");
    stage.state("a", "");
    stage.state("b", "");
    stage.state("pod", "");
    stage.kill("b", "", 9);
    stage.wait("b", "");
    stage.delete("b", "");
    stage.kill("pod", "", 9);
    stage.wait("pod", "");
    stage.delete("pod", "");
    stage.shutdown("pod");
    Ok(())
}

fn container_again(stage: &mut Stage) -> Done {
    begin(stage)?;
    for id in ["first", "second"] {
        stage.join_pod("pod", id, Spec::sh("echo here; exit 3"))?;
        stage.create(id)?;
        stage.start(id);
        stage.wait(id, "");
        stage.output(id, "");
        stage.delete(id, "");
    }
    stage.state("pod", "");
    Ok(())
}

fn pause_ends(stage: &mut Stage) -> Done {
    begin(stage)?;
    stage.join_pod("pod", "a", Spec::sh("sleep 600"))?;
    stage.create("a")?;
    stage.start("a");
    stage.kill("a", "", 9);
    stage.wait("a", "");
    stage.kill("pod", "", 9);
    stage.wait("pod", "");
    stage.delete("pod", "");
    stage.delete("a", "");
    stage.shutdown("pod");
    Ok(())
}
