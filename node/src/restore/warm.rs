//! Fetching ahead between a look-up that found something and the lander that will ask for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thaw_proto::data::Class;
use thaw_snapshot::{SnapshotId, TenantId};
use tokio::task::AbortHandle;

use crate::fetch::{Account, Engine, Patience, Snapshots};

/// Decoded bytes fetched ahead at most: what a fast link brings while runsc creates the sandbox.
const AHEAD: u64 = 32 << 20;
/// A warm-up that no lander took over by then was for nothing.
const PATIENCE: Duration = Duration::from_secs(15);

/// Warm-ups by container.
#[derive(Debug)]
pub struct Warmer {
    engine: Engine,
    snapshots: Arc<Snapshots>,
    running: Mutex<HashMap<String, AbortHandle>>,
}

impl Warmer {
    /// None runs yet.
    pub fn new(engine: Engine, snapshots: Arc<Snapshots>) -> Arc<Warmer> {
        Arc::new(Warmer {
            engine,
            snapshots,
            running: Mutex::default(),
        })
    }

    /// Starts one; it ends by itself.
    pub fn start(
        self: &Arc<Self>,
        container: String,
        tenant: TenantId,
        id: SnapshotId,
        account: Arc<Account>,
    ) {
        let this = Arc::clone(self);
        let name = container.clone();
        let task = tokio::spawn(async move {
            let work = this.warm(tenant, id, account);
            // Whatever went wrong here goes wrong again, and is reported, when the lander asks.
            let _ = tokio::time::timeout(PATIENCE, work).await;
            this.running().remove(&name);
        });
        if let Some(earlier) = self.running().insert(container, task.abort_handle()) {
            earlier.abort();
        }
    }

    /// Ends the one of a container: its lander has come.
    pub fn stop(&self, container: &str) {
        if let Some(task) = self.running().remove(container) {
            task.abort();
        }
    }

    async fn warm(&self, tenant: TenantId, id: SnapshotId, account: Arc<Account>) {
        let Ok((opened, fresh)) = self.snapshots.open(tenant, id).await else {
            return;
        };
        if fresh {
            account.fetched_head(opened.head_bytes());
        }
        let mut bytes = 0;
        let ahead = opened
            .plan
            .order
            .iter()
            .take_while(|block| {
                bytes += u64::from(opened.plan.blocks[**block as usize].raw_len);
                bytes <= AHEAD
            })
            .count();
        let first = opened.first_blocks();
        let job = self.engine.job(opened, account, ahead).await;
        let _ = job.read(first, Class::Demand, Patience::Once).await;
        // The job ends when it is dropped, so it is kept until the lander comes or the time is over.
        std::future::pending::<()>().await;
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<String, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
