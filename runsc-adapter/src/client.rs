//! runsc's verbs as calls: run the command, read why it failed.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::command::{Checkpoint, Create, Exec, Restore, Runsc, Target, WaitFor};
use crate::control::StatsEvent;
use crate::error::{Failure, RunscError};
use crate::log::LogMark;
use crate::spawn::{Finished, Input, RunError, Spawner, Streams, run};

/// Go programs end with this status when they cannot read their flags (package flag).
const BAD_USAGE: i32 = 2;

/// One runsc, who starts its commands, and how long they may take.
#[derive(Clone)]
pub struct RunscClient {
    /// Command lines. Set its log, or failures have no message.
    pub runsc: Runsc,
    /// Who starts and reaps.
    pub spawner: Arc<dyn Spawner>,
    /// Limit of every verb but `restore`, `checkpoint`, `wait` and an attached `exec`.
    pub limit: Duration,
}

/// Answer of `runsc state`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct State {
    /// containerd's id.
    #[serde(deserialize_with = "crate::id::deserialize")]
    pub id: String,
    /// creating, created, running, paused or stopped.
    pub status: String,
    /// The sandbox's process on the host; 0 if it is gone.
    #[serde(default)]
    pub pid: i32,
    /// The bundle.
    pub bundle: String,
}

/// Answer of `runsc wait`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Exit {
    /// containerd's id.
    #[serde(default, deserialize_with = "crate::id::deserialize")]
    pub id: String,
    /// Exit code, or 128 + signal.
    #[serde(rename = "exitStatus")]
    pub status: u32,
}

impl RunscClient {
    /// A client.
    pub fn new(runsc: Runsc, spawner: Arc<dyn Spawner>, limit: Duration) -> RunscClient {
        RunscClient {
            runsc,
            spawner,
            limit,
        }
    }

    /// The same for a container in this bundle: runsc logs there.
    pub fn in_bundle(&self, bundle: &Path) -> RunscClient {
        RunscClient {
            runsc: self.runsc.in_bundle(bundle),
            ..self.clone()
        }
    }

    /// Creates a container, and its sandbox if it is a root container. The streams become those of a root container.
    pub async fn create(&self, args: &Create, streams: Streams) -> Result<(), RunscError> {
        let command = self.runsc.create(args);
        self.quiet("create", &args.id, command, streams, Some(self.limit))
            .await
    }

    /// Starts a created container. The streams become those of a container that is not the root.
    pub async fn start(&self, id: &str, streams: Streams) -> Result<(), RunscError> {
        let command = self.runsc.start(id);
        self.quiet("start", id, command, streams, Some(self.limit))
            .await
    }

    /// Restores a created container. `None`: no time limit.
    ///
    /// Killing the command does not stop the restore; whoever gives up must kill the sandbox.
    pub async fn restore(
        &self,
        args: &Restore,
        streams: Streams,
        limit: Option<Duration>,
    ) -> Result<(), RunscError> {
        let command = self.runsc.restore(args);
        self.quiet("restore", &args.id, command, streams, limit)
            .await
    }

    /// Saves a sandbox.
    pub async fn checkpoint(
        &self,
        args: &Checkpoint,
        limit: Option<Duration>,
    ) -> Result<(), RunscError> {
        let command = self.runsc.checkpoint(args);
        let streams = Streams::captured();
        self.quiet("checkpoint", &args.id, command, streams, limit)
            .await
    }

    /// Starts a further process. Detached: returns when it runs; else: its exit status when it has ended, for which
    /// there is no time limit.
    pub async fn exec(&self, args: &Exec, streams: Streams) -> Result<i32, RunscError> {
        let command = self.runsc.exec(args);
        if args.detach {
            self.quiet("exec", &args.id, command, streams, Some(self.limit))
                .await?;
            return Ok(0);
        }
        let mark = self.mark();
        let done = self
            .launch("exec", &args.id, command, streams, None)
            .await?;
        // 128 is also runsc's status for its own failures, which leave a message.
        match done.status.code() {
            Some(128) => match self.message(mark.as_ref(), &done) {
                Some(text) => Err(self.error("exec", &args.id, Failure::classify(&text))),
                None => Ok(128),
            },
            Some(code) => Ok(code),
            None => Err(self.error("exec", &args.id, Failure::Other("runsc was killed".into()))),
        }
    }

    /// Sends a signal.
    pub async fn kill(&self, id: &str, signal: i32, target: Target) -> Result<(), RunscError> {
        self.plain("kill", id, self.runsc.kill(id, signal, target))
            .await
    }

    /// Removes a container and, with its root container, the sandbox.
    pub async fn delete(&self, id: &str, force: bool) -> Result<(), RunscError> {
        self.plain("delete", id, self.runsc.delete(id, force)).await
    }

    /// Stops all processes of the sandbox.
    pub async fn pause(&self, id: &str) -> Result<(), RunscError> {
        self.plain("pause", id, self.runsc.pause(id)).await
    }

    /// Undoes [`RunscClient::pause`].
    pub async fn resume(&self, id: &str) -> Result<(), RunscError> {
        self.plain("resume", id, self.runsc.resume(id)).await
    }

    /// The container's processes, numbered in the sandbox's root PID namespace.
    pub async fn ps(&self, id: &str) -> Result<Vec<i32>, RunscError> {
        self.json("ps", id, self.runsc.ps(id), Some(self.limit))
            .await
    }

    /// The container's statistics, CPU time included.
    pub async fn stats(&self, id: &str) -> Result<StatsEvent, RunscError> {
        self.json("events", id, self.runsc.stats(id), Some(self.limit))
            .await
    }

