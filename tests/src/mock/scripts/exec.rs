//! Further processes in a running container.

use super::Script;
use crate::mock::error::MockError;
use crate::mock::spec::Spec;
use crate::mock::stage::Stage;

type Done = Result<(), MockError>;

pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "exec",
        play: exec,
    },
    Script {
        name: "exec of a missing program",
        play: missing,
    },
    Script {
        name: "exec id twice",
        play: duplicate,
    },
    Script {
        name: "exec never started",
        play: never_started,
    },
    Script {
        name: "exec killed",
        play: killed,
    },
    Script {
        name: "exec ends with its container",
        play: with_container,
    },
    Script {
        name: "exec after the container's end",
        play: after_end,
    },
    Script {
        name: "processes",
        play: processes,
    },
];

fn running(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::sh("sleep 600"))?;
    stage.create("c")?;
    stage.start("c");
    Ok(())
}

fn exec(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.exec("c", "e", &["/bin/sh", "-c", "echo inside; exit 5"])?;
    stage.state("c", "e");
    stage.start_exec("c", "e");
    stage.wait("c", "e");
    stage.state("c", "e");
    stage.output("c", "e");
    stage.delete("c", "e");
    stage.state("c", "e");
    stage.state("c", "");
    Ok(())
}

fn missing(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.exec("c", "e", &["/no/such/program"])?;
    stage.start_exec("c", "e");
    stage.state("c", "");
    stage.delete("c", "e");
    Ok(())
}

fn duplicate(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.exec("c", "e", &["/bin/true"])?;
    stage.exec("c", "e", &["/bin/true"])?;
    stage.start_exec("c", "e");
    stage.wait("c", "e");
    stage.start_exec("c", "e");
    stage.delete("c", "e");
    stage.exec("c", "e", &["/bin/true"])?;
    stage.start_exec("c", "e");
    stage.wait("c", "e");
    stage.delete("c", "e");
    Ok(())
}

fn never_started(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.exec("c", "e", &["/bin/true"])?;
    stage.kill("c", "e", 9);
    stage.delete("c", "e");
    stage.state("c", "e");
    Ok(())
}

fn killed(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.exec("c", "e", &["/bin/sleep", "600"])?;
    stage.start_exec("c", "e");
    stage.delete("c", "e");
    stage.kill("c", "e", 15);
    stage.wait("c", "e");
    stage.kill("c", "e", 9);
    stage.delete("c", "e");
    stage.kill("c", "nobody", 9);
    stage.state("c", "");
    Ok(())
}

fn with_container(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.exec("c", "e", &["/bin/sleep", "600"])?;
    stage.start_exec("c", "e");
    stage.kill("c", "", 9);
    stage.wait("c", "");
    stage.wait("c", "e");
    stage.delete("c", "e");
    stage.delete("c", "");
    Ok(())
}

fn after_end(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.exec("c", "before", &["/bin/true"])?;
    stage.kill("c", "", 9);
    stage.wait("c", "");
    stage.exec("c", "after", &["/bin/true"])?;
    stage.start_exec("c", "before");
    Ok(())
}

fn processes(stage: &mut Stage) -> Done {
    running(stage)?;
    stage.exec("c", "e", &["/bin/sleep", "600"])?;
    stage.pids("c");
    stage.start_exec("c", "e");
    stage.pids("c");
    stage.kill("c", "e", 9);
    stage.wait("c", "e");
    stage.pids("c");
    Ok(())
}
