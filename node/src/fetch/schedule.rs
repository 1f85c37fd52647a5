//! Which blocks are asked of the store next. Pure: time, cache and store come in as arguments.
//!
//! Three classes with strict priority. Demanded blocks go first, whoever demands them, and take their neighbours along up
//! to [`DEMAND_BYTES`]. Hot ones follow. Fill, that is first the reads that nobody waits for and then everything else in
//! the order of the file, has at most its window of bytes on the way and leaves a few requests free; while something is
//! demanded it is reduced to one request at a time, which must go on: the sentry can only tell which page it waits for
//! when an earlier read of it completes.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use thaw_proto::data::Class;
use thaw_snapshot::format::Block;
use thaw_snapshot::{ChunkId, TenantId};

use super::window::Window;

/// A demanded block takes neighbours along up to so many stored bytes.
pub const DEMAND_BYTES: u64 = 1 << 20;
/// Names one block for all who want it.
pub type Key = (TenantId, ChunkId);
/// Names one job.
pub type JobId = u64;

/// The blocks of a snapshot, as the schedule sees them.
#[derive(Debug)]
pub struct Plan {
    /// Tenant of the snapshot.
    pub tenant: TenantId,
    /// Blocks in order of pack and offset.
    pub blocks: Vec<Block>,
    /// Their names.
    pub ids: Vec<ChunkId>,
    /// Every block once, in the order in which its bytes first appear in the files.
    pub order: Vec<u32>,
}

impl Plan {
    /// Name of a block.
    pub fn key(&self, block: u32) -> Key {
        (self.tenant, self.ids[block as usize])
    }
}

/// How much may be on the way.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests.
    pub parallel: usize,
    /// Of these, requests that fill never takes.
    pub reserved: usize,
}

impl Limits {
    /// Keeps a quarter of the requests, at least one where there are two, for what is waited for.
    pub fn new(parallel: usize) -> Limits {
        Limits {
            parallel: parallel.max(1),
            reserved: (parallel / 4).max(1).min(parallel.saturating_sub(1)),
        }
    }
}

/// One request to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// On whose behalf.
    pub job: JobId,
    /// Neighbours in one pack.
    pub blocks: Range<u32>,
    /// How urgent.
    pub class: Class,
    /// Bytes of the pack.
    pub bytes: u64,
}

#[derive(Debug)]
struct Job {
    plan: Arc<Plan>,
    queues: [VecDeque<u32>; 3],
    /// Position in the plan's order; everything before it was dealt with.
    cursor: usize,
    /// Where own fill stops.
    end: usize,
}

/// All jobs of this node.
#[derive(Debug)]
pub struct Schedule {
    limits: Limits,
    window: Window,
    jobs: BTreeMap<JobId, Job>,
    next_job: JobId,
    /// The job that was served last, for each class.
    last: [JobId; 3],
    in_flight: HashSet<Key>,
    running: usize,
    urgent_running: usize,
    fill_bytes: u64,
}

impl Schedule {
    /// Nothing to do yet; `now` is any steady clock.
    pub fn new(limits: Limits, now: Duration) -> Schedule {
        Schedule {
            limits,
            window: Window::new(now),
            jobs: BTreeMap::new(),
            next_job: 1,
            last: [0; 3],
            in_flight: HashSet::new(),
            running: 0,
            urgent_running: 0,
            fill_bytes: 0,
        }
    }

    /// Adds a job that fills the first `fill` blocks of the plan's order by itself.
    pub fn add(&mut self, plan: Arc<Plan>, fill: usize) -> JobId {
        let id = self.next_job;
        self.next_job += 1;
        let end = fill.min(plan.order.len());
        self.jobs.insert(
            id,
            Job {
                plan,
                queues: Default::default(),
                cursor: 0,
                end,
            },
        );
        id
    }

