//! The ttrpc service `thaw.v1.Node`: translates between messages and the modules that do the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use thaw_proto::StartRecord;
use thaw_proto::v1::rpc::Node;
use thaw_proto::v1::*;
use thaw_snapshot::matching;
use thaw_snapshot::store::{Store, StoreError};
use thaw_snapshot::{SnapshotId, TenantId, summary};
use ttrpc::r#async::TtrpcContext;
use ttrpc::{Code, Error, get_status};

use crate::activity::Activity;
use crate::capture::spool::SpoolError;
use crate::capture::{CaptureError, Captures, Phase};
use crate::catalogue::{Catalogue, CatalogueError};
use crate::containerd::Containerd;
use crate::fetch::{Accounts, Engine};
use crate::lookup::{self, Found, Lookups};
use crate::strikes::Strikes;
use crate::target::{Asked, Identity, Target, TargetError, container_name};

/// Everything that the service answers from.
#[derive(Debug)]
pub struct NodeService {
    /// Cluster and machine.
    pub identity: Identity,
    /// Path of the data socket, for landers.
    pub data_socket: String,
    /// containerd.
    pub containerd: Containerd,
    /// The store.
    pub store: Store,
    /// Look-ups.
    pub lookups: Lookups,
    /// Captures.
    pub captures: Arc<Captures>,
    /// Snapshots by id.
    pub catalogue: Catalogue,
    /// Strikes.
    pub strikes: Arc<Strikes>,
    /// Bytes moved.
    pub accounts: Arc<Accounts>,
    /// Fetching.
    pub engine: Engine,
    /// What keeps thawd alive.
    pub activity: Arc<Activity>,
    /// Distinguishes ids given out by this process.
    pub next_id: AtomicU64,
}

type Answer<T> = ttrpc::Result<T>;

fn status(code: Code, message: impl ToString) -> Error {
    Error::RpcStatus(get_status(code, message))
}

fn invalid(message: impl ToString) -> Error {
    status(Code::INVALID_ARGUMENT, message)
}

fn store_error(error: &StoreError) -> Error {
    status(
        Code::UNAVAILABLE,
        format!("{}: {error}", error.reason().code()),
    )
}

impl From<CatalogueError> for Error {
    fn from(error: CatalogueError) -> Self {
        let code = match &error {
            CatalogueError::Prefix(_) => Code::INVALID_ARGUMENT,
            CatalogueError::Unknown(_) => Code::NOT_FOUND,
            CatalogueError::Ambiguous { .. } | CatalogueError::InUse(_) => {
                Code::FAILED_PRECONDITION
            }
            CatalogueError::Store(store) => return store_error(store),
            CatalogueError::Read(_) => Code::DATA_LOSS,
        };
        status(code, error)
    }
}

/// A capture's error: `<code>: <sentence>`, so that programs need not understand sentences.
fn capture_error(error: &CaptureError) -> Error {
    let code = match error {
        CaptureError::Unknown(_) => Code::NOT_FOUND,
        CaptureError::Busy(_) => Code::ALREADY_EXISTS,
        CaptureError::Spool(SpoolError::Full { .. }) => Code::RESOURCE_EXHAUSTED,
        CaptureError::Spool(SpoolError::Io { .. }) => Code::INTERNAL,
        CaptureError::Store(_) => Code::UNAVAILABLE,
        CaptureError::Failed { .. } | CaptureError::Incomplete { .. } => Code::FAILED_PRECONDITION,
    };
    status(code, format!("{}: {error}", error.code()))
}

fn target_error(error: &TargetError) -> Error {
    match error {
        TargetError::Request(_) | TargetError::Distil(_) => invalid(error),
        TargetError::NoContainer { .. } => status(Code::NOT_FOUND, error),
        TargetError::NoIdentity { .. } => status(
            Code::FAILED_PRECONDITION,
            format!("{}: {error}", thaw_proto::Reason::ImageUnknown),
        ),
        TargetError::Containerd(_) => status(Code::UNAVAILABLE, error),
    }
}

