//! The connection to thawd of a capture. It is made once: without it the capture fails and the application goes on.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use thaw_proto::Reason;
use thaw_proto::data::{File, FromNode, MAX_PACKET, ToNode};
use thaw_proto::gate::FromLander;

use crate::flipcall::datagram::{Completion, WriteSubmission};
use crate::lander::files::{STACK, ServerFile};
use crate::lander::gate::Gate;
use crate::lander::{log, seqpacket};

/// The connection and what waits for an answer.
#[derive(Debug)]
pub(super) struct Link {
    socket: Option<OwnedFd>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    next_tag: u32,
    pending: HashMap<u32, Pending>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// thawd has not answered yet.
    Asked,
    /// thawd takes writes.
    Welcome,
    /// Every write fails with this errno.
    Refused(i32),
}

#[derive(Debug)]
enum Pending {
    Write {
        file: Arc<ServerFile>,
        id: u32,
        len: u32,
    },
    Finalize(Option<i32>),
}

impl Link {
    /// Connects and says hello. A failure is reported and kept: the sentry learns it from its first write.
    pub(super) fn start(path: &Path, hello: &ToNode, gate: &Arc<Gate>) -> io::Result<Arc<Link>> {
        let connected = seqpacket::connect(path)
            .and_then(|socket| seqpacket::send(&socket, &hello.encode(), None).map(|()| socket));
        let (socket, phase) = match connected {
            Ok(socket) => (Some(socket), Phase::Asked),
            Err(error) => {
                report(
                    gate,
                    Reason::NodeUnavailable,
                    format!("connection to thawd: {error}"),
                );
                (None, Phase::Refused(Errno::IO.raw_os_error()))
            }
        };
        let link = Arc::new(Link {
            socket,
            state: Mutex::new(State {
                phase,
                next_tag: 0,
                pending: HashMap::new(),
            }),
            changed: Condvar::new(),
        });
        let (listener, gate) = (link.clone(), gate.clone());
        std::thread::Builder::new()
            .name("thawd".to_owned())
            .stack_size(STACK)
            .spawn(move || listener.listen(&gate))?;
        Ok(link)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket, or the errno of every write. Waits for thawd's answer to the hello.
    fn ready(&self) -> Result<&OwnedFd, i32> {
        let mut state = self.state();
        loop {
            match state.phase {
                Phase::Asked => {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Phase::Welcome => {
                    return self.socket.as_ref().ok_or(Errno::IO.raw_os_error());
                }
                Phase::Refused(errno) => return Err(errno),
            }
        }
    }

    /// Passes a client file on.
    pub(super) fn client_file(&self, file: File, handle: u32, fd: BorrowedFd<'_>) {
        if let Ok(socket) = self.ready() {
            let packet = ToNode::ClientFile { file, handle }.encode();
            if let Err(error) = seqpacket::send(socket, &packet, Some(fd)) {
                self.refuse(
                    Errno::IO.raw_os_error(),
                    &format!("send client file: {error}"),
                );
            }
        }
    }

    /// Passes a write on. It is completed when thawd has copied the bytes.
    pub(super) fn write(&self, file: &Arc<ServerFile>, write: WriteSubmission, reserve: u64) {
        let pending = Pending::Write {
            file: file.clone(),
            id: write.id,
            len: write.len,
        };
        let sent = self.ask(pending, |tag| ToNode::Write {
            tag,
            file: file.which,
            handle: write.handle,
            reserve,
            ranges: write.ranges,
        });
        if let Err(errno) = sent {
            file.complete(Completion {
                id: write.id,
                n: 0,
                errno,
            });
        }
    }

    /// Finalizes a file and waits until thawd is done with it. Returns 0 or an errno.
    pub(super) fn finalize(&self, file: File) -> i32 {
        let tag = match self.ask(Pending::Finalize(None), |tag| ToNode::Finalize {
            tag,
            file,
        }) {
            Ok(tag) => tag,
            Err(errno) => return errno,
        };
        let mut state = self.state();
        loop {
            match state.pending.get(&tag) {
                Some(Pending::Finalize(Some(errno))) => {
                    let errno = *errno;
                    state.pending.remove(&tag);
                    return errno;
                }
                Some(_) => {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                None => return Errno::IO.raw_os_error(),
            }
        }
    }

    /// Notes what is pending and sends its packet. On an error nothing is pending, and nothing was completed.
    fn ask(&self, pending: Pending, packet: impl FnOnce(u32) -> ToNode) -> Result<u32, i32> {
        let socket = self.ready()?;
        let tag = {
            let mut state = self.state();
            if let Phase::Refused(errno) = state.phase {
                return Err(errno);
            }
            let tag = state.next_tag;
            state.next_tag = tag.wrapping_add(1);
            state.pending.insert(tag, pending);
            tag
        };
        if let Err(error) = seqpacket::send(socket, &packet(tag).encode(), None) {
            // Fails whatever is pending, this included.
            self.refuse(Errno::IO.raw_os_error(), &format!("ask thawd: {error}"));
        }
        Ok(tag)
    }

    /// Drops what is pending for a closed file.
    pub(super) fn forget(&self, closed: &Arc<ServerFile>) {
        self.state().pending.retain(
            |_, pending| !matches!(pending, Pending::Write { file, .. } if Arc::ptr_eq(file, closed)),
        );
    }

    /// From now on, and for all that is pending, every write fails.
    fn refuse(&self, errno: i32, why: &str) {
        let mut state = self.state();
        if let Phase::Refused(_) = state.phase {
            return;
        }
        log::say(format_args!("writes fail from now on: {why}"));
        state.phase = Phase::Refused(errno);
        for (_, pending) in state.pending.iter_mut() {
            settle(pending, errno);
        }
        state
            .pending
            .retain(|_, pending| matches!(pending, Pending::Finalize(_)));
        self.changed.notify_all();
    }

    fn listen(&self, gate: &Gate) {
        let Some(socket) = &self.socket else { return };
        let mut buffer = vec![0; MAX_PACKET];
        let io_error = Errno::IO.raw_os_error();
        loop {
            let message = match seqpacket::receive(socket, &mut buffer) {
                Ok(Some((len, _))) => FromNode::decode(&buffer[..len]),
                Ok(None) => return self.refuse(io_error, "thawd hung up"),
                Err(error) => return self.refuse(io_error, &format!("listen to thawd: {error}")),
            };
            match message {
                Ok(FromNode::Welcome { .. }) => {
                    let mut state = self.state();
                    if state.phase == Phase::Asked {
                        state.phase = Phase::Welcome;
                    }
                    self.changed.notify_all();
                }
                Ok(FromNode::Done { tag, errno }) => self.done(tag, errno),
                Ok(FromNode::Failed { reason, detail }) => {
                    let reason = reason.parse().unwrap_or(Reason::NodeUnavailable);
                    let errno = match reason {
                        Reason::CacheFull => Errno::NOSPC,
                        Reason::StoreDenied => Errno::ACCESS,
                        _ => Errno::IO,
                    };
                    self.refuse(errno.raw_os_error(), &detail);
                    return report(gate, reason, detail);
                }
                Ok(other) => return self.refuse(io_error, &format!("thawd said {other:?}")),
                Err(error) => return self.refuse(io_error, &format!("thawd: {error}")),
            }
        }
    }

    fn done(&self, tag: u32, errno: i32) {
        let mut state = self.state();
        match state.pending.get_mut(&tag) {
            Some(pending @ Pending::Finalize(_)) => {
                settle(pending, errno);
                self.changed.notify_all();
            }
            Some(pending) => {
                settle(pending, errno);
                state.pending.remove(&tag);
            }
            // The file was closed meanwhile.
            None => {}
        }
    }
}

fn settle(pending: &mut Pending, errno: i32) {
    match pending {
        Pending::Write { file, id, len } => file.complete(Completion {
            id: *id,
            n: if errno == 0 { *len } else { 0 },
            errno,
        }),
        Pending::Finalize(answer) => {
            answer.get_or_insert(errno);
        }
    }
}

fn report(gate: &Gate, reason: Reason, detail: String) {
    log::say(format_args!("refused: {reason}: {detail}"));
    gate.tell(&FromLander::Failed { reason, detail });
}
