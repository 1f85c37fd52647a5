//! The connection to thawd of a restore. It is made anew for ever: what thawd cannot answer now it answers later.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thaw_proto::Reason;
use thaw_proto::data::{File, FromNode, MAX_PACKET, Piece, ToNode, ZERO_SEGMENT};
use thaw_proto::failpoint;
use thaw_proto::gate::FromLander;
use thiserror::Error;

use super::copy::{CopyQueue, Job, Segments};
use super::{NO_FILE, ReadOp};
use crate::lander::files::ServerFile;
use crate::lander::gate::Gate;
use crate::lander::{exit, log, seqpacket};

/// How long thawd may be away before go. The shim has started it and may start it again.
const GIVE_UP: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Why a connection ended.
#[derive(Debug, Error)]
enum Ended {
    /// thawd is not there or went away.
    #[error("connection to thawd: {0}")]
    Io(#[from] io::Error),
    /// thawd hung up.
    #[error("thawd hung up")]
    HangUp,
    /// thawd says what makes no sense.
    #[error("thawd broke the protocol: {0}")]
    Nonsense(String),
    /// thawd says that it cannot be done.
    #[error("{reason}: {detail}")]
    Failed { reason: String, detail: String },
}

/// The connection and the reads that wait for an answer.
#[derive(Debug)]
pub(super) struct Link {
    path: PathBuf,
    hello: ToNode,
    gate: Arc<Gate>,
    queue: Arc<CopyQueue>,
    state: Mutex<State>,
    welcomed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Set while thawd takes reads.
    socket: Option<Arc<OwnedFd>>,
    sizes: Option<[u64; 3]>,
    next_tag: u32,
    pending: HashMap<u32, ReadOp>,
}

impl Link {
    pub(super) fn new(
        path: PathBuf,
        hello: ToNode,
        gate: Arc<Gate>,
        queue: Arc<CopyQueue>,
    ) -> Self {
        Link {
            path,
            hello,
            gate,
            queue,
            state: Mutex::default(),
            welcomed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sizes of the three files. Waits for thawd's welcome; does not return if it never comes.
    pub(super) fn sizes(&self) -> [u64; 3] {
        let mut state = self.state();
        loop {
            if let Some(sizes) = state.sizes {
                return sizes;
            }
            state = self
                .welcomed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks thawd; the answer goes to the copiers.
    pub(super) fn read(&self, op: ReadOp) {
        let (packet, socket) = {
            let mut state = self.state();
            let tag = state.next_tag;
            state.next_tag = tag.wrapping_add(1);
            let packet = request(tag, &op);
            state.pending.insert(tag, op);
            (packet, state.socket.clone())
        };
        // Without a connection, or if it breaks now, the next one repeats what is pending.
        if let Some(socket) = socket
            && let Err(error) = seqpacket::send(&*socket, &packet.encode(), None)
        {
            log::say(format_args!("ask thawd: {error}"));
        }
    }

    /// Drops what is pending for a closed file.
    pub(super) fn forget(&self, file: &Arc<ServerFile>) {
        self.state()
            .pending
            .retain(|_, op| !Arc::ptr_eq(&op.file, file));
    }

    /// The restore cannot be finished: before go the shim decides, after go the sandbox must not go on.
    pub(super) fn lost(&self, reason: Reason, detail: String) {
        if !self.gate.fail(reason, detail.clone()) {
            self.end(reason, detail);
        }
    }

    fn end(&self, reason: Reason, detail: String) -> ! {
        self.gate.tell(&FromLander::Failed { reason, detail });
        std::process::exit(exit::DATA_LOST);
    }

    /// Keeps the connection up. Returns when the restore cannot go on.
    pub(super) fn run(&self) {
        let mut away_since = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let mut welcomed = false;
            let Err(ended) = self.session(&mut welcomed);
            self.state().socket = None;
            if welcomed {
                away_since = Instant::now();
                pause = FIRST_PAUSE;
                log::say(format_args!("{ended}"));
            }
            if let Ended::Failed { reason, detail } = ended {
                let reason = reason.parse().unwrap_or(Reason::NodeUnavailable);
                if self.gate.fail(reason, detail.clone()) {
                    return;
                }
                if is_final(reason) {
                    self.end(reason, detail);
                }
            } else if away_since.elapsed() > GIVE_UP
                && !self.gate.is_open()
                && self.gate.fail(Reason::NodeUnavailable, ended.to_string())
            {
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One connection, from Restore to its end.
    fn session(&self, welcomed: &mut bool) -> Result<Infallible, Ended> {
        failpoint::hit("lander.connect");
        let socket = Arc::new(seqpacket::connect(&self.path)?);
        seqpacket::send(&*socket, &self.hello.encode(), None)?;
        let segments = Segments::default();
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let (len, fd) = seqpacket::receive(&*socket, &mut buffer)?.ok_or(Ended::HangUp)?;
            let message = FromNode::decode(&buffer[..len])
                .map_err(|error| Ended::Nonsense(error.to_string()))?;
            match message {
                FromNode::Welcome { sizes } => {
                    self.welcome(sizes, &socket)?;
                    *welcomed = true;
                }
                FromNode::Ready => self.gate.node_is_ready(),
                FromNode::Failed { reason, detail } => {
                    return Err(Ended::Failed { reason, detail });
                }
                FromNode::Segment { segment } => {
                    let fd =
                        fd.ok_or_else(|| Ended::Nonsense("segment without descriptor".to_owned()))?;
                    segments
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(segment, Arc::new(fd));
                }
                FromNode::Data { tag, pieces } => self.answered(tag, pieces, &segments)?,
                FromNode::Done { .. } => {
                    return Err(Ended::Nonsense("Done in a restore".to_owned()));
                }
            }
        }
    }

    fn welcome(&self, sizes: [u64; 3], socket: &Arc<OwnedFd>) -> Result<(), Ended> {
        if sizes[File::PagesMeta as usize] == NO_FILE {
            // A compressed checkpoint is one file, and the kernel runs when it has read it.
            self.gate.withhold(File::State);
        }
        let packets: Vec<_> = {
            let mut state = self.state();
            if *state.sizes.get_or_insert(sizes) != sizes {
                return Err(Ended::Nonsense(
                    "the snapshot has other sizes than before".to_owned(),
                ));
            }
            state.socket = Some(socket.clone());
            state
                .pending
                .iter()
                .map(|(tag, op)| request(*tag, op).encode())
                .collect()
        };
        self.welcomed.notify_all();
        for packet in packets {
            seqpacket::send(&**socket, &packet, None)?;
        }
        Ok(())
    }

    fn answered(&self, tag: u32, pieces: Vec<Piece>, segments: &Segments) -> Result<(), Ended> {
        // A file that was closed meanwhile wants no answer.
        let Some(op) = self.state().pending.remove(&tag) else {
            return Ok(());
        };
        let total: u64 = pieces.iter().map(|p| u64::from(p.len)).sum();
        let known = {
            let segments = segments.lock().unwrap_or_else(PoisonError::into_inner);
            pieces
                .iter()
                .all(|p| p.segment == ZERO_SEGMENT || segments.contains_key(&p.segment))
        };
        if total != u64::from(op.len) || !known {
            let said = format!(
                "{} of {} bytes of {} at {}, segments known: {known}",
                total,
                op.len,
                op.file.which.name(),
                op.offset
            );
            self.state().pending.insert(tag, op);
            return Err(Ended::Nonsense(said));
        }
        self.queue.push(Job {
            op,
            pieces,
            segments: segments.clone(),
        });
        Ok(())
    }
}

fn request(tag: u32, op: &ReadOp) -> ToNode {
    ToNode::Read {
        tag,
        file: op.file.which,
        class: op.class,
        offset: op.offset,
        len: op.len,
    }
}

/// Whether a failure after go means that the data cannot be had any more. The others pass: the store comes back, and
/// thawd is asked again for as long as the sandbox waits.
fn is_final(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::StoreUnreachable
            | Reason::StoreDenied
            | Reason::StoreSlow
            | Reason::NodeUnavailable
            | Reason::CacheFull
    )
}
