//! The threads that land what thawd has answered.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use thaw_proto::Reason;
use thaw_proto::data::{Class, Piece, ZERO_SEGMENT};
use thaw_proto::failpoint;

use super::ReadOp;
use super::link::Link;
use crate::lander::land::{Copier, LandError, Run};
use crate::lander::log;

/// The segments of one connection to thawd, by number.
pub(super) type Segments = Arc<Mutex<HashMap<u32, Arc<OwnedFd>>>>;

/// A read and where its bytes lie.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: ReadOp,
    pub(super) pieces: Vec<Piece>,
    pub(super) segments: Segments,
}

/// Jobs for the copiers, awaited ones first.
#[derive(Debug, Default)]
pub(super) struct CopyQueue {
    jobs: Mutex<[VecDeque<Job>; 2]>,
    added: Condvar,
}

impl CopyQueue {
    pub(super) fn push(&self, job: Job) {
        let lane = usize::from(job.op.class != Class::Demand);
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)[lane].push_back(job);
        self.added.notify_one();
    }

    fn pop(&self) -> Job {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = jobs.iter_mut().find_map(VecDeque::pop_front) {
                return job;
            }
            jobs = self
                .added
                .wait(jobs)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lands jobs for ever.
    pub(super) fn run(&self, link: &Link) {
        let mut copier = Copier::default();
        loop {
            let Job {
                mut op,
                pieces,
                segments,
            } = self.pop();
            let file = op.file.clone();
            if !file.start_landing() {
                continue;
            }
            failpoint::hit("lander.land");
            let landed = land(&mut copier, &op, &pieces, &segments);
            file.end_landing();
            match landed {
                Ok(()) => file.complete(op.completion()),
                Err(LandError::Target(error)) => link.lost(
                    Reason::RunscRefused,
                    format!("write memory file of the sandbox: {error}"),
                ),
                Err(error) => {
                    // thawd is asked again, for ever: it knows whether the bytes can still be had.
                    log::say(format_args!(
                        "land {} at {}: {error}",
                        file.which.name(),
                        op.offset
                    ));
                    op.failures += 1;
                    std::thread::sleep(Duration::from_millis(10 << op.failures.min(7)));
                    link.read(op);
                }
            }
        }
    }
}

fn land(
    copier: &mut Copier,
    op: &ReadOp,
    pieces: &[Piece],
    segments: &Segments,
) -> Result<(), LandError> {
    let held: Vec<Option<Arc<OwnedFd>>> = {
        let segments = segments.lock().unwrap_or_else(PoisonError::into_inner);
        pieces
            .iter()
            .map(|piece| segments.get(&piece.segment).cloned())
            .collect()
    };
    let runs = pieces.iter().zip(&held).map(|(piece, fd)| Run {
        from: match piece.segment {
            ZERO_SEGMENT => None,
            _ => fd.as_deref().map(AsFd::as_fd),
        },
        offset: piece.offset,
        len: u64::from(piece.len),
    });
    copier.land(runs, op.to.fd.as_fd(), &op.ranges)
}
