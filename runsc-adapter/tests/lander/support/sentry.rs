//! The sentry's end: URPC and flipcall as gVisor's `stateipc.AsyncFileClient` uses them.

use std::fs::File as StdFile;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde_json::{Value, json};
use thaw_proto::data::Range;
use thaw_runsc::flipcall::datagram::{COMPLETION, Completion, Datagram, Limits, RESPONSE_HEADER};
use thaw_runsc::flipcall::{Closed, Connection, Side, Window};
use thaw_runsc::urpc::{Call, Reply, unet};

/// The client of one lander.
pub(crate) struct Sentry {
    socket: Mutex<UnixStream>,
    connections: Arc<Mutex<Vec<Arc<Connection>>>>,
}

/// An open server file.
#[derive(Clone)]
pub(crate) struct ServerFile {
    pub(crate) handle: u32,
    pub(crate) limits: Limits,
    pub(crate) connection: Arc<Connection>,
}

/// One read or write.
pub(crate) struct Io {
    pub(crate) id: u32,
    pub(crate) offset: u64,
    pub(crate) client: u32,
    pub(crate) ranges: Vec<Range>,
}

/// A memory file of the sentry.
pub(crate) fn memory(len: u64) -> StdFile {
    let fd = memfd_create("sentry", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd.into()
}

impl Sentry {
    /// A client on `socket`. Like gVisor's it shuts all connections down when the lander hangs up.
    pub(crate) fn new(socket: UnixStream) -> Sentry {
        let connections: Arc<Mutex<Vec<Arc<Connection>>>> = Arc::default();
        let (watched, shut) = (socket.try_clone().unwrap(), connections.clone());
        std::thread::spawn(move || {
            let mut fds = [PollFd::new(watched.as_fd(), PollFlags::empty())];
            while poll(&mut fds, PollTimeout::NONE).is_err() {}
            // Also those that are opened after the hang-up was seen.
            for _ in 0..20 {
                for connection in shut.lock().unwrap().iter() {
                    connection.shut_down();
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        Sentry {
            socket: Mutex::new(socket),
            connections,
        }
    }

    /// Hangs up.
    pub(crate) fn hang_up(&self) {
        let _ = self
            .socket
            .lock()
            .unwrap()
            .shutdown(std::net::Shutdown::Both);
    }

    /// One call; the error is the answer's text.
    pub(crate) fn call(
        &self,
        method: &str,
        arg: Value,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Value, Vec<std::os::fd::OwnedFd>), String> {
        let socket = self.socket.lock().unwrap();
        let call = Call {
            method: format!("AsyncFileServer.{method}"),
            arg,
        };
        unet::transmit(&*socket, &call, fds).map_err(|e| e.to_string())?;
        let message = unet::receive::<Reply>(&*socket)
            .map_err(|e| e.to_string())?
            .ok_or("EOF")?;
        let reply = message.value.map_err(|e| e.to_string())?;
        if reply.success {
            Ok((reply.result, message.fds))
        } else {
            Err(reply.err)
        }
    }

    /// Opens a file (mode 1 read, 2 write) and shakes hands.
    pub(crate) fn open(&self, path: &str, mode: u32) -> Result<ServerFile, String> {
        let (opened, fds) = self.call("Open", json!({"path": path, "mode": mode}), &[])?;
        assert_eq!(fds.len(), 1);
        let number = |key: &str| opened[key].as_u64().unwrap();
        let limits = Limits {
            max_io_bytes: number("max_io_bytes") as u32,
            max_ranges: number("max_ranges") as u32,
            max_parallel: number("max_parallel") as u32,
        };
        let len = number("packet_window_length") as usize;
        assert!(len >= limits.window_len(mode == 2));
        let window = Window::map(&fds[0], number("packet_window_offset"), len).unwrap();
        let connection = Arc::new(Connection::new(window, Side::Client));
        self.connections.lock().unwrap().push(connection.clone());
        connection.shake_hands().map_err(|e| e.to_string())?;
        Ok(ServerFile {
            handle: number("handle") as u32,
            limits,
            connection,
        })
    }

    /// Registers `size` bytes of a client file.
    pub(crate) fn register(
        &self,
        file: &ServerFile,
        client: &StdFile,
        size: u64,
        writable: bool,
    ) -> Result<u32, String> {
        let arg =
            json!({"handle": file.handle, "size": size, "writable": writable, "settings": null});
        let (result, _) = self.call("RegisterClientFile", arg, &[client.as_fd()])?;
        Ok(result["handle"].as_u64().unwrap() as u32)
    }

    pub(crate) fn close(&self, file: &ServerFile) -> Result<(), String> {
        self.call("Close", json!({"handle": file.handle}), &[])
            .map(|_| ())
    }

    /// Opens a stream and reads it to its end, as `stateio.BufReader` does.
    pub(crate) fn read_stream(&self, path: &str) -> Result<(ServerFile, Vec<u8>), String> {
        let file = self.open(path, 1)?;
        let (chunk, slots) = (file.limits.max_io_bytes, file.limits.max_parallel);
        let staging = memory(u64::from(chunk * slots));
        let client = self.register(&file, &staging, u64::from(chunk * slots), true)?;
        let io = |slot: u32, offset: u64| Io {
            id: slot,
            offset,
            client,
            ranges: vec![Range {
                start: u64::from(slot * chunk),
                end: u64::from((slot + 1) * chunk),
            }],
        };
        let mut data = Vec::new();
        let mut next = u64::from(chunk * slots);
        let first: Vec<_> = (0..slots)
            .map(|s| io(s, u64::from(s) * u64::from(chunk)))
            .collect();
        let mut done: Vec<Option<Completion>> = vec![None; slots as usize];
        let take = |done: &mut Vec<Option<Completion>>, answer: Vec<Completion>| {
            for c in answer {
                assert!(done[c.id as usize].replace(c).is_none(), "{c:?} twice");
            }
        };
        take(&mut done, file.read(&first, 1).map_err(|e| e.to_string())?);
        for slot in (0..slots).cycle() {
            while done[slot as usize].is_none() {
                let answer = file.read(&[], 1).map_err(|e| e.to_string())?;
                take(&mut done, answer);
            }
            let c = done[slot as usize].take().unwrap();
            let from = data.len();
            data.resize(from + c.n as usize, 0);
            staging
                .read_exact_at(&mut data[from..], u64::from(slot * chunk))
                .unwrap();
            match c.errno {
                0 => assert_eq!(c.n, chunk),
                -1 => return Ok((file, data)),
                errno => return Err(format!("errno {errno}")),
            }
            take(
                &mut done,
                file.read(&[io(slot, next)], 0).map_err(|e| e.to_string())?,
            );
            next += u64::from(chunk);
        }
        unreachable!("the cycle has no end")
    }

    /// Loads `pages.img` of `len` bytes: ascending background reads in all slots, and every fifth read from further
    /// up, as if a thread waited for it. Pages land in `ranges` of a memory file that is twice as large, so that one
    /// read has several ranges. Returns the pages in file order.
    pub(crate) fn load_pages(&self, len: u64) -> Result<(ServerFile, Vec<u8>), String> {
        let file = self.open("pages.img", 1)?;
        let size = (len * 2).next_multiple_of(1 << 20);
        let memory = memory(size);
        let client = self.register(&file, &memory, size, true)?;
        let pages = len / 4096;
        // Page p of the file lies at page place(p) of the memory file: runs of 16 pages with gaps of 16.
        let place = |page: u64| page / 16 * 32 + page % 16;
        let per_read = u64::from(file.limits.max_io_bytes) / 4096;
        let mut asked = vec![false; pages as usize];
        let mut free: Vec<u32> = (0..file.limits.max_parallel).collect();
        let mut in_flight: Vec<Option<u64>> = vec![None; file.limits.max_parallel as usize];
        let mut missing = pages;
        let mut reads = 0u64;
        while missing > 0 {
            let mut batch = Vec::new();
            while let Some(id) = free.pop() {
                reads += 1;
                let lowest = asked.iter().position(|a| !a);
                let ahead = asked
                    .iter()
                    .rposition(|a| !a)
                    .filter(|_| reads.is_multiple_of(5));
                let Some(first) = ahead.or(lowest) else {
                    free.push(id);
                    break;
                };
                let mut io = Io {
                    id,
                    offset: first as u64 * 4096,
                    client,
                    ranges: Vec::new(),
                };
                let mut count = 0;
                for page in first as u64..pages.min(first as u64 + per_read) {
                    if std::mem::replace(&mut asked[page as usize], true) {
                        break;
                    }
                    count += 1;
                    let start = place(page) * 4096;
                    match io.ranges.last_mut() {
                        Some(last) if last.end == start => last.end += 4096,
                        _ => io.ranges.push(Range {
                            start,
                            end: start + 4096,
                        }),
                    }
                }
                in_flight[id as usize] = Some(count);
                batch.push(io);
            }
            for c in file.read(&batch, 1).map_err(|e| e.to_string())? {
                let count = in_flight[c.id as usize].take().unwrap();
                assert_eq!((u64::from(c.n), c.errno), (count * 4096, 0));
                missing -= count;
                free.push(c.id);
            }
        }
        let mut data = vec![0; len as usize];
        for page in 0..pages {
            let to = &mut data[(page * 4096) as usize..][..4096];
            memory.read_exact_at(to, place(page) * 4096).unwrap();
        }
        Ok((file, data))
    }
}

impl ServerFile {
    /// Sends reads and returns at least `min` completions.
    pub(crate) fn read(&self, ios: &[Io], min: u32) -> Result<Vec<Completion>, Closed> {
        let mut request = words(&[min, 0]);
        for io in ios {
            request.extend(words(&[io.id, 0]));
            request.extend(io.offset.to_le_bytes());
            request.extend(words(&[io.client, io.ranges.len() as u32]));
            request.extend(ranges(&io.ranges));
        }
        self.exchange(&request, ios.len(), min)
            .map(|(_, done)| done)
    }

    /// Sends writes and returns at least `min` completions.
    pub(crate) fn write(
        &self,
        ios: &[Io],
        min: u32,
        reserve: u64,
    ) -> Result<Vec<Completion>, Closed> {
        let mut request = words(&[min, 0]);
        request.extend(reserve.to_le_bytes());
        for io in ios {
            request.extend(words(&[io.id, io.client, io.ranges.len() as u32, 0]));
            request.extend(ranges(&io.ranges));
        }
        self.exchange(&request, ios.len(), min)
            .map(|(_, done)| done)
    }

    /// Finalizes the file and returns the errno.
    pub(crate) fn finalize(&self) -> Result<i32, Closed> {
        self.exchange(&words(&[0, 1, 0, 0]), 0, 0)
            .map(|(errno, _)| errno)
    }

    /// Sends a raw request.
    pub(crate) fn exchange(
        &self,
        request: &[u8],
        count: usize,
        min: u32,
    ) -> Result<(i32, Vec<Completion>), Closed> {
        let window = self.connection.window();
        assert!(window.store(0, request));
        self.connection.give(count as u32)?;
        let count = self.connection.wait()?;
        let load = |at: usize| {
            let mut word = [0; 4];
            assert!(window.load(at, &mut word));
            u32::from_le_bytes(word)
        };
        let done: Vec<_> = (0..count as usize)
            .map(|i| RESPONSE_HEADER + i * COMPLETION)
            .map(|at| Completion {
                id: load(at),
                n: load(at + 4),
                errno: load(at + 8).cast_signed(),
            })
            .collect();
        assert!(done.len() >= min as usize);
        Ok((load(0).cast_signed(), done))
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn ranges(ranges: &[Range]) -> Vec<u8> {
    ranges
        .iter()
        .flat_map(|r| [r.start.to_le_bytes(), r.end.to_le_bytes()])
        .flatten()
        .collect()
}
