//! Programs that run and end.

use super::Script;
use crate::mock::error::MockError;
use crate::mock::place::Root;
use crate::mock::spec::Spec;
use crate::mock::stage::Stage;

type Done = Result<(), MockError>;

pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "run true",
        play: run_true,
    },
    Script {
        name: "run false",
        play: run_false,
    },
    Script {
        name: "death by signal",
        play: death_by_signal,
    },
    Script {
        name: "output",
        play: output,
    },
    Script {
        name: "root by bind mount",
        play: bind,
    },
    Script {
        name: "missing program",
        play: missing_program,
    },
    Script {
        name: "bad root",
        play: bad_root,
    },
    Script {
        name: "bad specification",
        play: bad_specification,
    },
    Script {
        name: "deleted without start",
        play: never_started,
    },
    Script {
        name: "out of memory",
        play: out_of_memory,
    },
    Script {
        name: "the same id again",
        play: again,
    },
];

fn life(stage: &mut Stage, spec: &Spec) -> Done {
    stage.launch("c", spec)?;
    stage.create("c")?;
    stage.state("c", "");
    stage.start("c");
    stage.wait("c", "");
    stage.state("c", "");
    stage.output("c", "");
    stage.delete("c", "");
    stage.state("c", "");
    stage.shutdown("c");
    Ok(())
}

fn run_true(stage: &mut Stage) -> Done {
    life(stage, &Spec::new(&["/bin/true"]))
}

fn run_false(stage: &mut Stage) -> Done {
    life(stage, &Spec::new(&["/bin/false"]))
}

fn death_by_signal(stage: &mut Stage) -> Done {
    // The first process of a namespace cannot send itself a signal that it does not handle.
    stage.launch("c", &Spec::sh("sleep 600"))?;
    stage.create("c")?;
    stage.start("c");
    stage.kill("c", "", 9);
    stage.wait("c", "");
    stage.state("c", "");
    stage.delete("c", "");
    stage.shutdown("c");
    Ok(())
}

fn output(stage: &mut Stage) -> Done {
    life(stage, &Spec::sh("echo one; echo two >&2; exit 42"))
}

fn bind(stage: &mut Stage) -> Done {
    stage.launch_on(
        "c",
        &Spec::sh("echo changed > /etc/file; cat /etc/file"),
        Root::Bind,
    )?;
    stage.create("c")?;
    stage.start("c");
    stage.wait("c", "");
    stage.output("c", "");
    stage.delete("c", "");
    Ok(())
}

fn missing_program(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::new(&["/no/such/program"]))?;
    if stage.create("c")? {
        stage.start("c");
        stage.state("c", "");
        stage.delete("c", "");
    }
    stage.connect("c", "c");
    Ok(())
}

fn failed_create(stage: &mut Stage) {
    stage.state("c", "");
    stage.connect("c", "c");
    stage.delete("c", "");
    stage.shutdown("c");
}

fn bad_root(stage: &mut Stage) -> Done {
    stage.launch_on("c", &Spec::new(&["/bin/true"]), Root::Broken)?;
    stage.create("c")?;
    failed_create(stage);
    Ok(())
}

fn bad_specification(stage: &mut Stage) -> Done {
    // Enough for `start`, which wants annotations, and for nothing else.
    stage.launch(
        "c",
        &Spec::raw(r#"{"ociVersion": "1.0.2", "annotations": {}}"#),
    )?;
    stage.create("c")?;
    failed_create(stage);
    Ok(())
}

fn never_started(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::sh("sleep 600"))?;
    stage.create("c")?;
    stage.delete("c", "");
    stage.state("c", "");
    Ok(())
}

fn out_of_memory(stage: &mut Stage) -> Done {
    // A line that never ends.
    let spec = Spec::new(&["/bin/tail", "/dev/zero"]).memory(128 << 20);
    stage.launch("c", &spec)?;
    stage.create("c")?;
    stage.start("c");
    stage.wait("c", "");
    stage.stats("c");
    stage.delete("c", "");
    Ok(())
}

fn again(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::new(&["/bin/true"]))?;
    stage.create("c")?;
    stage.create("c")?;
    stage.start("c");
    stage.wait("c", "");
    stage.delete("c", "");
    stage.create("c")?;
    stage.start("c");
    stage.wait("c", "");
    stage.delete("c", "");
    Ok(())
}
