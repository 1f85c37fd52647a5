//! One restoring lander's connection.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use thaw_proto::Reason;
use thaw_proto::data::{Class, File, FromNode, MAX_PACKET, Piece, ToNode, ZERO_SEGMENT};
use thaw_snapshot::cache::Segment;
use thaw_snapshot::{SnapshotId, TenantId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::spans::{Span, spans};
use super::warm::Warmer;
use crate::fetch::{Accounts, Engine, FetchError, Job, Opened, Patience, Snapshots};
use crate::packets::Packets;
use crate::strikes::Strikes;

/// Reads of one lander that are worked on at a time; further ones wait in the socket.
const MAX_READS: usize = 256;
/// Longest read that is answered, bytes; gVisor asks for at most 16 MiB.
const MAX_READ: u32 = 64 << 20;

/// What sessions need.
#[derive(Debug, Clone)]
pub struct Context {
    /// Opens snapshots.
    pub snapshots: Arc<Snapshots>,
    /// Fetches blocks.
    pub engine: Engine,
    /// Counts bytes.
    pub accounts: Arc<Accounts>,
    /// Fetches ahead.
    pub warmer: Arc<Warmer>,
    /// Remembers snapshots whose data was lost.
    pub strikes: Arc<Strikes>,
}

/// The lander's first packet.
#[derive(Debug, Clone)]
pub struct Hello {
    /// Tenant id as sent.
    pub tenant: String,
    /// Snapshot id as sent.
    pub snapshot: String,
    /// `<namespace>/<container id>`.
    pub container: String,
}

/// Where bytes of an answer lie.
#[derive(Debug, Clone)]
enum Place {
    Zero,
    Cache(Arc<Segment>, u64),
    Inline(File, u64),
}

/// What is sent to the lander, in this order.
#[derive(Debug)]
enum Out {
    Packet(FromNode),
    Data { tag: u32, parts: Vec<(Place, u64)> },
}

/// Serves one lander until it goes away or its snapshot turns out to be unusable.
pub async fn serve(context: Context, packets: Packets, hello: Hello) {
    let packets = Arc::new(packets);
    let container = hello.container.clone();
    match run(&context, &packets, &hello).await {
        Ok(()) => {
            tracing::info!(container, snapshot = hello.snapshot, "lander left");
        }
        Err(End::Failed(error)) => {
            tracing::warn!(
                container,
                snapshot = hello.snapshot,
                reason = %error.reason,
                detail = %error,
                "restore cannot be served"
            );
            let failed = FromNode::Failed {
                reason: error.reason.code().to_owned(),
                detail: error.detail,
            };
            // If the lander has gone there is nobody to tell.
            let _ = packets.send(&failed.encode(), None).await;
        }
        Err(End::Io(error)) => {
            tracing::warn!(container, snapshot = hello.snapshot, %error, "lander connection broke");
        }
    }
}

enum End {
    Failed(FetchError),
    Io(io::Error),
}

impl From<FetchError> for End {
    fn from(error: FetchError) -> Self {
        End::Failed(error)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Io(error)
    }
}

async fn run(context: &Context, packets: &Arc<Packets>, hello: &Hello) -> Result<(), End> {
    let (tenant, id) = match (
        TenantId::parse(&hello.tenant),
        SnapshotId::parse(&hello.snapshot),
    ) {
        (Ok(tenant), Ok(id)) => (tenant, id),
        (Err(bad), _) | (_, Err(bad)) => {
            return Err(End::Failed(FetchError {
                reason: Reason::SnapshotMissing,
                detail: bad.to_string(),
                lost: true,
            }));
        }
    };
    let account = context.accounts.resume(&hello.container, id);
    let (opened, fresh) = context.snapshots.open(tenant, id).await?;
    if fresh {
        account.fetched_head(opened.head_bytes());
    }
    // The session's own job goes on where the warm-up stops.
    let job = context
        .engine
        .job(Arc::clone(&opened), account, usize::MAX)
        .await;
    let job = Arc::new(job);
    context.warmer.stop(&hello.container);

    let (out, queue) = mpsc::channel(MAX_READS);
    let sizes = opened.sizes();
    crate::pause("node.welcome").await;
    let _ = out.send(Out::Packet(FromNode::Welcome { sizes })).await;
    tracing::info!(
        container = hello.container,
        snapshot = hello.snapshot,
        bytes = sizes[File::Pages as usize],
        "lander connected"
    );

    let ready = Arc::new(AtomicBool::new(false));
    let ended = tokio::select! {
        ended = read_requests(packets, &job, &out) => ended,
        ended = write_answers(packets, &opened, queue) => ended.map_err(End::Io),
        ended = watch(&job, &out, &ready) => ended,
    };
    if let Err(End::Failed(error)) = &ended
        && error.lost
        && ready.load(Relaxed)
    {
        context.strikes.add(id, &error.detail);
    }
    ended
}

/// Says when the snapshot is ready; ends when its data is lost.
async fn watch(job: &Job, out: &mpsc::Sender<Out>, ready: &AtomicBool) -> Result<(), End> {
    let mut lost = job.lost();
    let first = job.opened().first_blocks();
    let prepare = async {
        job.read(first, Class::Demand, Patience::Once).await?;
        crate::pause("node.ready").await;
        let _ = out.send(Out::Packet(FromNode::Ready)).await;
        ready.store(true, Relaxed);
        Ok::<(), FetchError>(())
    };
    let mut prepare = std::pin::pin!(prepare);
    let mut prepared = false;
    loop {
        tokio::select! {
            result = &mut prepare, if !prepared => {
                result?;
                prepared = true;
            }
            changed = lost.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                if let Some(error) = lost.borrow_and_update().clone() {
                    return Err(End::Failed(error));
                }
            }
        }
    }
}

