//! Carries out the schedule: fetches, verifies and decodes blocks into the cache and tells those who wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thaw_proto::data::Class;
use thaw_snapshot::cache::{Cache, Located};
use thaw_snapshot::reader::{Fetched, ReadError};
use thaw_snapshot::store::Store;
use tokio::sync::{oneshot, watch};

use super::account::Account;
use super::backoff::Backoff;
use super::error::FetchError;
use super::opened::Opened;
use super::schedule::{Batch, JobId, Key, Limits, Schedule, Waiting};

/// Whether to give up when the store fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// The first failure is the answer: a cold start is still possible.
    Once,
    /// Only lost data is an answer: the guest runs and has no other memory.
    Forever,
}

type Answer = Result<Located, FetchError>;

#[derive(Debug)]
struct Waiter {
    job: JobId,
    block: u32,
    class: Class,
    patience: Patience,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    cache: Arc<Cache>,
    /// Jobs may end, and so start requests of others, outside of any task.
    runtime: tokio::runtime::Handle,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    schedule: Schedule,
    waiting: Waiting<Waiter>,
    jobs: HashMap<JobId, Arc<Shared>>,
    backoff: Backoff,
}

/// What a job and the requests on its behalf have in common.
#[derive(Debug)]
struct Shared {
    opened: Arc<Opened>,
    account: Arc<Account>,
    lost: watch::Sender<Option<FetchError>>,
}

/// The node's fetching. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

/// One restore's, or warm-up's, share of it. Dropping it stops its fill; requests on the way finish into the cache.
#[derive(Debug)]
pub struct Job {
    engine: Engine,
    id: JobId,
    shared: Arc<Shared>,
}

