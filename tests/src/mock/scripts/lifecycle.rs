//! Calls in every state of a container.

use serde_json::json;

use super::Script;
use crate::mock::error::MockError;
use crate::mock::spec::Spec;
use crate::mock::stage::Stage;

type Done = Result<(), MockError>;

pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "unknown container",
        play: unknown,
    },
    Script {
        name: "created",
        play: created,
    },
    Script {
        name: "start twice",
        play: start_twice,
    },
    Script {
        name: "kill of the dead",
        play: kill_dead,
    },
    Script {
        name: "signals",
        play: signals,
    },
    Script {
        name: "delete running",
        play: delete_running,
    },
    Script {
        name: "pause and resume",
        play: pause,
    },
    Script {
        name: "kill while paused",
        play: kill_paused,
    },
    Script {
        name: "many waits",
        play: many_waits,
    },
    Script {
        name: "shutdown with a container",
        play: shutdown,
    },
    Script {
        name: "stats",
        play: stats,
    },
    Script {
        name: "update",
        play: update,
    },
];

fn running(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::sh("sleep 600"))?;
    stage.create("c")?;
    stage.start("c");
    Ok(())
}

fn unknown(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::new(&["/bin/true"]))?;
    stage.connect("c", "c");
    stage.connect("nobody", "c");
    stage.state("c", "");
    stage.start("c");
    stage.wait("c", "");
    stage.kill("c", "", 9);
    stage.delete("c", "");
    stage.pids("c");
    stage.pause("c");
    stage.resume("c");
    stage.stats("c");
    stage.update("c", &json!({}));
    stage.close_stdin("c", "");
    stage.resize("c", "", 80, 25);
    stage.exec("c", "e", &["/bin/true"])?;
    stage.shutdown("c");
    Ok(())
}

fn created(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::sh("sleep 600"))?;
    stage.create("c")?;
    stage.connect("c", "c");
    stage.pids("c");
    stage.stats("c");
    stage.pause("c");
    stage.resume("c");
    stage.kill("c", "", 9);
    stage.wait("c", "");
    stage.state("c", "");
    stage.start("c");
    stage.delete("c", "");
    Ok(())
}

fn start_twice(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.start("c");
    stage.state("c", "");
    stage.kill("c", "", 9);
    stage.wait("c", "");
    stage.start("c");
    stage.state("c", "");
    Ok(())
}

fn kill_dead(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::new(&["/bin/true"]))?;
    stage.create("c")?;
    stage.start("c");
    stage.wait("c", "");
    stage.kill("c", "", 9);
    stage.kill("c", "", 15);
    stage.kill_all("c", 9);
    stage.pause("c");
    stage.resume("c");
    stage.update("c", &json!({}));
    stage.close_stdin("c", "");
    stage.wait("c", "");
    stage.state("c", "");
    Ok(())
}

fn signals(stage: &mut Stage) -> Done {
    let script = "trap 'echo got it; exit 7' TERM; trap 'echo hup' HUP; echo ready; while true; do sleep 0.1; done";
    stage.launch("c", &Spec::sh(script))?;
    stage.create("c")?;
    stage.start("c");
    stage.output_has("c", "", "ready");
    stage.kill("c", "", 1);
    stage.output_has("c", "", "hup");
    stage.kill("c", "", 15);
    stage.wait("c", "");
    stage.output("c", "");
    Ok(())
}

fn delete_running(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.delete("c", "");
    stage.state("c", "");
    stage.kill("c", "", 9);
    stage.wait("c", "");
    stage.delete("c", "");
    stage.delete("c", "");
    stage.wait("c", "");
    Ok(())
}

fn pause(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.pause("c");
    stage.state("c", "");
    stage.pause("c");
    stage.pids("c");
    stage.stats("c");
    stage.start("c");
    stage.delete("c", "");
    stage.resume("c");
    stage.state("c", "");
    stage.resume("c");
    stage.exec("c", "e", &["/bin/true"])?;
    stage.start_exec("c", "e");
    stage.wait("c", "e");
    Ok(())
}

fn kill_paused(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.pause("c");
    stage.kill("c", "", 9);
    stage.wait("c", "");
    stage.delete("c", "");
    Ok(())
}

fn many_waits(stage: &mut Stage) -> Done {
    running(stage)?;
    let waits = stage.begin_waits("c", 8)?;
    stage.kill("c", "", 9);
    stage.end_waits("c", waits);
    let late = stage.begin_waits("c", 2)?;
    stage.end_waits("c", late);
    Ok(())
}

fn shutdown(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.shutdown("c");
    stage.state("c", "");
    stage.kill("c", "", 9);
    stage.wait("c", "");
    stage.shutdown("c");
    stage.state("c", "");
    stage.delete("c", "");
    stage.shutdown("c");
    Ok(())
}

fn stats(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.stats("c");
    stage.kill("c", "", 9);
    stage.wait("c", "");
    // containerd asks after the end whether memory was the reason.
    stage.stats("c");
    stage.delete("c", "");
    stage.stats("c");
    Ok(())
}

fn update(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.update(
        "c",
        &json!({"memory": {"limit": 200_000_000}, "cpu": {"shares": 512}}),
    );
    stage.state("c", "");
    stage.update("c", &json!({"memory": {"limit": "much"}}));
    stage.state("c", "");
    Ok(())
}