    /// Forgets a job; its requests on the way stay counted until they finish.
    pub fn remove(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Asks for a block. Asking again with a higher class raises it.
    pub fn want(&mut self, job: JobId, block: u32, class: Class) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.queues[class as usize].push_back(block);
        }
    }

    /// Asks again for blocks whose request failed, before everything else of its class.
    pub fn want_again(&mut self, job: JobId, block: u32, class: Class) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.queues[class as usize].push_front(block);
        }
    }

    /// Whether a request for the block is on the way.
    pub fn is_in_flight(&self, key: &Key) -> bool {
        self.in_flight.contains(key)
    }

    /// The next request, if one may be made now. `have` says whether a block needs no request; it is told of each block
    /// once per job at the latest when fill passes it.
    pub fn next(&mut self, have: &mut dyn FnMut(JobId, u32, &Key) -> bool) -> Option<Batch> {
        if self.running >= self.limits.parallel {
            return None;
        }
        if let Some(batch) = self.take(Class::Demand, have) {
            return Some(batch);
        }
        if let Some(batch) = self.take(Class::Hot, have) {
            return Some(batch);
        }
        let room = if self.urgent_running > 0 {
            self.fill_bytes == 0
        } else {
            self.fill_bytes < self.window.size()
        };
        if !room || self.running + self.limits.reserved >= self.limits.parallel.max(2) {
            return None;
        }
        self.take(Class::Fill, have)
    }

    /// A request ended, well or not. `arrived` is what came.
    pub fn finish(&mut self, batch: &Batch, plan: &Plan, arrived: u64, now: Duration) {
        self.running -= 1;
        for block in batch.blocks.clone() {
            self.in_flight.remove(&plan.key(block));
        }
        if batch.class == Class::Fill {
            self.fill_bytes -= batch.bytes;
            if self.urgent_running == 0 && arrived > 0 {
                self.window.arrived(arrived, now);
            } else {
                self.window.pause(now);
            }
        } else {
            self.urgent_running -= 1;
            self.window.pause(now);
        }
    }

    /// Jobs take turns within a class.
    fn take(
        &mut self,
        class: Class,
        have: &mut dyn FnMut(JobId, u32, &Key) -> bool,
    ) -> Option<Batch> {
        let last = self.last[class as usize];
        let turns: Vec<JobId> = self
            .jobs
            .range(last + 1..)
            .chain(self.jobs.range(..=last))
            .map(|(id, _)| *id)
            .collect();
        turns
            .into_iter()
            .find_map(|id| self.take_from(id, class, have))
    }

    fn take_from(
        &mut self,
        id: JobId,
        class: Class,
        have: &mut dyn FnMut(JobId, u32, &Key) -> bool,
    ) -> Option<Batch> {
        let job = self.jobs.get_mut(&id)?;
        let plan = Arc::clone(&job.plan);
        let in_flight = &self.in_flight;
        let mut open = |block: u32| {
            let key = plan.key(block);
            !in_flight.contains(&key) && !have(id, block, &key)
        };
        let first = loop {
            if let Some(block) = job.queues[class as usize].pop_front() {
                if open(block) {
                    break block;
                }
            } else if class == Class::Fill && job.cursor < job.end {
                let block = plan.order[job.cursor];
                job.cursor += 1;
                if open(block) {
                    break block;
                }
            } else {
                return None;
            }
        };
        let limit = match class {
            Class::Fill => self.window.request(),
            Class::Demand | Class::Hot => DEMAND_BYTES,
        };
        let start = plan.blocks[first as usize];
        let mut end = first + 1;
        let mut last = start;
        while let Some(next) = plan.blocks.get(end as usize) {
            // Between two groups lies parity, which is only of use when something is damaged.
            let adjacent = next.pack == last.pack && next.offset == last.end();
            if !adjacent || next.end() - start.offset > limit || !open(end) {
                break;
            }
            last = *next;
            end += 1;
        }
        let batch = Batch {
            job: id,
            blocks: first..end,
            class,
            bytes: last.end() - start.offset,
        };
        self.last[class as usize] = id;
        self.running += 1;
        if class == Class::Fill {
            self.fill_bytes += batch.bytes;
        } else {
            self.urgent_running += 1;
        }
        for block in batch.blocks.clone() {
            self.in_flight.insert(plan.key(block));
        }
        Some(batch)
    }
}

/// Who waits for which block.
#[derive(Debug)]
pub struct Waiting<W> {
    by_key: HashMap<Key, Vec<W>>,
}