impl Engine {
    /// At most `parallel` requests are made at a time.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(store: Store, cache: Arc<Cache>, parallel: usize) -> Engine {
        Engine {
            inner: Arc::new(Inner {
                store,
                cache,
                runtime: tokio::runtime::Handle::current(),
                started: Instant::now(),
                state: Mutex::new(State {
                    schedule: Schedule::new(Limits::new(parallel), Duration::ZERO),
                    waiting: Waiting::default(),
                    jobs: HashMap::new(),
                    backoff: Backoff::default(),
                }),
            }),
        }
    }

    /// Starts a job that fetches the first `fill` blocks by itself, in the order of the files.
    pub async fn job(&self, opened: Arc<Opened>, account: Arc<Account>, fill: usize) -> Job {
        account.expect(opened.plan.order.len());
        if let Some(first) = opened.plan.order.first() {
            // The first question about a tenant reads its part of the cache from the disk: not under the schedule's lock.
            self.locate(opened.plan.key(*first)).await;
        }
        let shared = Arc::new(Shared {
            opened,
            account,
            lost: watch::Sender::new(None),
        });
        let id = {
            let mut state = self.lock();
            let id = state.schedule.add(Arc::clone(&shared.opened.plan), fill);
            state.jobs.insert(id, Arc::clone(&shared));
            id
        };
        self.pump();
        Job {
            engine: self.clone(),
            id,
            shared,
        }
    }

    /// The cache that blocks are fetched into.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.inner.cache
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.inner.started.elapsed()
    }

    /// Starts every request that may be made now.
    fn pump(&self) {
        let mut found: Vec<Key> = Vec::new();
        {
            let mut guard = self.lock();
            let state = &mut *guard;
            if state.backoff.wait(self.now()).is_some() {
                return;
            }
            let (jobs, cache) = (&state.jobs, &self.inner.cache);
            let mut have = |job: JobId, block: u32, key: &Key| {
                let there = cache.contains(&key.0, &key.1);
                if there {
                    if let Some(shared) = jobs.get(&job) {
                        let raw_len = shared.opened.plan.blocks[block as usize].raw_len;
                        shared.account.found(block, raw_len);
                    }
                    found.push(*key);
                }
                there
            };
            while let Some(batch) = state.schedule.next(&mut have) {
                if let Some(shared) = state.jobs.get(&batch.job) {
                    self.inner
                        .runtime
                        .spawn(self.clone().run(batch, Arc::clone(shared)));
                }
            }
            // Somebody may have begun to wait after the block came and before anyone was told.
            found.retain(|key| state.waiting.is_waited_for(key));
        }
        if !found.is_empty() {
            self.inner.runtime.spawn(self.clone().tell(found));
        }
    }

    /// Tells those who wait for blocks that are in the cache already.
    async fn tell(self, keys: Vec<Key>) {
        for key in keys {
            let located = self.locate(key).await;
            let mut guard = self.lock();
            let state = &mut *guard;
            for waiter in state.waiting.take(&key) {
                match &located {
                    Some(located) => {
                        let _ = waiter.answer.send(Ok(located.clone()));
                    }
                    None => state.wait(key, waiter),
                }
            }
        }
        self.pump();
    }

    async fn locate(&self, (tenant, id): Key) -> Option<Located> {
        let cache = Arc::clone(&self.inner.cache);
        tokio::task::spawn_blocking(move || cache.get(&tenant, &id))
            .await
            .unwrap_or(None)
    }

    /// One request, from the store to those who wait.
    async fn run(self, batch: Batch, shared: Arc<Shared>) {
        crate::pause("node.read").await;
        let fetched = shared
            .opened
            .snapshot
            .fetch(&self.inner.store, batch.blocks.clone(), batch.class)
            .await;
        match fetched {
            Ok(fetched) => self.arrived(&batch, &shared, fetched).await,
            Err(error) => self.failed(&batch, &shared, &error),
        }
        self.pump();
    }

    async fn arrived(&self, batch: &Batch, shared: &Arc<Shared>, fetched: Fetched) {
        let (bytes, healed) = (fetched.fetched_bytes, fetched.healed);
        if healed > 0 {
            tracing::warn!(
                snapshot = %shared.opened.snapshot.id,
                healed,
                "blocks of a damaged pack were rebuilt from parity"
            );
        }
        let cache = Arc::clone(&self.inner.cache);
        let plan = Arc::clone(&shared.opened.plan);
        let blocks = batch.blocks.clone();
        let kept = tokio::task::spawn_blocking(move || {
            blocks
                .zip(&fetched.blocks)
                .map(|(block, bytes)| {
                    let (tenant, id) = plan.key(block);
                    cache
                        .insert(&tenant, &id, bytes)
                        .map_err(|e| FetchError::cache(&format!("block {block}"), &e))
                })
                .collect::<Vec<Answer>>()
        })
        .await
        .unwrap_or_default();

        shared.account.fetched(batch.blocks.clone(), bytes, healed);
        let now = self.now();
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut refused = None;
        for (block, answer) in batch.blocks.clone().zip(kept) {
            let key = shared.opened.plan.key(block);
            let raw_len = shared.opened.plan.blocks[block as usize].raw_len;
            for waiter in state.waiting.take(&key) {
                match &answer {
                    Ok(located) => {
                        if let Some(other) = state.jobs.get(&waiter.job) {
                            other.account.found(waiter.block, raw_len);
                        }
                        let _ = waiter.answer.send(Ok(located.clone()));
                    }
                    Err(error) => state.retry(key, waiter, error),
                }
            }
            refused = refused.or(answer.err());
        }
        state
            .schedule
            .finish(batch, &shared.opened.plan, bytes, now);
        match refused {
            Some(error) => self.back_off(state, &error),
            None => {
                if state.backoff.worked() {
                    tracing::info!("store and cache work again");
                }
            }
        }
    }

    fn failed(&self, batch: &Batch, shared: &Arc<Shared>, error: &ReadError) {
        let lost_block = match error {
            ReadError::ChunkLost { block, .. } => Some(*block),
            _ => None,
        };
        let error = FetchError::from(error);
        let now = self.now();
        let mut guard = self.lock();
        let state = &mut *guard;
        state.schedule.finish(batch, &shared.opened.plan, 0, now);
        for block in batch.blocks.clone().rev() {
            let key = shared.opened.plan.key(block);
            let is_lost = error.lost && lost_block.is_none_or(|lost| lost == block);
            let waiters = state.waiting.take(&key);
            if is_lost {
                for waiter in waiters {
                    let _ = waiter.answer.send(Err(error.clone()));
                }
                continue;
            }
            if waiters.is_empty() {
                state.schedule.want_again(batch.job, block, Class::Fill);
            }
            for waiter in waiters {
                if error.lost {
                    state.wait(key, waiter);
                } else {
                    state.retry(key, waiter, &error);
                }
            }
        }
        if error.lost {
            tracing::error!(
                snapshot = %shared.opened.snapshot.id,
                reason = %error.reason,
                detail = %error,
                "data of a snapshot is lost"
            );
            shared.lost.send_replace(Some(error));
        } else {
            self.back_off(state, &error);
        }
    }

    fn back_off(&self, state: &mut State, error: &FetchError) {
        if state.backoff.failed(self.now()) {
            tracing::warn!(reason = %error.reason, detail = %error, "fetching fails, trying again");
        }
        if let Some(wait) = state.backoff.wait(self.now()) {
            let engine = self.clone();
            self.inner.runtime.spawn(async move {
                // A moment more, so that the back-off is over whatever the timer's resolution.
                tokio::time::sleep(wait + Duration::from_millis(2)).await;
                engine.pump();
            });
        }
    }
}

