//! One column of the table: a suite, run to its end against a shim.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use thiserror::Error;

use super::images::{self, ByDigest, ImagesError};
use super::kit::Kit;
use super::library::{Library, LibraryError};
use super::outcome::{Outcome, Status, Totals};
use super::suite::{Shim, Suite};
use super::world::{self, Job, World, WorldError};
use crate::command::{self, CommandError};
use crate::tools::ToolError;

/// Why a suite cannot be run.
#[derive(Debug, Error)]
pub enum RunError {
    /// Something is not installed or does not build.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// There are no images.
    #[error(transparent)]
    Images(#[from] ImagesError),
    /// They cannot be kept.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// There is no place for it.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The suite does not list its tests.
    #[error("cannot list the tests of a suite: {0}")]
    List(#[from] CommandError),
    /// A directory for images.
    #[error("cannot create a directory for images: {0}")]
    Directory(std::io::Error),
}

/// Programs and images, good for many runs.
#[derive(Debug)]
pub struct Workshop {
    kit: Kit,
    dir: TempDir,
    by_digest: ByDigest,
    /// What becomes a world's first process.
    program: PathBuf,
    logs: PathBuf,
}

/// What a suite said about a shim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Column {
    /// Which suite.
    pub suite: Suite,
    /// Which shim.
    pub shim: Shim,
    /// All results.
    pub outcomes: Vec<Outcome>,
    /// How long it took.
    pub took: Duration,
}

impl Column {
    /// Sums.
    pub fn totals(&self) -> Totals {
        Totals::of(&self.outcomes)
    }
}

impl Workshop {
    /// Builds the images and sweeps up after runs that were killed. `program` is the `thaw-conform` binary; logs of all
    /// runs are kept below `logs`.
    pub fn open(kit: Kit, program: &Path, logs: &Path) -> Result<Workshop, RunError> {
        world::sweep();
        let dir = TempDir::new().map_err(RunError::Directory)?;
        let mut library = Library::create(dir.path())?;
        let by_digest = images::build(&mut library, &kit.busybox, &kit.guest)?;
        Ok(Workshop {
            kit,
            dir,
            by_digest,
            program: program.to_owned(),
            logs: logs.to_owned(),
        })
    }

    /// Runs a suite against a shim; with `only`, just these tests of it. Those that are known to be `hanging` come last,
    /// so that they disturb no other, and are not waited for as long.
    pub fn run(
        &self,
        suite: Suite,
        shim: Shim,
        only: &[String],
        hanging: &[String],
    ) -> Result<Column, RunError> {
        let started = Instant::now();
        let part = if only.is_empty() { "" } else { "-part" };
        let logs = self
            .logs
            .join(format!("{}-{}{part}", suite.name(), shim.name()));
        let _ = std::fs::remove_dir_all(&logs);
        let outcomes = match suite {
            Suite::Client => self.client(shim, only, hanging, &logs)?,
            Suite::Cri => self.once(suite, shim, only.to_vec(), stall(shim), &logs)?,
        };
        Ok(Column {
            suite,
            shim,
            outcomes,
            took: started.elapsed(),
        })
    }

    /// A test that hangs or panics ends its world; the rest goes on in a new one.
    fn client(
        &self,
        shim: Shim,
        only: &[String],
        hanging: &[String],
        logs: &Path,
    ) -> Result<Vec<Outcome>, RunError> {
        let tests = if only.is_empty() {
            self.client_tests()?
        } else {
            only.to_vec()
        };
        let (last, first): (Vec<String>, Vec<String>) = tests
            .into_iter()
            .partition(|test| hanging.iter().any(|name| parent(name) == test));
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut round = 0;
        for (mut tests, stall) in [(first, stall(shim)), (last, HANGING)] {
            while !tests.is_empty() {
                round += 1;
                let logs = logs.join(round.to_string());
                let mut new = self.once(Suite::Client, shim, tests.clone(), stall, &logs)?;
                if !new
                    .iter()
                    .any(|outcome| tests.iter().any(|test| test == parent(&outcome.name)))
                {
                    new.push(Outcome {
                        name: tests[0].clone(),
                        status: Status::Failed,
                        seconds: 0.0,
                        detail: format!("the suite ended without a result, see {}", logs.display()),
                    });
                }
                tests.retain(|test| !new.iter().any(|outcome| parent(&outcome.name) == test));
                outcomes.append(&mut new);
            }
        }
        Ok(outcomes)
    }

    fn client_tests(&self) -> Result<Vec<String>, RunError> {
        let program = self
            .kit
            .binaries
            .iter()
            .find(|path| path.ends_with("client.test"))
            .cloned()
            .unwrap_or_default();
        let list = command::run(
            std::process::Command::new(program).args(["-test.short", "-test.list=^Test"]),
            Duration::from_secs(30),
        )?
        .success()?;
        Ok(list
            .stdout
            .lines()
            .filter(|l| l.starts_with("Test"))
            .map(str::to_owned)
            .collect())
    }

    fn once(
        &self,
        suite: Suite,
        shim: Shim,
        tests: Vec<String>,
        stall: Duration,
        logs: &Path,
    ) -> Result<Vec<Outcome>, RunError> {
        let world = World::new(&self.kit)?;
        let job = Job {
            suite,
            shim,
            tests,
            stall,
            library: self.dir.path().to_owned(),
            by_digest: self.by_digest.clone(),
        };
        world.run(&self.program, &job)?;
        world.keep_logs(logs)?;
        Ok(world.outcomes())
    }
}

/// How long a test that is known to hang is given, in case that it does not any more.
const HANGING: Duration = Duration::from_secs(15);

/// How long a test may show no sign of life.
///
/// The slowest good one takes 40 s. In front of gVisor's own shim most tests hang for ever, because its Create does for
/// containers without CRI's annotations, so there it must be less.
fn stall(shim: Shim) -> Duration {
    match shim {
        Shim::Runc | Shim::Thaw => Duration::from_secs(240),
        Shim::Gvisor => HANGING,
    }
}

/// The whole test of a subtest.
fn parent(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}
