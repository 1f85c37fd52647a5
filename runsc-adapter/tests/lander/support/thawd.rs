//! thawd's end of the data path, over plain files.

use std::collections::{HashMap, HashSet};
use std::fs::File as StdFile;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, accept_with, recvmsg, sendmsg,
    shutdown,
};
use thaw_proto::data::{
    Class, File, FromNode, MAX_PACKET, MAX_RANGES, Piece, ToNode, ZERO_SEGMENT,
};

use super::shim::listener;

/// How this thawd behaves.
#[derive(Default, Clone)]
pub(crate) struct Manner {
    /// Sleep before each answer.
    pub(crate) delay: Duration,
    /// Keep this many reads of pages.img while more are coming, and answer the newest first.
    pub(crate) shuffle: usize,
    /// Never answer the next read of pages.img.
    pub(crate) mute: bool,
    /// Hang up after so many reads, once.
    pub(crate) hang_up_after: Option<usize>,
    /// Say this instead of Welcome.
    pub(crate) refuse: Option<(String, String)>,
    /// Say this after so many reads of pages.img.
    pub(crate) fail_after: Option<(usize, String)>,
    /// Do not say Ready.
    pub(crate) unready: bool,
    /// Answer the n-th write (from 0) with this errno.
    pub(crate) write_error: Option<(usize, i32)>,
    /// Answer the first read of pages.img from a segment that is too short, once.
    pub(crate) short_segment: bool,
}

/// A read as it arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) file: File,
    pub(crate) class: Class,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// The three files; what does not exist is `None`.
pub(crate) type Files = [Option<Vec<u8>>; 3];

struct Shared {
    sources: [Option<(StdFile, u64, Vec<bool>)>; 3],
    manner: Mutex<Manner>,
    seen: Mutex<Vec<Seen>>,
    captured: Mutex<Files>,
    finalized: Mutex<HashSet<File>>,
    live: Mutex<Vec<Arc<OwnedFd>>>,
    hellos: Mutex<usize>,
}

/// A running thawd.
pub(crate) struct Thawd {
    path: PathBuf,
    shared: Arc<Shared>,
    listener: Option<Arc<OwnedFd>>,
}

impl Thawd {
    /// A thawd in `dir` that serves `files` for restores.
    pub(crate) fn start(dir: &Path, files: &Files, manner: Manner) -> Thawd {
        let sources = [0, 1, 2].map(|i| {
            files[i].as_ref().map(|data| {
                let file = tempfile::tempfile_in(dir).unwrap();
                file.write_all_at(data, 0).unwrap();
                let zero = data
                    .chunks(4096)
                    .map(|page| page.iter().all(|b| *b == 0))
                    .collect();
                (file, data.len() as u64, zero)
            })
        });
        let mut thawd = Thawd {
            path: dir.join("data.sock"),
            shared: Arc::new(Shared {
                sources,
                manner: Mutex::new(manner),
                seen: Mutex::default(),
                captured: Mutex::default(),
                finalized: Mutex::default(),
                live: Mutex::default(),
                hellos: Mutex::default(),
            }),
            listener: None,
        };
        thawd.come_back();
        thawd
    }

    /// Accepts connections (again).
    pub(crate) fn come_back(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let socket = Arc::new(listener(&self.path));
        self.listener = Some(socket.clone());
        let shared = self.shared.clone();
        std::thread::spawn(move || {
            while let Ok(connection) = accept_with(&*socket, SocketFlags::CLOEXEC) {
                let connection = Arc::new(connection);
                shared.live.lock().unwrap().push(connection.clone());
                let shared = shared.clone();
                std::thread::spawn(move || shared.serve(&connection));
            }
        });
    }

    /// Dies: no connection lives on and none is accepted.
    pub(crate) fn die(&mut self) {
        if let Some(socket) = self.listener.take() {
            let _ = shutdown(&*socket, Shutdown::Both);
        }
        let _ = std::fs::remove_file(&self.path);
        for connection in self.shared.live.lock().unwrap().drain(..) {
            let _ = shutdown(&*connection, Shutdown::Both);
        }
    }

    pub(crate) fn set_manner(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// Reads so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Connections that said Restore or Capture.
    pub(crate) fn hellos(&self) -> usize {
        *self.shared.hellos.lock().unwrap()
    }

    /// What was written, of files that were finalized.
    pub(crate) fn captured(&self) -> Files {
        let finalized = self.shared.finalized.lock().unwrap();
        let mut files = self.shared.captured.lock().unwrap().clone();
        for which in File::ALL {
            if !finalized.contains(&which) {
                files[which as usize] = None;
            }
        }
        files
    }
}

impl Drop for Thawd {
    fn drop(&mut self) {
        self.die();
    }
}

impl Shared {
    fn manner(&self) -> Manner {
        self.manner.lock().unwrap().clone()
    }

    fn serve(&self, connection: &OwnedFd) {
        let mut buffer = vec![0; MAX_PACKET];
        let Some((hello, _)) = receive(connection, &mut buffer) else {
            return;
        };
        *self.hellos.lock().unwrap() += 1;
        if let Some((reason, detail)) = self.manner().refuse {
            let _ = send(connection, &FromNode::Failed { reason, detail }, None);
            return;
        }
        match hello {
            ToNode::Restore { .. } => self.restore(connection, &mut buffer),
            ToNode::Capture { .. } => self.capture(connection, &mut buffer),
            other => panic!("hello expected, not {other:?}"),
        };
        let _ = shutdown(connection, Shutdown::Both);
    }

