//! What a container is, as far as snapshots are concerned: its tenant, key and workload.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use thaw_proto::v1::{ContainerRef, RuntimeFacts};
use thaw_snapshot::distil::{CONTAINER_NAME_ANNOTATION, Context, DistilError, KeyEnv};
use thaw_snapshot::key::{HostFacts, Tenant, workload_id};
use thaw_snapshot::matching::Wanted;
use thaw_snapshot::{TenantId, WorkloadId};
use thiserror::Error;

use crate::containerd::{Containerd, ContainerdError};

/// Annotation by which CRI names the Kubernetes namespace.
const SANDBOX_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";

/// What of the key is the node's.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Cluster id.
    pub cluster: String,
    /// Machine series.
    pub series: String,
}

impl Identity {
    /// The tenant of a namespace.
    pub fn tenant(&self, namespace: &str) -> Tenant {
        Tenant::new(&self.cluster, namespace, None)
    }
}

/// A container that can be looked up or captured.
#[derive(Debug, Clone)]
pub struct Target {
    /// `<containerd namespace>/<id>`.
    pub container: String,
    /// Owner.
    pub tenant: TenantId,
    /// Everything that is compared.
    pub wanted: Wanted,
    /// For explaining.
    pub workload: WorkloadId,
    /// Image name, may be empty.
    pub image: String,
}

/// Why a container cannot be looked up or captured.
#[derive(Debug, Error)]
pub enum TargetError {
    /// A field of the request is missing or no JSON.
    #[error("{0}")]
    Request(String),
    /// The spec is not one.
    #[error(transparent)]
    Distil(#[from] DistilError),
    /// containerd knows no such container.
    #[error("containerd knows no container {id} in namespace {namespace}")]
    NoContainer {
        /// Its id.
        id: String,
        /// containerd's namespace.
        namespace: String,
    },
    /// containerd knows the container, but not the content of its root filesystem.
    #[error(
        "containerd does not know the content of the root filesystem of {id}: it was not made from an image"
    )]
    NoIdentity {
        /// The container's id.
        id: String,
    },
    /// containerd does not answer.
    #[error(transparent)]
    Containerd(#[from] ContainerdError),
}

/// What was sent about a container.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Which container.
    pub container: &'a ContainerRef,
    /// Its `config.json`.
    pub spec: &'a [u8],
    /// Its host.
    pub runtime: &'a RuntimeFacts,
}

impl Target {
    /// Asks containerd about the container and distils its spec.
    pub async fn resolve(
        identity: &Identity,
        containerd: &Containerd,
        asked: Asked<'_>,
    ) -> Result<Target, TargetError> {
        let Asked {
            container,
            spec,
            runtime,
        } = asked;
        let spec = parse(spec)?;
        if container.id.is_empty() || container.containerd_namespace.is_empty() {
            return Err(TargetError::Request(
                "the request names no container".to_owned(),
            ));
        }
        let known = containerd
            .container(
                &container.containerd_address,
                &container.containerd_namespace,
                &container.id,
            )
            .await?
            .ok_or_else(|| TargetError::NoContainer {
                id: container.id.clone(),
                namespace: container.containerd_namespace.clone(),
            })?;
        let rootfs = known.rootfs.ok_or_else(|| TargetError::NoIdentity {
            id: container.id.clone(),
        })?;
        Target::new(identity, container, &spec, runtime, rootfs, known.image)
    }

    /// For a spec without a container: everything is compared but the root filesystem, which differs from every other.
    pub fn of_spec(identity: &Identity, asked: Asked<'_>) -> Result<Target, TargetError> {
        let spec = parse(asked.spec)?;
        Target::new(
            identity,
            asked.container,
            &spec,
            asked.runtime,
            String::new(),
            String::new(),
        )
    }

    fn new(
        identity: &Identity,
        container: &ContainerRef,
        spec: &Value,
        runtime: &RuntimeFacts,
        rootfs: String,
        image: String,
    ) -> Result<Target, TargetError> {
        let annotation = |name: &str| {
            spec.get("annotations")
                .and_then(|all| all.get(name))
                .and_then(Value::as_str)
                .filter(|value| !value.is_empty())
        };
        let namespace = annotation(SANDBOX_NAMESPACE).unwrap_or(&container.containerd_namespace);
        let tenant = identity.tenant(namespace);
        let tenant_id = tenant.id;
        let mut context = Context {
            tenant,
            rootfs,
            arch: runtime.arch.clone(),
            platform: runtime.platform.clone(),
            network: runtime.network.clone(),
            directfs: runtime.directfs.clone(),
            overlay: runtime.overlay.clone(),
            machine_series: identity.series.clone(),
            facts: BTreeMap::new(),
            group: None,
            key_env: KeyEnv::All,
        };
        context.read_annotations(spec)?;
        let host = HostFacts {
            runsc_digest: runtime.runsc_digest.clone(),
            runsc_version: runtime.runsc_version.clone(),
            cpu_features: runtime
                .cpu_features
                .iter()
                .cloned()
                .collect::<BTreeSet<_>>(),
        };
        let program = spec
            .pointer("/process/args/0")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let fallback = annotation(CONTAINER_NAME_ANNOTATION).unwrap_or(program);
        let workload = workload_id(&tenant_id, &image, fallback);
        Ok(Target {
            container: container_name(container),
            tenant: tenant_id,
            wanted: Wanted::new(spec, &context, host)?,
            workload,
            image,
        })
    }
}

/// `<namespace>/<id>`, as landers name containers too.
pub fn container_name(container: &ContainerRef) -> String {
    format!("{}/{}", container.containerd_namespace, container.id)
}

fn parse(spec: &[u8]) -> Result<Value, TargetError> {
    serde_json::from_slice(spec)
        .map_err(|error| TargetError::Request(format!("config.json is not JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(container: &ContainerRef, spec: &str) -> Result<Target, TargetError> {
        let identity = Identity {
            cluster: "c".into(),
            series: "s".into(),
        };
        Target::of_spec(
            &identity,
            Asked {
                container,
                spec: spec.as_bytes(),
                runtime: &RuntimeFacts::default(),
            },
        )
    }

    #[test]
    fn the_pod_namespace_is_the_tenant() {
        let container = ContainerRef {
            containerd_namespace: "k8s.io".into(),
            id: "c".into(),
            ..Default::default()
        };
        let plain = asked(&container, r#"{"process":{"args":["/a"]}}"#).unwrap();
        let pod = asked(
            &container,
            r#"{"process":{"args":["/a"]},"annotations":{"io.kubernetes.cri.sandbox-namespace":"prod"}}"#,
        )
        .unwrap();
        assert_eq!(plain.tenant, Tenant::new("c", "k8s.io", None).id);
        assert_eq!(pod.tenant, Tenant::new("c", "prod", None).id);
        assert_eq!(plain.container, "k8s.io/c");
    }

    #[test]
    fn bad_specs_say_what_is_wrong() {
        let container = ContainerRef::default();
        let error = asked(&container, "{").unwrap_err().to_string();
        assert!(error.contains("config.json is not JSON"), "{error}");
        let error = asked(&container, r#"{"process":{"args":"x"}}"#).unwrap_err();
        assert!(matches!(error, TargetError::Distil(_)), "{error}");
    }
}