/// Takes reads off the socket and lets each find its bytes; ends when the lander has gone.
async fn read_requests(
    packets: &Packets,
    job: &Arc<Job>,
    out: &mpsc::Sender<Out>,
) -> Result<(), End> {
    let mut buffer = vec![0; MAX_PACKET];
    let mut reads: JoinSet<Result<(), FetchError>> = JoinSet::new();
    loop {
        tokio::select! {
            Some(done) = reads.join_next(), if !reads.is_empty() => {
                if let Ok(Err(error)) = done {
                    return Err(End::Failed(error));
                }
            }
            received = packets.recv(&mut buffer), if reads.len() < MAX_READS => {
                let Some((len, _)) = received? else {
                    return Ok(());
                };
                let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
                match ToNode::decode(&buffer[..len]) {
                    Ok(ToNode::Read { tag, file, class, offset, len }) if len <= MAX_READ => {
                        let (job, out) = (Arc::clone(job), out.clone());
                        reads.spawn(async move {
                            let parts = find(&job, file, class, offset, len).await?;
                            // Nobody takes it: the session is ending.
                            let _ = out.send(Out::Data { tag, parts }).await;
                            Ok(())
                        });
                    }
                    Ok(other) => return Err(bad(format!("unexpected packet {other:?}")).into()),
                    Err(error) => return Err(bad(error.to_string()).into()),
                }
            }
        }
    }
}

/// The places of a read's bytes, waiting until they are there.
async fn find(
    job: &Job,
    file: File,
    class: Class,
    offset: u64,
    len: u32,
) -> Result<Vec<(Place, u64)>, FetchError> {
    let opened = job.opened();
    if let Some((_, size)) = opened.inline(file) {
        let len = u64::from(len).min(size.saturating_sub(offset));
        return Ok(if len == 0 {
            Vec::new()
        } else {
            vec![(Place::Inline(file, offset), len)]
        });
    }
    let spans = spans(&opened.snapshot.table, file, offset, len.into());
    let blocks: Vec<u32> = spans.iter().filter_map(|span| span.block).collect();
    let mut located = job
        .read(blocks, class, Patience::Forever)
        .await?
        .into_iter();
    Ok(spans
        .into_iter()
        .filter_map(|Span { block, skip, len }| match block {
            None => Some((Place::Zero, len)),
            Some(_) => located
                .next()
                .map(|l| (Place::Cache(l.segment, l.offset + skip), len)),
        })
        .collect())
}

/// Segments that the lander knows.
#[derive(Debug, Default)]
struct Known {
    inline: [Option<u32>; 3],
    /// Held so that they stay readable for the life of the connection.
    cache: HashMap<u64, (u32, Arc<Segment>)>,
    next: u32,
}

impl Known {
    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        number
    }
}

/// Sends answers in order, each after the descriptors it needs. Never ends by itself.
async fn write_answers(
    packets: &Packets,
    opened: &Opened,
    mut queue: mpsc::Receiver<Out>,
) -> io::Result<()> {
    let mut known = Known::default();
    while let Some(out) = queue.recv().await {
        let message = match out {
            Out::Packet(message) => message,
            Out::Data { tag, parts } => {
                let mut pieces: Vec<Piece> = Vec::with_capacity(parts.len());
                for (place, len) in parts {
                    let (segment, offset) = introduce(packets, opened, &mut known, place).await?;
                    push(&mut pieces, segment, offset, len);
                }
                FromNode::Data { tag, pieces }
            }
        };
        packets.send(&message.encode(), None).await?;
    }
    Ok(())
}

/// Number of the segment a place is in, and the offset in it; sends the segment's descriptor at its first use.
async fn introduce(
    packets: &Packets,
    opened: &Opened,
    known: &mut Known,
    place: Place,
) -> io::Result<(u32, u64)> {
    match place {
        Place::Zero => Ok((ZERO_SEGMENT, 0)),
        Place::Inline(file, offset) => {
            if let Some(number) = known.inline[file as usize] {
                return Ok((number, offset));
            }
            let number = known.number();
            if let Some((memory, _)) = opened.inline(file) {
                send_segment(packets, number, memory).await?;
            }
            known.inline[file as usize] = Some(number);
            Ok((number, offset))
        }
        Place::Cache(segment, offset) => {
            if let Some((number, _)) = known.cache.get(&segment.number()) {
                return Ok((*number, offset));
            }
            let number = known.number();
            send_segment(packets, number, segment.as_fd()).await?;
            known.cache.insert(segment.number(), (number, segment));
            Ok((number, offset))
        }
    }
}

async fn send_segment(packets: &Packets, segment: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
    let message = FromNode::Segment { segment };
    packets.send(&message.encode(), Some(fd)).await
}

/// Adds a piece, joined to the one before if it goes on where that ends.
fn push(pieces: &mut Vec<Piece>, segment: u32, offset: u64, len: u64) {
    // A read is at most `MAX_READ` long, so no piece is longer than 32 bits.
    let len = len as u32;
    if let Some(last) = pieces.last_mut()
        && last.segment == segment
        && (segment == ZERO_SEGMENT || last.offset + u64::from(last.len) == offset)
        && last.len.checked_add(len).is_some()
    {
        last.len += len;
        return;
    }
    pieces.push(Piece {
        segment,
        len,
        offset,
    });
}
