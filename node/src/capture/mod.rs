//! Captures: the spool ([`spool`]), the lander that brings a sandbox's memory ([`lander`]), what can be wrong with the files
//! ([`plausible`]) and the way into the store, all held together here.

pub mod lander;
pub mod plausible;
pub mod spool;
mod upload;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thaw_proto::data::File;
use thaw_snapshot::SnapshotId;
use thaw_snapshot::store::{Store, StoreError};
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::target::Target;
use spool::{Promise, Spool, SpoolError, SpoolFile};

/// How long the outcome of a capture can be asked for.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Outcomes remembered at most.
const MAX_REMEMBERED: usize = 256;
/// A capture that neither got a lander nor was committed by then is given up: whoever began it has gone.
const FORSAKEN: Duration = Duration::from_secs(900);

/// A request about a capture that cannot be met.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// Never begun here, or begun before thawd was restarted, or ended long ago.
    #[error("no capture {0} on this node; thawd may have been restarted since it was begun")]
    Unknown(String),
    /// One capture per key at a time.
    #[error("capture {0} of the same workload is under way")]
    Busy(String),
    /// No room.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The store would not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It has failed already.
    #[error("capture {id} failed: {message}")]
    Failed {
        /// The capture.
        id: String,
        /// Why.
        message: String,
    },
    /// Not all files are here, or they do not fit together.
    #[error("capture {id} is not complete: {message}")]
    Incomplete {
        /// The capture.
        id: String,
        /// What is missing.
        message: String,
    },
}

impl CaptureError {
    /// A code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            CaptureError::Unknown(_) => "capture-unknown",
            CaptureError::Busy(_) => "capture-busy",
            CaptureError::Spool(SpoolError::Full { .. }) => SPOOL_FULL,
            CaptureError::Spool(SpoolError::Io { .. }) => "spool-failed",
            CaptureError::Store(error) => error.reason().code(),
            CaptureError::Failed { .. } => "capture-failed",
            CaptureError::Incomplete { .. } => INCOMPLETE,
        }
    }
}

pub(crate) const SPOOL_FULL: &str = "spool-full";
pub(crate) const INCOMPLETE: &str = "checkpoint-incomplete";
pub(crate) const ABORTED: &str = "capture-aborted";

/// How far a capture is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Files are being filled.
    Spooling,
    /// On its way into the store.
    Uploading,
    /// In the store, listed and read back.
    Durable {
        /// Its id.
        snapshot: SnapshotId,
        /// Bytes in the store.
        stored_bytes: u64,
    },
    /// Nothing of it is listed.
    Failed {
        /// For programs.
        code: String,
        /// For people.
        message: String,
    },
}

impl Phase {
    /// The word in `CaptureStatusResponse`.
    pub fn name(&self) -> &'static str {
        match self {
            Phase::Spooling => "spooling",
            Phase::Uploading => "uploading",
            Phase::Durable { .. } => "durable",
            Phase::Failed { .. } => "failed",
        }
    }

    fn is_over(&self) -> bool {
        matches!(self, Phase::Durable { .. } | Phase::Failed { .. })
    }
}

/// A capture's files and the room promised for them.
#[derive(Debug)]
pub(crate) struct Files {
    promise: Promise,
    files: [SpoolFile; 3],
}

impl Files {
    fn bytes(&self) -> u64 {
        self.files.iter().map(SpoolFile::len).sum()
    }

    fn are_complete(&self) -> bool {
        self.files.iter().all(SpoolFile::is_finalized)
    }
}

/// One capture.
#[derive(Debug)]
pub struct Capture {
    /// Its id.
    pub id: String,
    /// What is captured.
    pub target: Target,
    files: Mutex<Option<Files>>,
    state: Mutex<State>,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    paused_ms: AtomicU64,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    since: Instant,
    attached: bool,
}

/// A capture's state for people and programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// How far it is.
    pub phase: Phase,
    /// Bytes of the current phase done.
    pub done_bytes: u64,
    /// Of so many.
    pub total_bytes: u64,
    /// How long the application was paused.
    pub paused_ms: u64,
}

impl Capture {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, Option<Files>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress {
            phase: self.state().phase.clone(),
            done_bytes: self.done_bytes.load(Relaxed),
            total_bytes: self.total_bytes.load(Relaxed),
            paused_ms: self.paused_ms.load(Relaxed),
        }
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state();
        state.phase = phase;
        state.since = Instant::now();
    }

    /// Gives it up unless it is over: the spool is freed, nothing is listed.
    pub(crate) fn fail(&self, code: &str, message: &str) {
        {
            let mut state = self.state();
            if state.phase.is_over() {
                return;
            }
            state.phase = Phase::Failed {
                code: code.to_owned(),
                message: message.to_owned(),
            };
            state.since = Instant::now();
        }
        self.files().take();
        tracing::warn!(capture = self.id, code, message, "capture failed");
    }

    /// Lets a lander in; only one may come.
    pub(crate) fn attach(&self) -> bool {
        let mut state = self.state();
        let free = state.phase == Phase::Spooling && !state.attached;
        state.attached |= free;
        free
    }
}

/// All captures of this node.
#[derive(Debug)]
pub struct Captures {
    spool: Arc<Spool>,
    store: Store,
    /// Chunking and compressing takes a core; more at a time only delay each other and every restore.
    uploads: Arc<Semaphore>,
    by_id: Mutex<HashMap<String, Arc<Capture>>>,
}

