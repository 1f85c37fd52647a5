//! One capturing lander's connection, on a thread of its own: the application stands still meanwhile, so nothing else may
//! be in the way.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use thaw_proto::data::{File, FromNode, MAX_PACKET, Range, ToNode};
use thaw_proto::failpoint;

use super::spool::CopyBuffer;
use super::{ABORTED, Capture, SPOOL_FULL};
use crate::packets;

/// Client files of one sandbox: one per memory file and stream.
const MAX_CLIENT_FILES: usize = 4096;

/// Serves a lander until it hangs up. A hang-up before all files are complete gives the capture up.
pub fn serve(capture: &Arc<Capture>, socket: &OwnedFd) {
    if !capture.attach() {
        let failed = FromNode::Failed {
            reason: ABORTED.to_owned(),
            detail: format!("capture {} takes no lander (any more)", capture.id),
        };
        let _ = packets::send(socket, &failed.encode(), None);
        return;
    }
    if let Err(error) = receive(capture, socket) {
        capture.fail(ABORTED, &format!("lander connection broke: {error}"));
    }
    let complete = capture
        .files()
        .as_ref()
        .is_none_or(super::Files::are_complete);
    if !complete {
        capture.fail(ABORTED, "the lander left before all files were complete");
    }
    let mut state = capture.state();
    state.attached = false;
    state.since = std::time::Instant::now();
}

fn receive(capture: &Capture, socket: &OwnedFd) -> io::Result<()> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let welcome = FromNode::Welcome { sizes: [0; 3] };
    packets::send(socket, &welcome.encode(), None)?;
    let mut client_files: HashMap<(File, u32), OwnedFd> = HashMap::new();
    let mut packet = vec![0; MAX_PACKET];
    let mut buffer = CopyBuffer::default();
    while let Some((len, fd)) = packets::recv(socket, &mut packet)? {
        let message = ToNode::decode(&packet[..len]).map_err(|e| bad(e.to_string()))?;
        let (tag, errno) = match message {
            ToNode::ClientFile { file, handle } => {
                let fd = fd.ok_or_else(|| bad("client file without descriptor".to_owned()))?;
                if client_files.len() >= MAX_CLIENT_FILES {
                    return Err(bad("too many client files".to_owned()));
                }
                client_files.insert((file, handle), fd);
                continue;
            }
            ToNode::Write {
                tag,
                file,
                handle,
                reserve,
                ranges,
            } => {
                let source = client_files.get(&(file, handle));
                let done = source
                    .ok_or(Errno::BADF)
                    .and_then(|source| write(capture, file, source, reserve, &ranges, &mut buffer));
                (tag, done)
            }
            ToNode::Finalize { tag, file } => (tag, finalize(capture, file)),
            other => return Err(bad(format!("unexpected packet {other:?}"))),
        };
        let done = FromNode::Done {
            tag,
            errno: errno.map_or_else(Errno::raw_os_error, |()| 0),
        };
        packets::send(socket, &done.encode(), None)?;
    }
    Ok(())
}

fn write(
    capture: &Capture,
    file: File,
    source: &OwnedFd,
    reserve: u64,
    ranges: &[Range],
    buffer: &mut CopyBuffer,
) -> Result<(), Errno> {
    failpoint::hit("node.spool");
    let written = {
        let mut guard = capture.files();
        let files = guard.as_mut().ok_or(Errno::CANCELED)?;
        let spooled = &mut files.files[file as usize];
        let written = spooled
            .reserve(&files.promise, reserve)
            .and_then(|()| spooled.append(&files.promise, source, ranges, buffer));
        let bytes = files.bytes();
        capture.done_bytes.store(bytes, Relaxed);
        capture.total_bytes.fetch_max(bytes.max(reserve), Relaxed);
        written
    };
    if written == Err(Errno::NOSPC) {
        capture.fail(
            SPOOL_FULL,
            "the spool became full while the memory was written to it",
        );
    }
    written
}

fn finalize(capture: &Capture, file: File) -> Result<(), Errno> {
    let mut guard = capture.files();
    let files = guard.as_mut().ok_or(Errno::CANCELED)?;
    files.files[file as usize].finalize();
    Ok(())
}