impl<W> Default for Waiting<W> {
    fn default() -> Self {
        Waiting {
            by_key: HashMap::new(),
        }
    }
}

impl<W> Waiting<W> {
    /// Adds one.
    pub fn add(&mut self, key: Key, waiter: W) {
        self.by_key.entry(key).or_default().push(waiter);
    }

    /// All that wait for a block; nobody waits for it afterwards.
    pub fn take(&mut self, key: &Key) -> Vec<W> {
        self.by_key.remove(key).unwrap_or_default()
    }

    /// Whether anybody waits for a block.
    pub fn is_waited_for(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Drops those that are not wanted any more.
    pub fn retain(&mut self, keep: impl Fn(&W) -> bool) {
        self.by_key.retain(|_, waiters| {
            waiters.retain(&keep);
            !waiters.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thaw_snapshot::format::Kind;

    const BLOCK: u32 = 256 << 10;

    fn plan(n: u32, per_pack: u32) -> Arc<Plan> {
        let blocks: Vec<Block> = (0..n)
            .map(|i| Block {
                pack: i / per_pack,
                offset: u64::from(i % per_pack) * u64::from(BLOCK),
                stored_len: BLOCK,
                raw_len: BLOCK,
                kind: Kind::Raw,
                hash: [0; 32],
            })
            .collect();
        Arc::new(Plan {
            tenant: TenantId::from_bytes([0; 32]),
            ids: (0..n)
                .map(|i| {
                    let mut id = [0; 32];
                    id[..4].copy_from_slice(&i.to_le_bytes());
                    ChunkId::from_bytes(id)
                })
                .collect(),
            order: (0..n).collect(),
            blocks,
        })
    }

    fn schedule(parallel: usize) -> Schedule {
        Schedule::new(Limits::new(parallel), Duration::ZERO)
    }

    fn none(_: JobId, _: u32, _: &Key) -> bool {
        false
    }

    #[test]
    fn demand_goes_before_hot_before_fill() {
        let plan = plan(200, 100);
        let mut s = schedule(16);
        let job = s.add(Arc::clone(&plan), usize::MAX);
        s.want(job, 190, Class::Fill);
        s.want(job, 150, Class::Hot);
        s.want(job, 50, Class::Demand);
        let classes: Vec<_> = (0..3)
            .map(|_| s.next(&mut none).unwrap())
            .map(|b| (b.class, b.blocks.start))
            .collect();
        assert_eq!(
            classes,
            [(Class::Demand, 50), (Class::Hot, 150), (Class::Fill, 190)]
        );
        // Something urgent is on the way and one fill request too: no second one.
        assert_eq!(s.next(&mut none), None);
    }

    #[test]
    fn fill_goes_on_one_at_a_time_while_demand_waits() {
        let plan = plan(200, 200);
        let mut s = schedule(16);
        let job = s.add(Arc::clone(&plan), usize::MAX);
        s.want(job, 100, Class::Demand);
        let demand = s.next(&mut none).unwrap();
        let fill = s.next(&mut none).unwrap();
        assert_eq!((fill.class, fill.blocks.start), (Class::Fill, 0));
        assert_eq!(s.next(&mut none), None);
        s.finish(&fill, &plan, fill.bytes, Duration::from_millis(1));
        assert_eq!(s.next(&mut none).unwrap().class, Class::Fill);
        assert_eq!(s.next(&mut none), None);
        s.finish(&demand, &plan, demand.bytes, Duration::from_millis(2));
        assert_eq!(s.next(&mut none).unwrap().class, Class::Fill);
    }

    #[test]
    fn fill_leaves_requests_free_and_keeps_its_window() {
        let plan = plan(2000, 2000);
        let mut s = schedule(8);
        let job = s.add(Arc::clone(&plan), usize::MAX);
        let mut bytes = 0;
        let mut count = 0;
        while let Some(batch) = s.next(&mut none) {
            bytes += batch.bytes;
            count += 1;
        }
        assert!(bytes <= super::super::window::MIN + (4 << 20), "{bytes}");
        assert!(count <= 6, "{count}");
        s.want(job, 1999, Class::Demand);
        assert_eq!(s.next(&mut none).unwrap().class, Class::Demand);
    }

    #[test]
    fn neighbours_come_along_up_to_the_limit_and_not_across_packs() {
        let plan = plan(10, 5);
        let mut s = schedule(4);
        let job = s.add(Arc::clone(&plan), 0);
        s.want(job, 0, Class::Demand);
        assert_eq!(s.next(&mut none).unwrap().blocks, 0..4);
        s.want(job, 4, Class::Demand);
        assert_eq!(s.next(&mut none).unwrap().blocks, 4..5);
        s.want(job, 6, Class::Demand);
        s.want(job, 7, Class::Demand);
        assert_eq!(s.next(&mut none).unwrap().blocks, 6..10);
        // 7 is on the way already.
        assert_eq!(s.next(&mut none), None);
    }

    #[test]
    fn jobs_of_one_snapshot_share_requests_and_take_turns() {
        let plan = plan(64, 64);
        let mut s = schedule(16);
        let a = s.add(Arc::clone(&plan), 8);
        let b = s.add(Arc::clone(&plan), 8);
        let first = s.next(&mut none).unwrap();
        let second = s.next(&mut none).unwrap();
        assert_eq!((first.job, first.blocks), (a, 0..4));
        assert_eq!((second.job, second.blocks), (b, 4..8));
        s.remove(a);
        s.remove(b);
        assert_eq!(s.next(&mut none), None);
    }

    #[test]
    fn one_request_at_a_time_is_enough_to_get_everything() {
        let plan = plan(20, 7);
        let mut s = schedule(1);
        s.add(Arc::clone(&plan), usize::MAX);
        let mut seen: Vec<u32> = Vec::new();
        while let Some(batch) = s.next(&mut |_, block, _| seen.contains(&block)) {
            seen.extend(batch.blocks.clone());
            s.finish(&batch, &plan, batch.bytes, Duration::ZERO);
        }
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
    }

    proptest! {
        /// Whatever is wanted, in whatever order requests end: every block is asked for, never twice at a time, never
        /// more requests than allowed, and what is demanded is never behind fill.
        #[test]
        fn everything_is_fetched_once(
            n in 1u32..120, per_pack in 1u32..40, parallel in 1usize..10,
            wants in proptest::collection::vec((0u32..120, 0u8..3), 0..40),
            ends in proptest::collection::vec(0usize..10, 0..400),
        ) {
            let plan = plan(n, per_pack);
            let mut s = schedule(parallel);
            let job = s.add(Arc::clone(&plan), usize::MAX);
            let mut wants = wants.into_iter();
            let mut ends = ends.into_iter();
            let mut done = HashSet::new();
            let mut running: Vec<Batch> = Vec::new();
            let mut now = 0;
            loop {
                let mut demanded = None;
                if let Some((block, class)) = wants.next() {
                    let class = [Class::Demand, Class::Hot, Class::Fill][class as usize];
                    let block = block % n;
                    s.want(job, block, class);
                    if class == Class::Demand && !done.contains(&block)
                        && !s.is_in_flight(&plan.key(block)) && running.len() < parallel {
                        demanded = Some(block);
                    }
                }
                let batch = s.next(&mut |_, block, _| done.contains(&block));
                if let Some(batch) = batch {
                    if demanded.is_some() {
                        prop_assert_eq!(batch.class, Class::Demand);
                    }
                    for block in batch.blocks.clone() {
                        prop_assert!(!done.contains(&block));
                        prop_assert!(running.iter().all(|b| !b.blocks.contains(&block)));
                    }
                    running.push(batch);
                    prop_assert!(running.len() <= parallel);
                } else if running.is_empty() {
                    break;
                }
                if !running.is_empty() && (running.len() >= parallel || ends.next().unwrap_or(0) < 5) {
                    let batch = running.remove(ends.next().unwrap_or(0) % running.len());
                    now += 1;
                    s.finish(&batch, &plan, batch.bytes, Duration::from_millis(now));
                    done.extend(batch.blocks);
                }
            }
            prop_assert_eq!(done.len(), n as usize);
        }
    }
}
