//! Questions to thawd, each with its deadline and with what an absent or slow thawd means.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protobuf::MessageField;
use thaw_config::Config;
use thaw_proto::client::{ClientError, Launch, NodeClient, ensure_node};
use thaw_proto::record::FieldDifference;
use thaw_proto::{Reason, StartRecord, v1};

use crate::env::Env;

/// Calls that nobody waits for.
const BACKGROUND_LIMIT: Duration = Duration::from_secs(30);

/// A snapshot to try.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) tenant: String,
    pub(crate) snapshot: String,
    pub(crate) data_socket: PathBuf,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Miss {
    pub(crate) reason: Reason,
    pub(crate) detail: Option<String>,
    pub(crate) nearest: Option<String>,
    pub(crate) differences: Vec<FieldDifference>,
}

impl Miss {
    /// Without a snapshot near it.
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Miss {
        Miss {
            reason,
            detail: Some(detail.into()),
            nearest: None,
            differences: Vec::new(),
        }
    }

    fn from_wire(miss: &v1::Miss) -> Miss {
        let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Miss {
            // A newer thawd may know reasons that this shim does not.
            reason: miss.reason.parse().unwrap_or(Reason::NoSnapshot),
            detail: filled(&miss.detail),
            nearest: filled(&miss.nearest_snapshot),
            differences: miss
                .differences
                .iter()
                .map(|difference| FieldDifference {
                    field: difference.field.clone(),
                    stored: difference.stored.clone(),
                    wanted: difference.wanted.clone(),
                })
                .collect(),
        }
    }
}

/// The answer to a look-up.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lookup {
    pub(crate) found: Result<Found, Miss>,
    /// Names the look-up for [`explain`]; empty if thawd was not reached.
    pub(crate) id: String,
    pub(crate) took: Duration,
}

/// The container as thawd asks containerd about it.
pub(crate) fn container_ref(env: &Env, id: &str) -> MessageField<v1::ContainerRef> {
    MessageField::some(v1::ContainerRef {
        containerd_address: env.containerd_address.clone(),
        containerd_namespace: env.namespace.clone(),
        id: id.to_owned(),
        ..v1::ContainerRef::default()
    })
}

/// Connects to thawd, starting it if need be.
pub(crate) async fn connect(config: &Config) -> Result<NodeClient, ClientError> {
    ensure_node(&Launch {
        socket: config.node_socket(),
        daemon: config
            .runsc
            .daemon
            .clone()
            .unwrap_or_else(|| beside("thawd")),
        // The environment names it to thawd as it does to this process.
        config: None,
        log: config
            .daemon
            .log
            .clone()
            .unwrap_or_else(|| config.run_dir.join("thawd.log")),
        limit: config.deadlines.daemon_start(),
    })
    .await
}

/// Starts thawd again whenever it is gone. For as long as a lander needs it; never returns.
pub(crate) async fn keep_running(env: Arc<Env>) {
    const PERIOD: Duration = Duration::from_secs(1);
    loop {
        tokio::time::sleep(PERIOD).await;
        if let Err(error) = connect(&env.config).await {
            tracing::warn!(%error, "a restore waits for thawd");
        }
    }
}

/// A program of Thaw's beside this one; a bare name, to be found in PATH, if this one's place is not known.
pub(crate) fn beside(name: &str) -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join(name)))
        .unwrap_or_else(|| name.into())
}

/// Looks for a snapshot. Never fails: what goes wrong is a reason.
pub(crate) async fn look_up(
    env: &Env,
    id: &str,
    spec: Vec<u8>,
    facts: MessageField<v1::RuntimeFacts>,
    pinned: Option<String>,
) -> Lookup {
    let began = Instant::now();
    let ask = async {
        let client = connect(&env.config)
            .await
            .map_err(|error| Miss::new(Reason::NodeUnavailable, error.to_string()))?;
        // Starting thawd has its own limit and happens once; the look-up's is for the look-up.
        let limit = env.config.deadlines.lookup();
        let request = v1::LookupRequest {
            container: container_ref(env, id),
            spec,
            runtime: facts,
            pinned_snapshot: pinned.unwrap_or_default(),
            ..v1::LookupRequest::default()
        };
        // One clock decides. The call's own ends later, and only tells thawd how long an answer is of use.
        let context = ttrpc::context::with_duration(limit * 2);
        match tokio::time::timeout(limit, client.lookup(context, &request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(ttrpc::Error::RpcStatus(status)))
                if status.code() != ttrpc::Code::DEADLINE_EXCEEDED =>
            {
                Err(Miss::new(
                    Reason::NodeUnavailable,
                    format!("thawd could not look for a snapshot: {}", status.message()),
                ))
            }
            Ok(Err(ttrpc::Error::RpcStatus(_))) | Err(_) => Err(Miss::new(
                Reason::StoreSlow,
                format!("no answer from the store within {} ms", limit.as_millis()),
            )),
            Ok(Err(error)) => Err(Miss::new(
                Reason::NodeUnavailable,
                format!("thawd could not look for a snapshot: {error}"),
            )),
        }
    };
    match ask.await {
        Ok(response) => Lookup {
            found: understand(&response),
            id: response.lookup_id,
            took: began.elapsed(),
        },
        Err(miss) => Lookup {
            found: Err(miss),
            id: String::new(),
            took: began.elapsed(),
        },
    }
}

