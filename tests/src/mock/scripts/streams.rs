//! Standard input and terminals.

use std::io::Write;
use std::path::Path;

use super::Script;
use crate::mock::error::{MockError, file};
use crate::mock::spec::Spec;
use crate::mock::stage::Stage;

type Done = Result<(), MockError>;

pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "stdin closed after start",
        play: closed_after_start,
    },
    Script {
        name: "stdin closed before start",
        play: closed_before_start,
    },
    Script {
        name: "stdin of an exec",
        play: exec_stdin,
    },
    Script {
        name: "terminal",
        play: terminal,
    },
    Script {
        name: "terminal of an exec",
        play: exec_terminal,
    },
];

/// Opens a process's standard input as a client does; it stays open until it is dropped.
fn writer(stage: &Stage, id: &str, exec: &str) -> Result<std::fs::File, MockError> {
    let path = stage
        .stdin_path(id, exec)
        .unwrap_or(Path::new("a missing standard input"));
    // For both, so that it does not wait for the shim.
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(file("open", path))
}

fn write(to: &mut std::fs::File, text: &str) -> Done {
    to.write_all(text.as_bytes())
        .map_err(file("write", "a standard input"))
}

fn closed_after_start(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::new(&["/bin/cat"]))?;
    stage.create_with_input("c", true)?;
    let mut stdin = writer(stage, "c", "")?;
    stage.start("c");
    write(&mut stdin, "hello\n")?;
    stage.output_has("c", "", "hello\n");
    drop(stdin);
    stage.close_stdin("c", "");
    stage.wait("c", "");
    stage.output("c", "");
    Ok(())
}

fn closed_before_start(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::new(&["/bin/cat"]))?;
    stage.create_with_input("c", true)?;
    stage.close_stdin("c", "");
    stage.start("c");
    stage.wait("c", "");
    stage.output("c", "");
    Ok(())
}

fn exec_stdin(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::sh("sleep 600"))?;
    stage.create("c")?;
    stage.start("c");
    stage.exec_with("c", "e", &Spec::process(&["/bin/cat"], false), false, true)?;
    let mut stdin = writer(stage, "c", "e")?;
    stage.start_exec("c", "e");
    write(&mut stdin, "hello\n")?;
    stage.output_has("c", "e", "hello\n");
    drop(stdin);
    stage.close_stdin("c", "e");
    stage.wait("c", "e");
    stage.output("c", "e");
    stage.close_stdin("c", "nobody");
    Ok(())
}

const SIZE: &str = "test -t 0 && test -t 1 && echo is one; while read line; do stty size; done";

fn terminal(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::sh(SIZE).terminal())?;
    stage.create_with_input("c", true)?;
    stage.resize("c", "", 90, 30);
    let mut keyboard = writer(stage, "c", "")?;
    stage.start("c");
    stage.output_has("c", "", "is one");
    stage.resize("c", "", 111, 44);
    write(&mut keyboard, "\n")?;
    stage.output_has("c", "", "44 111");
    // The end of input, as a person types it.
    write(&mut keyboard, "\x04")?;
    stage.wait("c", "");
    stage.resize("c", "", 80, 25);
    stage.delete("c", "");
    Ok(())
}

fn exec_terminal(stage: &mut Stage) -> Done {
    stage.launch("c", &Spec::sh("sleep 600"))?;
    stage.create("c")?;
    stage.start("c");
    let process = Spec::process(&["/bin/sh", "-c", SIZE], true);
    stage.exec_with("c", "e", &process, true, true)?;
    let mut keyboard = writer(stage, "c", "e")?;
    stage.start_exec("c", "e");
    stage.output_has("c", "e", "is one");
    stage.resize("c", "e", 111, 44);
    write(&mut keyboard, "\n")?;
    stage.output_has("c", "e", "44 111");
    write(&mut keyboard, "\x04")?;
    stage.wait("c", "e");
    stage.resize("c", "nobody", 80, 25);
    Ok(())
}
