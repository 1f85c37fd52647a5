//! From the spool into the store, after the application runs again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use thaw_snapshot::store::{Store, StoreErrorKind};
use thaw_snapshot::summary::{Provenance, Summary};
use thaw_snapshot::time::rfc3339;
use thaw_snapshot::writer::{Progress, Source, Sources, WriteError, write_snapshot};
use tokio::sync::Semaphore;

use super::spool::SpoolFile;
use super::{Capture, Files, Phase};

/// Pauses before each further attempt. The store retries single requests by itself; this is for longer outages.
const PAUSES: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
];

/// Carries the capture to its end, good or bad.
pub(super) async fn run(
    capture: Arc<Capture>,
    files: Files,
    store: Store,
    uploads: Arc<Semaphore>,
) {
    let Ok(_turn) = uploads.acquire_owned().await else {
        return;
    };
    let mut pauses = PAUSES.into_iter();
    let error = loop {
        crate::pause("node.commit").await;
        match attempt(&capture, &files, &store).await {
            Ok(summary) => {
                tracing::info!(
                    capture = capture.id,
                    container = capture.target.container,
                    snapshot = %summary.id,
                    raw_bytes = summary.raw_bytes,
                    stored_bytes = summary.stored_bytes,
                    paused_ms = capture.paused_ms.load(Relaxed),
                    "snapshot is durable"
                );
                capture
                    .done_bytes
                    .store(capture.total_bytes.load(Relaxed), Relaxed);
                capture.enter(Phase::Durable {
                    snapshot: summary.id,
                    stored_bytes: summary.stored_bytes,
                });
                return;
            }
            Err(error) => match pauses.next().filter(|_| may_heal(&error)) {
                Some(pause) => {
                    tracing::warn!(capture = capture.id, %error, ?pause, "upload failed, trying again");
                    tokio::time::sleep(pause).await;
                }
                None => break error,
            },
        }
        if capture.progress().phase != Phase::Uploading {
            return; // given up meanwhile
        }
    };
    capture.fail(code(&error), &error.to_string());
}

async fn attempt(
    capture: &Arc<Capture>,
    files: &Files,
    store: &Store,
) -> Result<Summary, WriteError> {
    let [state, meta, pages] = &files.files;
    let sources = Sources {
        state: source(state, "checkpoint.img")?,
        pages_meta: Some(source(meta, "pages_meta.img")?),
        pages: Some(source(pages, "pages.img")?),
    };
    let target = &capture.target;
    let provenance = Provenance::new(
        &target.wanted,
        target.workload,
        target.image.clone(),
        rfc3339(SystemTime::now()),
        capture.paused_ms.load(Relaxed),
    );
    capture.done_bytes.store(0, Relaxed);
    let shown = Arc::clone(capture);
    let progress: Progress = Arc::new(move |done| shown.done_bytes.store(done, Relaxed));
    write_snapshot(store, sources, provenance, progress).await
}

fn source(file: &SpoolFile, name: &'static str) -> Result<Source, WriteError> {
    let handle = file.file().try_clone();
    Ok(Source {
        file: handle.map_err(|source: io::Error| WriteError::Source {
            file: name,
            offset: 0,
            source,
        })?,
        len: file.len(),
    })
}

/// Whether the same again can end better.
fn may_heal(error: &WriteError) -> bool {
    match error {
        WriteError::Store(error) => error.kind != StoreErrorKind::AlreadyExists,
        _ => false,
    }
}

fn code(error: &WriteError) -> &'static str {
    match error {
        WriteError::Store(error) if error.kind == StoreErrorKind::NoSpace => "store-full",
        WriteError::Store(error) => error.reason().code(),
        _ => "capture-failed",
    }
}