fn understand(response: &v1::LookupResponse) -> Result<Found, Miss> {
    match (response.match_.as_ref(), response.miss.as_ref()) {
        (Some(found), _) => Ok(Found {
            tenant: found.tenant.clone(),
            snapshot: found.snapshot.clone(),
            data_socket: PathBuf::from(&response.data_socket),
        }),
        (None, Some(miss)) => Err(Miss::from_wire(miss)),
        (None, None) => Err(Miss::new(
            Reason::NodeUnavailable,
            "thawd answered neither with a snapshot nor with a reason",
        )),
    }
}

/// Compares with the nearest snapshot of the same workload. `None`: thawd cannot say more.
pub(crate) async fn explain(env: &Env, lookup_id: &str) -> Option<Miss> {
    let client = connect(&env.config).await.ok()?;
    let request = v1::ExplainRequest {
        lookup_id: lookup_id.to_owned(),
        ..v1::ExplainRequest::default()
    };
    match client
        .explain(ttrpc::context::with_duration(BACKGROUND_LIMIT), &request)
        .await
    {
        Ok(response) => response.miss.as_ref().map(Miss::from_wire),
        Err(error) => {
            tracing::debug!(%error, "thawd could not explain the miss");
            None
        }
    }
}

/// Hands a start's record to thawd.
pub(crate) async fn report(env: &Env, record: &StartRecord) {
    let Ok(json) = serde_json::to_string(record) else {
        return;
    };
    let request = v1::OutcomeRequest {
        container: container_ref(env, &record.id),
        record: json,
        ..v1::OutcomeRequest::default()
    };
    let sent = match connect(&env.config).await {
        Ok(client) => client
            .outcome(ttrpc::context::with_duration(BACKGROUND_LIMIT), &request)
            .await
            .map(drop)
            .map_err(|e| e.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = sent {
        tracing::warn!(error, "thawd does not have the record of this start");
    }
}

/// Counts a bad end against a snapshot.
pub(crate) async fn strike(env: &Env, tenant: &str, snapshot: &str, cause: &str) {
    let request = v1::StrikeRequest {
        tenant: tenant.to_owned(),
        snapshot: snapshot.to_owned(),
        cause: cause.to_owned(),
        ..v1::StrikeRequest::default()
    };
    let answer = match connect(&env.config).await {
        Ok(client) => client
            .strike(ttrpc::context::with_duration(BACKGROUND_LIMIT), &request)
            .await
            .map_err(|e| e.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match answer {
        Ok(response) => tracing::warn!(
            snapshot,
            cause,
            quarantined = response.quarantined,
            "strike"
        ),
        Err(error) => tracing::warn!(snapshot, cause, error, "strike not recorded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_match_or_a_reason() {
        let mut response = v1::LookupResponse {
            data_socket: "/run/d".into(),
            ..v1::LookupResponse::default()
        };
        assert_eq!(
            understand(&response).unwrap_err().reason,
            Reason::NodeUnavailable
        );
        response.miss = MessageField::some(v1::Miss {
            reason: "store-denied".into(),
            detail: "403".into(),
            ..v1::Miss::default()
        });
        let miss = understand(&response).unwrap_err();
        assert_eq!(
            (miss.reason, miss.detail.as_deref()),
            (Reason::StoreDenied, Some("403"))
        );
        response.match_ = MessageField::some(v1::Match {
            tenant: "t".into(),
            snapshot: "s".into(),
            ..v1::Match::default()
        });
        assert_eq!(understand(&response).unwrap().snapshot, "s");
    }
}