    /// Changes resource limits; `resources` is the OCI object in JSON.
    pub async fn update(&self, id: &str, resources: Vec<u8>) -> Result<(), RunscError> {
        let streams = Streams {
            stdin: Input::Bytes(resources),
            ..Streams::captured()
        };
        let command = self.runsc.update(id);
        self.quiet("update", id, command, streams, Some(self.limit))
            .await
    }

    /// The container's state.
    pub async fn state(&self, id: &str) -> Result<State, RunscError> {
        self.json("state", id, self.runsc.state(id), Some(self.limit))
            .await
    }

    /// Waits, without time limit, for the end of a process.
    pub async fn wait_exit(&self, id: &str, what: WaitFor) -> Result<Exit, RunscError> {
        self.json("wait", id, self.runsc.wait(id, what), None).await
    }

    /// Waits, without time limit, until all pages of a restore are loaded.
    pub async fn wait_restored(&self, id: &str) -> Result<(), RunscError> {
        let command = self.runsc.wait(id, WaitFor::Restored);
        self.quiet("wait", id, command, Streams::captured(), None)
            .await
    }

    /// One metadata value of a `checkpoint.img`.
    pub async fn statefile_get(&self, file: &Path, key: &str) -> Result<String, RunscError> {
        let id = file.display().to_string();
        let command = self.runsc.statefile_get(file, key);
        let done = self
            .checked("statefile", &id, command, Some(self.limit))
            .await?;
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }

    async fn plain(
        &self,
        verb: &'static str,
        id: &str,
        command: Command,
    ) -> Result<(), RunscError> {
        self.quiet(verb, id, command, Streams::captured(), Some(self.limit))
            .await
    }

    async fn json<T: DeserializeOwned>(
        &self,
        verb: &'static str,
        id: &str,
        command: Command,
        limit: Option<Duration>,
    ) -> Result<T, RunscError> {
        let done = self.checked(verb, id, command, limit).await?;
        serde_json::from_slice(&done.stdout)
            .map_err(|e| self.error(verb, id, Failure::Answer(e.to_string())))
    }

    async fn quiet(
        &self,
        verb: &'static str,
        id: &str,
        command: Command,
        streams: Streams,
        limit: Option<Duration>,
    ) -> Result<(), RunscError> {
        let mark = self.mark();
        let done = self.launch(verb, id, command, streams, limit).await?;
        self.succeeded(verb, id, mark.as_ref(), &done).await
    }

    async fn checked(
        &self,
        verb: &'static str,
        id: &str,
        command: Command,
        limit: Option<Duration>,
    ) -> Result<Finished, RunscError> {
        let mark = self.mark();
        let done = self
            .launch(verb, id, command, Streams::captured(), limit)
            .await?;
        self.succeeded(verb, id, mark.as_ref(), &done).await?;
        Ok(done)
    }

    async fn launch(
        &self,
        verb: &'static str,
        id: &str,
        command: Command,
        streams: Streams,
        limit: Option<Duration>,
    ) -> Result<Finished, RunscError> {
        run(self.spawner.as_ref(), command, streams, limit)
            .await
            .map_err(|e| {
                let failure = match e {
                    RunError::Timeout(limit) => Failure::Timeout(limit),
                    RunError::Spawn(source) => Failure::Spawn {
                        binary: self.runsc.binary.clone(),
                        source,
                    },
                    RunError::Wait(e) => Failure::Other(format!("cannot wait for runsc: {e}")),
                };
                self.error(verb, id, failure)
            })
    }

    fn mark(&self) -> Option<LogMark> {
        self.runsc.log.as_deref().map(LogMark::end_of)
    }

    async fn succeeded(
        &self,
        verb: &'static str,
        id: &str,
        mark: Option<&LogMark>,
        done: &Finished,
    ) -> Result<(), RunscError> {
        if done.status.success() {
            return Ok(());
        }
        let failure = match self.message(mark, done) {
            Some(text) => Failure::classify(&text),
            None => self.unexplained(done).await,
        };
        Err(self.error(verb, id, failure))
    }

    /// A command that refuses its flags says so only on its standard error, which may be the container's: with this
    /// status the flags are tried again where the answer can be read.
    async fn unexplained(&self, done: &Finished) -> Failure {
        let mut text = format!("failed without a message ({})", done.status);
        if done.status.code() == Some(BAD_USAGE) {
            let streams = Streams::captured();
            let tried = run(
                self.spawner.as_ref(),
                self.runsc.usage(),
                streams,
                Some(self.limit),
            )
            .await;
            if let Ok(tried) = tried
                && !tried.status.success()
            {
                let said = String::from_utf8_lossy(&tried.stderr);
                text = format!(
                    "it does not take its flags: {}",
                    said.lines().next().unwrap_or_default()
                );
            }
        }
        Failure::Other(text)
    }

    /// The last error in the log since the mark; of several, the one that this command also printed, since commands of
    /// one container may run side by side. Without a log, what the command printed.
    fn message(&self, mark: Option<&LogMark>, done: &Finished) -> Option<String> {
        let printed = String::from_utf8_lossy(&done.stderr);
        let logged = mark.map(LogMark::errors).unwrap_or_default();
        logged
            .iter()
            .rev()
            .find(|m| !m.is_empty() && printed.contains(m.as_str()))
            .or(logged.last())
            .cloned()
            .or_else(|| Some(printed.trim().to_owned()))
            .filter(|m| !m.is_empty())
    }

    fn error(&self, verb: &'static str, id: &str, failure: Failure) -> RunscError {
        RunscError {
            verb,
            id: id.to_owned(),
            failure,
        }
    }
}