fn match_message(summary: &summary::Summary) -> Match {
    Match {
        tenant: summary.provenance.scope.tenant.to_string(),
        snapshot: summary.id.to_string(),
        page_bytes: summary.page_bytes,
        container_count: summary.provenance.container_count,
        created: summary.provenance.created.clone(),
        ..Default::default()
    }
}

fn miss_message(miss: matching::Miss) -> Miss {
    Miss {
        reason: miss.reason.code().to_owned(),
        detail: miss.detail,
        nearest_snapshot: miss.nearest.map(|id| id.to_string()).unwrap_or_default(),
        differences: miss
            .differences
            .into_iter()
            .map(|d| Difference {
                field: d.field,
                stored: d.stored,
                wanted: d.wanted,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

fn summary_message(summary: &summary::Summary) -> SnapshotSummary {
    let p = &summary.provenance;
    SnapshotSummary {
        id: summary.id.to_string(),
        tenant: p.scope.tenant.to_string(),
        key: p.key.to_string(),
        workload: p.workload.to_string(),
        created: p.created.clone(),
        page_bytes: summary.page_bytes,
        stored_bytes: summary.stored_bytes,
        runsc_version: p.host.runsc_version.clone(),
        image: p.image.clone(),
        json: serde_json::to_string(summary).unwrap_or_default(),
        ..Default::default()
    }
}

impl NodeService {
    fn new_id(&self, kind: &str) -> String {
        let n = self.next_id.fetch_add(1, Relaxed);
        // The process id tells ids of different lives apart.
        format!("{kind}-{}-{n}", std::process::id())
    }

    async fn target(
        &self,
        container: &ContainerRef,
        spec: &[u8],
        runtime: &RuntimeFacts,
    ) -> Result<Target, TargetError> {
        let asked = Asked {
            container,
            spec,
            runtime,
        };
        Target::resolve(&self.identity, &self.containerd, asked).await
    }
}

#[async_trait]
impl Node for NodeService {
    async fn lookup(&self, _: &TtrpcContext, req: LookupRequest) -> Answer<LookupResponse> {
        let _busy = self.activity.call();
        let pinned = match req.pinned_snapshot.as_str() {
            "" => None,
            text => Some(SnapshotId::parse(text).map_err(invalid)?),
        };
        let mut response = LookupResponse {
            lookup_id: self.new_id("lookup"),
            data_socket: self.data_socket.clone(),
            ..Default::default()
        };
        let target = match self.target(&req.container, &req.spec, &req.runtime).await {
            Ok(target) => Arc::new(target),
            Err(error) => {
                let miss = lookup::unresolved(error).map_err(|e| target_error(&e))?;
                response.miss = Some(miss_message(miss)).into();
                return Ok(response);
            }
        };
        response.key = lookup::shown(&target.wanted.key());
        self.lookups
            .remember(response.lookup_id.clone(), Arc::clone(&target));
        match self.lookups.find(&target, pinned).await {
            Found::Match(summary) => {
                tracing::info!(container = target.container, snapshot = %summary.id, "match");
                response.match_ = Some(match_message(&summary)).into();
            }
            Found::Miss(miss) => {
                tracing::info!(
                    container = target.container,
                    reason = %miss.reason,
                    detail = miss.detail,
                    "no match"
                );
                response.miss = Some(miss_message(miss)).into();
            }
        }
        Ok(response)
    }

    async fn explain(&self, _: &TtrpcContext, req: ExplainRequest) -> Answer<ExplainResponse> {
        let _busy = self.activity.call();
        let mut response = ExplainResponse::default();
        let target = if req.lookup_id.is_empty() {
            let resolved = if req.container.id.is_empty() {
                Target::of_spec(
                    &self.identity,
                    Asked {
                        container: &req.container,
                        spec: &req.spec,
                        runtime: &req.runtime,
                    },
                )
            } else {
                self.target(&req.container, &req.spec, &req.runtime).await
            };
            match resolved {
                Ok(target) => Arc::new(target),
                Err(error) => {
                    let miss = lookup::unresolved(error).map_err(|e| target_error(&e))?;
                    response.miss = Some(miss_message(miss)).into();
                    return Ok(response);
                }
            }
        } else {
            self.lookups.recall(&req.lookup_id).ok_or_else(|| {
                status(
                    Code::NOT_FOUND,
                    format!("look-up {} is not remembered any more", req.lookup_id),
                )
            })?
        };
        response.key = lookup::shown(&target.wanted.key());
        response.tenant = target.tenant.to_string();
        response.workload = target.workload.to_string();
        match self.lookups.explain(&target).await {
            Found::Match(summary) => response.match_ = Some(match_message(&summary)).into(),
            Found::Miss(miss) => response.miss = Some(miss_message(miss)).into(),
        }
        Ok(response)
    }

    async fn outcome(&self, _: &TtrpcContext, req: OutcomeRequest) -> Answer<OutcomeResponse> {
        let _busy = self.activity.call();
        let record: StartRecord = serde_json::from_str(&req.record)
            .map_err(|e| invalid(format!("record is not a start record: {e}")))?;
        self.activity.outcome(&record);
        tracing::info!(
            container = format!("{}/{}", record.namespace, record.id),
            outcome = %record.outcome,
            reason = record.reason.map(|r| r.code()).unwrap_or_default(),
            snapshot = record.snapshot.as_deref().unwrap_or_default(),
            create_ms = record.create_ms,
            start_ms = record.start_ms,
            "outcome"
        );
        Ok(OutcomeResponse::default())
    }

    async fn strike(&self, _: &TtrpcContext, req: StrikeRequest) -> Answer<StrikeResponse> {
        let _busy = self.activity.call();
        TenantId::parse(&req.tenant).map_err(invalid)?;
        let id = SnapshotId::parse(&req.snapshot).map_err(invalid)?;
        Ok(StrikeResponse {
            quarantined: self.strikes.add(id, &req.cause),
            ..Default::default()
        })
    }

    async fn capture_begin(
        &self,
        _: &TtrpcContext,
        req: CaptureBeginRequest,
    ) -> Answer<CaptureBeginResponse> {
        let _busy = self.activity.call();
        let target = self
            .target(&req.container, &req.spec, &req.runtime)
            .await
            .map_err(|e| target_error(&e))?;
        let container = target.container.clone();
        let capture = self
            .captures
            .begin(self.new_id("capture"), target, req.expected_bytes)
            .await
            .map_err(|e| capture_error(&e))?;
        tracing::info!(
            capture = capture.id,
            container,
            expected_bytes = req.expected_bytes,
            "capture begins"
        );
        Ok(CaptureBeginResponse {
            capture_id: capture.id.clone(),
            data_socket: self.data_socket.clone(),
            ..Default::default()
        })
    }

    async fn capture_commit(
        &self,
        _: &TtrpcContext,
        req: CaptureCommitRequest,
    ) -> Answer<CaptureCommitResponse> {
        let _busy = self.activity.call();
        self.captures
            .commit(&req.capture_id, req.paused_ms)
            .map_err(|e| capture_error(&e))?;
        Ok(CaptureCommitResponse::default())
    }

    async fn capture_abort(
        &self,
        _: &TtrpcContext,
        req: CaptureAbortRequest,
    ) -> Answer<CaptureAbortResponse> {
        let _busy = self.activity.call();
        self.captures
            .abort(&req.capture_id, &req.cause)
            .map_err(|e| capture_error(&e))?;
        Ok(CaptureAbortResponse::default())
    }

    async fn capture_status(
        &self,
        _: &TtrpcContext,
        req: CaptureStatusRequest,
    ) -> Answer<CaptureStatusResponse> {
        let _busy = self.activity.call();
        let capture = self
            .captures
            .get(&req.capture_id)
            .map_err(|e| capture_error(&e))?;
        let progress = capture.progress();
        let mut response = CaptureStatusResponse {
            state: progress.phase.name().to_owned(),
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
            tenant: capture.target.tenant.to_string(),
            paused_ms: progress.paused_ms,
            ..Default::default()
        };
        match progress.phase {
            Phase::Durable {
                snapshot,
                stored_bytes,
            } => {
                response.snapshot = snapshot.to_string();
                response.stored_bytes = stored_bytes;
            }
            Phase::Failed { code, message } => {
                response.error_code = code;
                response.error = message;
            }
            Phase::Spooling | Phase::Uploading => {}
        }
        Ok(response)
    }

    async fn list(&self, _: &TtrpcContext, req: ListRequest) -> Answer<ListResponse> {
        let _busy = self.activity.call();
        let tenant = match req.containerd_namespace.as_str() {
            "" => None,
            namespace => Some(self.identity.tenant(namespace).id),
        };
        let snapshots = self.catalogue.list(tenant).await?;
        Ok(ListResponse {
            snapshots: snapshots.iter().map(summary_message).collect(),
            ..Default::default()
        })
    }

    async fn show(&self, _: &TtrpcContext, req: ShowRequest) -> Answer<ShowResponse> {
        let _busy = self.activity.call();
        let (summary, manifest) = self.catalogue.show(&req.snapshot).await?;
        Ok(ShowResponse {
            summary: Some(summary_message(&summary)).into(),
            manifest,
            ..Default::default()
        })
    }

    async fn remove(&self, _: &TtrpcContext, req: RemoveRequest) -> Answer<RemoveResponse> {
        let _busy = self.activity.call();
        let (id, freed_bytes) = self.catalogue.remove(&req.snapshot).await?;
        self.strikes.forget(&id);
        tracing::info!(snapshot = %id, freed_bytes, "snapshot removed");
        Ok(RemoveResponse {
            snapshot: id.to_string(),
            freed_bytes,
            ..Default::default()
        })
    }

    async fn resolve(&self, _: &TtrpcContext, req: ResolveRequest) -> Answer<ResolveResponse> {
        let _busy = self.activity.call();
        let asked = &req.container;
        let found = self
            .containerd
            .container(
                &asked.containerd_address,
                &asked.containerd_namespace,
                &asked.id,
            )
            .await
            .map_err(|e| target_error(&TargetError::Containerd(e)))?;
        Ok(match found {
            None => ResolveResponse::default(),
            Some(container) => ResolveResponse {
                exists: true,
                runtime: container.runtime,
                image: container.image,
                rootfs: container.rootfs.unwrap_or_default(),
                ..Default::default()
            },
        })
    }

    async fn status(&self, _: &TtrpcContext, req: StatusRequest) -> Answer<StatusResponse> {
        let _busy = self.activity.call();
        let store = if req.probe_store {
            self.store.probe().await
        } else {
            self.store.list_tenants().await.map(drop)
        };
        let totals = &self.accounts.totals;
        let cache = self.engine.cache();
        Ok(StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            store_url: self.store.url().to_owned(),
            store_error: store.err().map(|e| e.to_string()).unwrap_or_default(),
            cache_bytes: cache.bytes(),
            cache_limit: cache.limit(),
            landers: self.activity.landers(),
            captures: self.captures.active().try_into().unwrap_or(u32::MAX),
            fetched_bytes: totals.fetched.load(Relaxed),
            cache_hit_bytes: totals.hits.load(Relaxed),
            healed_chunks: totals.healed.load(Relaxed),
            ..Default::default()
        })
    }

    async fn restore_stats(
        &self,
        _: &TtrpcContext,
        req: RestoreStatsRequest,
    ) -> Answer<RestoreStatsResponse> {
        let _busy = self.activity.call();
        let Some(account) = self.accounts.get(&container_name(&req.container)) else {
            return Ok(RestoreStatsResponse::default());
        };
        let moved = account.moved();
        Ok(RestoreStatsResponse {
            known: true,
            fetched_bytes: moved.fetched,
            cache_hit_bytes: moved.hits,
            healed_chunks: moved.healed,
            complete: moved.complete,
            ..Default::default()
        })
    }
}