impl Captures {
    /// None are under way.
    pub fn new(spool: Arc<Spool>, store: Store) -> Captures {
        Captures {
            spool,
            store,
            uploads: Arc::new(Semaphore::new(1)),
            by_id: Mutex::default(),
        }
    }

    /// Everything that can be known to fail is tried before the application is paused: room in the spool, and that the
    /// store takes and gives back an object.
    pub async fn begin(
        &self,
        id: String,
        target: Target,
        expected_bytes: u64,
    ) -> Result<Arc<Capture>, CaptureError> {
        self.busy(&target)?;
        self.store.prepare().await?;
        self.store.probe().await?;
        let promise = self.spool.promise(expected_bytes)?;
        let files = [promise.file()?, promise.file()?, promise.file()?];
        let capture = Arc::new(Capture {
            id: id.clone(),
            target,
            files: Mutex::new(Some(Files { promise, files })),
            state: Mutex::new(State {
                phase: Phase::Spooling,
                since: Instant::now(),
                attached: false,
            }),
            done_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            paused_ms: AtomicU64::new(0),
        });
        // Asked again, in one step with the entry: somebody may have begun meanwhile.
        let mut by_id = self.lock();
        busy_in(&by_id, &capture.target)?;
        by_id.insert(id, Arc::clone(&capture));
        Ok(capture)
    }

    fn busy(&self, target: &Target) -> Result<(), CaptureError> {
        busy_in(&self.lock(), target)
    }

    /// One capture.
    pub fn get(&self, id: &str) -> Result<Arc<Capture>, CaptureError> {
        self.lock()
            .get(id)
            .cloned()
            .ok_or_else(|| CaptureError::Unknown(id.to_owned()))
    }

    /// The checkpoint succeeded: brings what is in the spool into the store, in the background. Asking again is harmless.
    pub fn commit(&self, id: &str, paused_ms: u64) -> Result<(), CaptureError> {
        let capture = self.get(id)?;
        match &capture.state().phase {
            Phase::Spooling => {}
            Phase::Uploading | Phase::Durable { .. } => return Ok(()),
            Phase::Failed { message, .. } => {
                return Err(CaptureError::Failed {
                    id: id.to_owned(),
                    message: message.clone(),
                });
            }
        }
        let checked = match &*capture.files() {
            Some(files) if files.are_complete() => {
                let [state, meta, pages] = &files.files;
                plausible::check(state.len(), meta.file(), meta.len(), pages.len())
            }
            Some(files) => Err(missing(files)),
            None => Err("its files are gone".to_owned()),
        };
        if let Err(message) = checked {
            capture.fail(INCOMPLETE, &message);
            return Err(CaptureError::Incomplete {
                id: id.to_owned(),
                message,
            });
        }
        let Some(files) = capture.files().take() else {
            return Err(CaptureError::Incomplete {
                id: id.to_owned(),
                message: "its files are gone".to_owned(),
            });
        };
        capture.paused_ms.store(paused_ms, Relaxed);
        capture.done_bytes.store(0, Relaxed);
        capture.total_bytes.store(files.bytes(), Relaxed);
        capture.enter(Phase::Uploading);
        tokio::spawn(upload::run(
            capture,
            files,
            self.store.clone(),
            Arc::clone(&self.uploads),
        ));
        Ok(())
    }

    /// Gives a capture up. One that is durable already stays.
    pub fn abort(&self, id: &str, cause: &str) -> Result<(), CaptureError> {
        self.get(id)?.fail(ABORTED, cause);
        Ok(())
    }

    /// How many are under way.
    pub fn active(&self) -> usize {
        self.lock()
            .values()
            .filter(|capture| !capture.state().phase.is_over())
            .count()
    }

    /// Gives up forsaken captures and forgets old outcomes.
    pub fn sweep(&self) {
        let forsaken: Vec<Arc<Capture>> = self
            .lock()
            .values()
            .filter(|capture| {
                let state = capture.state();
                state.phase == Phase::Spooling
                    && !state.attached
                    && state.since.elapsed() > FORSAKEN
            })
            .cloned()
            .collect();
        for capture in forsaken {
            capture.fail(ABORTED, "nobody brought or committed its data");
        }
        let mut by_id = self.lock();
        by_id.retain(|_, capture| {
            let state = capture.state();
            !state.phase.is_over() || state.since.elapsed() < REMEMBERED
        });
        while by_id.len() > MAX_REMEMBERED {
            let oldest = by_id
                .iter()
                .filter(|(_, capture)| capture.state().phase.is_over())
                .min_by_key(|(_, capture)| capture.state().since)
                .map(|(id, _)| id.clone());
            let Some(oldest) = oldest else { break };
            by_id.remove(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Capture>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy_in(by_id: &HashMap<String, Arc<Capture>>, target: &Target) -> Result<(), CaptureError> {
    let key = target.wanted.key();
    by_id
        .values()
        .find(|other| other.target.wanted.key() == key && !other.state().phase.is_over())
        .map_or(Ok(()), |other| Err(CaptureError::Busy(other.id.clone())))
}

fn missing(files: &Files) -> String {
    let names: Vec<&str> = File::ALL
        .into_iter()
        .filter(|file| !files.files[*file as usize].is_finalized())
        .map(File::name)
        .collect();
    format!("{} not finalized", names.join(", "))
}