    fn restore(&self, connection: &OwnedFd, buffer: &mut [u8]) -> Option<()> {
        let sizes = [0, 1, 2].map(|i| {
            self.sources[i]
                .as_ref()
                .map_or(u64::MAX, |(_, size, _)| *size)
        });
        send(connection, &FromNode::Welcome { sizes }, None)?;
        if !self.manner().unready {
            send(connection, &FromNode::Ready, None)?;
        }
        // Each file is one segment; numbers that do not start at 0.
        let mut sent = HashSet::new();
        let mut kept: Vec<(u32, Seen)> = Vec::new();
        let mut page_reads = 0;
        loop {
            if !kept.is_empty() && idle(connection) {
                while let Some((tag, read)) = kept.pop() {
                    self.answer(connection, tag, read, &mut sent)?;
                }
            }
            let (message, _) = receive(connection, buffer)?;
            let ToNode::Read {
                tag,
                file,
                class,
                offset,
                len,
            } = message
            else {
                panic!("read expected, not {message:?}");
            };
            let read = Seen {
                file,
                class,
                offset,
                len,
            };
            self.seen.lock().unwrap().push(read);
            let manner = self.manner();
            if file == File::Pages {
                page_reads += 1;
                if let Some((after, reason)) = &manner.fail_after
                    && page_reads > *after
                {
                    let (reason, detail) = (reason.clone(), "test".to_owned());
                    return send(connection, &FromNode::Failed { reason, detail }, None);
                }
                if manner.hang_up_after == Some(page_reads) {
                    self.manner.lock().unwrap().hang_up_after = None;
                    return None;
                }
                if manner.mute {
                    continue;
                }
                if manner.short_segment {
                    self.manner.lock().unwrap().short_segment = false;
                    let empty = tempfile::tempfile().unwrap();
                    let segment = 99;
                    send(
                        connection,
                        &FromNode::Segment { segment },
                        Some(empty.as_fd()),
                    )?;
                    let pieces = vec![Piece {
                        segment,
                        len,
                        offset: 0,
                    }];
                    send(connection, &FromNode::Data { tag, pieces }, None)?;
                    continue;
                }
            }
            std::thread::sleep(manner.delay);
            kept.push((tag, read));
            let keep = if file == File::Pages {
                manner.shuffle
            } else {
                0
            };
            while kept.len() > keep {
                let (tag, read) = kept.pop()?;
                self.answer(connection, tag, read, &mut sent)?;
            }
        }
    }

    fn answer(
        &self,
        connection: &OwnedFd,
        tag: u32,
        read: Seen,
        sent: &mut HashSet<u32>,
    ) -> Option<()> {
        let (source, size, zero) = self.sources[read.file as usize].as_ref()?;
        let segment = 10 + read.file as u32;
        if sent.insert(segment) {
            send(
                connection,
                &FromNode::Segment { segment },
                Some(source.as_fd()),
            )?;
        }
        let end = (read.offset + u64::from(read.len)).min(*size);
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = read.offset;
        while at < end {
            let stop = ((at / 4096 + 1) * 4096).min(end);
            let len = (stop - at) as u32;
            let wanted = if zero[(at / 4096) as usize] {
                ZERO_SEGMENT
            } else {
                segment
            };
            match pieces.last_mut() {
                Some(last) if last.segment == wanted => last.len += len,
                _ => pieces.push(Piece {
                    segment: wanted,
                    len,
                    offset: at,
                }),
            }
            at = stop;
        }
        assert!(pieces.len() <= MAX_RANGES);
        send(connection, &FromNode::Data { tag, pieces }, None)
    }

    fn capture(&self, connection: &OwnedFd, buffer: &mut [u8]) -> Option<()> {
        send(connection, &FromNode::Welcome { sizes: [0; 3] }, None)?;
        let mut clients: HashMap<(File, u32), StdFile> = HashMap::new();
        let mut writes = 0;
        loop {
            let (message, fd) = receive(connection, buffer)?;
            let (tag, errno) = match message {
                ToNode::ClientFile { file, handle } => {
                    clients.insert((file, handle), fd?.into());
                    continue;
                }
                ToNode::Write {
                    tag,
                    file,
                    handle,
                    ranges,
                    ..
                } => {
                    let manner = self.manner();
                    std::thread::sleep(manner.delay);
                    if manner.hang_up_after == Some(writes) {
                        return None;
                    }
                    let errno = match manner.write_error {
                        Some((n, errno)) if n == writes => errno,
                        _ => 0,
                    };
                    writes += 1;
                    let client = &clients[&(file, handle)];
                    let mut captured = self.captured.lock().unwrap();
                    let out = captured[file as usize].get_or_insert_default();
                    for r in ranges {
                        let from = out.len();
                        out.resize(from + (r.end - r.start) as usize, 0);
                        client.read_exact_at(&mut out[from..], r.start).unwrap();
                    }
                    (tag, errno)
                }
                ToNode::Finalize { tag, file } => {
                    self.finalized.lock().unwrap().insert(file);
                    (tag, 0)
                }
                other => panic!("write expected, not {other:?}"),
            };
            send(connection, &FromNode::Done { tag, errno }, None)?;
        }
    }
}

/// Whether nothing comes for a while.
fn idle(connection: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, 5u8) == Ok(0)
}

fn send(connection: &OwnedFd, message: &FromNode, fd: Option<BorrowedFd<'_>>) -> Option<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    sendmsg(
        connection,
        &[IoSlice::new(&message.encode())],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .ok()
    .map(|_| ())
}

fn receive(connection: &OwnedFd, buffer: &mut [u8]) -> Option<(ToNode, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        connection,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .ok()?;
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            fd = fds.next();
        }
    }
    if got.bytes == 0 {
        return None;
    }
    Some((ToNode::decode(&buffer[..got.bytes]).unwrap(), fd))
}
