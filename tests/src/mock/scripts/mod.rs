//! What is played with every shim to compare them.

mod exec;
mod lifecycle;
mod pod;
mod run;
mod streams;

use super::error::MockError;
use super::place::Mock;
use super::stage::{Played, Stage};

/// One script.
#[derive(Clone, Copy)]
pub struct Script {
    /// By which it is asked for.
    pub name: &'static str,
    play: fn(&mut Stage) -> Result<(), MockError>,
}

impl Script {
    /// Plays it from the first bundle to the last cleanup.
    pub fn play(&self, mock: Mock) -> Result<Played, MockError> {
        let mut stage = Stage::new(mock);
        (self.play)(&mut stage)?;
        Ok(stage.finish())
    }
}

/// What a script is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// Programs that run and end.
    Run,
    /// Further processes in a container.
    Exec,
    /// Calls in every state.
    Lifecycle,
    /// Standard input and terminals.
    Streams,
    /// Pods.
    Pod,
}

impl Theme {
    const ALL: [Theme; 5] = [
        Theme::Run,
        Theme::Exec,
        Theme::Lifecycle,
        Theme::Streams,
        Theme::Pod,
    ];

    /// Its scripts.
    pub fn scripts(self) -> &'static [Script] {
        match self {
            Theme::Run => run::SCRIPTS,
            Theme::Exec => exec::SCRIPTS,
            Theme::Lifecycle => lifecycle::SCRIPTS,
            Theme::Streams => streams::SCRIPTS,
            Theme::Pod => pod::SCRIPTS,
        }
    }
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Script> {
    Theme::ALL.into_iter().flat_map(Theme::scripts)
}

/// The one of this name.
pub fn find(name: &str) -> Option<&'static Script> {
    all().find(|script| script.name == name)
}