impl State {
    /// Lets somebody wait (again) for a block.
    fn wait(&mut self, key: Key, waiter: Waiter) {
        self.schedule
            .want_again(waiter.job, waiter.block, waiter.class);
        self.waiting.add(key, waiter);
    }

    fn retry(&mut self, key: Key, waiter: Waiter, error: &FetchError) {
        match waiter.patience {
            Patience::Once => {
                let _ = waiter.answer.send(Err(error.clone()));
            }
            Patience::Forever => self.wait(key, waiter),
        }
    }
}

impl Job {
    /// The snapshot.
    pub fn opened(&self) -> &Arc<Opened> {
        &self.shared.opened
    }

    /// The restore's counters.
    pub fn account(&self) -> &Arc<Account> {
        &self.shared.account
    }

    /// Set once data of the snapshot turns out to be lost, whoever wanted it.
    pub fn lost(&self) -> watch::Receiver<Option<FetchError>> {
        self.shared.lost.subscribe()
    }

    /// Waits until all of `blocks` are in the cache; where they lie, in the same order.
    pub async fn read(
        &self,
        blocks: Vec<u32>,
        class: Class,
        patience: Patience,
    ) -> Result<Vec<Located>, FetchError> {
        let plan = &self.shared.opened.plan;
        let keys: Vec<Key> = blocks.iter().map(|block| plan.key(*block)).collect();
        let cache = Arc::clone(&self.engine.inner.cache);
        let there: Vec<Option<Located>> = tokio::task::spawn_blocking(move || {
            keys.iter().map(|(t, id)| cache.get(t, id)).collect()
        })
        .await
        .unwrap_or_else(|_| vec![None; blocks.len()]);

        let mut found = Vec::with_capacity(blocks.len());
        let mut missing = false;
        {
            let mut guard = self.engine.lock();
            for (block, located) in blocks.into_iter().zip(there) {
                match located {
                    Some(located) => {
                        self.shared.account.found(block, located.len);
                        found.push(Ok(located));
                    }
                    None => {
                        let (answer, wait) = oneshot::channel();
                        guard.schedule.want(self.id, block, class);
                        guard.waiting.add(
                            plan.key(block),
                            Waiter {
                                job: self.id,
                                block,
                                class,
                                patience,
                                answer,
                            },
                        );
                        missing = true;
                        found.push(Err(wait));
                    }
                }
            }
        }
        if missing {
            self.engine.pump();
        }
        let mut all = Vec::with_capacity(found.len());
        for one in found {
            all.push(match one {
                Ok(located) => located,
                Err(wait) => wait.await.map_err(|_| FetchError {
                    reason: thaw_proto::Reason::NodeUnavailable,
                    detail: "thawd stopped serving this restore".to_owned(),
                    lost: false,
                })??,
            });
        }
        Ok(all)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        {
            let mut state = self.engine.lock();
            state.schedule.remove(self.id);
            state.jobs.remove(&self.id);
            let id = self.id;
            state.waiting.retain(|waiter| waiter.job != id);
        }
        // Another job may now take the turn.
        self.engine.pump();
    }
}
