//! The distilled spec: what of an OCI `config.json` must agree between the container that was captured and the one that
//! is to be restored.
//!
//! Every field of the spec is in exactly one class. Compared: what gVisor compares at a restore (gVisor
//! `runsc/specutils/restore.go`), in the way it compares it, plus the identity of the root filesystem and the
//! environment, which gVisor ignores although the restored memory has long read them. Left out: what names or places the
//! container without the program seeing it, and what the shim makes equal by itself (`ociVersion`, `hostname`,
//! `domainname`, `hooks`, `root.path`, mount sources, `oomScoreAdj`, SELinux labels, id mappings, cgroup path, resources).

mod env;
mod fields;
mod value;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::canonical::Canonical;
use crate::id::DistilledHash;
use crate::key::{Scope, Tenant};

pub use env::always_differs;

/// Prefix of annotations that declare facts.
pub const FACT_PREFIX: &str = "thaw.dev/fact.";
/// Annotation that names the group.
pub const GROUP_ANNOTATION: &str = "thaw.dev/group";
/// Annotation with a [`KeyEnv`].
pub const KEY_ENV_ANNOTATION: &str = "thaw.dev/key-env";
/// Annotation by which CRI, and so gVisor, names a container.
pub const CONTAINER_NAME_ANNOTATION: &str = "io.kubernetes.cri.container-name";
/// Longest value that is kept in clear, bytes.
pub const MAX_CLEAR: usize = 200;

/// A spec that cannot be distilled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DistilError {
    /// A field has another type than the OCI runtime spec says.
    #[error("config.json: {field} must be {expected}")]
    Type {
        /// Dotted name.
        field: String,
        /// What it must be.
        expected: &'static str,
    },
    /// An annotation of ours has a value that means nothing.
    #[error("annotation {name}: {problem}")]
    Annotation {
        /// The annotation's key.
        name: String,
        /// What is wrong.
        problem: &'static str,
    },
}

/// Which environment variables belong to the key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KeyEnv {
    /// All but those that differ between any two pods of one template ([`always_differs`]).
    #[default]
    All,
    /// None.
    None,
    /// Only these.
    Only(BTreeSet<String>),
}

impl KeyEnv {
    /// Parses `all`, `none` or a comma-separated list of names.
    pub fn parse(text: &str) -> Option<KeyEnv> {
        match text.trim() {
            "" => None,
            "all" => Some(KeyEnv::All),
            "none" => Some(KeyEnv::None),
            list => {
                let names: BTreeSet<String> =
                    list.split(',').map(|name| name.trim().to_owned()).collect();
                (!names.contains("")).then_some(KeyEnv::Only(names))
            }
        }
    }
}

/// What distilling needs to know besides the spec.
#[derive(Debug, Clone)]
pub struct Context {
    /// Owner of the container.
    pub tenant: Tenant,
    /// Identity of the root filesystem's content: the parent chain id of containerd's snapshot.
    pub rootfs: String,
    /// Rust target architecture, e.g. `x86_64`.
    pub arch: String,
    /// runsc's `--platform`.
    pub platform: String,
    /// runsc's `--network`.
    pub network: String,
    /// runsc's `--directfs`.
    pub directfs: String,
    /// runsc's `--overlay2`.
    pub overlay: String,
    /// Machine series.
    pub machine_series: String,
    /// Declared facts.
    pub facts: BTreeMap<String, String>,
    /// Group.
    pub group: Option<String>,
    /// Which environment variables are compared.
    pub key_env: KeyEnv,
}

impl Context {
    /// Adds what the spec's annotations say about facts, group and environment.
    pub fn read_annotations(&mut self, spec: &Value) -> Result<(), DistilError> {
        let Some(annotations) = spec.get("annotations").and_then(Value::as_object) else {
            return Ok(());
        };
        for (name, value) in annotations {
            let bad = |problem| DistilError::Annotation {
                name: name.clone(),
                problem,
            };
            if let Some(fact) = name.strip_prefix(FACT_PREFIX) {
                let value = value.as_str().ok_or_else(|| bad("must be a string"))?;
                if fact.is_empty() {
                    return Err(bad("the fact has no name"));
                }
                self.facts.insert(fact.to_owned(), value.to_owned());
            } else if name == GROUP_ANNOTATION {
                let value = value.as_str().ok_or_else(|| bad("must be a string"))?;
                self.group = Some(value.to_owned());
            } else if name == KEY_ENV_ANNOTATION {
                self.key_env = value
                    .as_str()
                    .and_then(KeyEnv::parse)
                    .ok_or_else(|| bad("must be all, none or a comma-separated list of names"))?;
            }
        }
        Ok(())
    }

    /// The equality fields that are not in the spec.
    pub fn scope(&self) -> Scope {
        Scope {
            tenant: self.tenant.id,
            arch: self.arch.clone(),
            platform: self.platform.clone(),
            network: self.network.clone(),
            directfs: self.directfs.clone(),
            overlay: self.overlay.clone(),
            machine_series: self.machine_series.clone(),
            facts: self.facts.clone(),
            group: self.group.clone(),
        }
    }
}

/// One compared value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FieldValue {
    /// Holds no secret and is short.
    #[serde(rename = "v")]
    Clear(String),
    /// Keyed hash ([`Tenant::hide`]) of a value that could hold a secret or is long.
    #[serde(rename = "h")]
    Hidden(String),
}

impl FieldValue {
    fn clear(tenant: &Tenant, value: String) -> FieldValue {
        if value.len() > MAX_CLEAR {
            FieldValue::hidden(tenant, &value)
        } else {
            FieldValue::Clear(value)
        }
    }

    fn hidden(tenant: &Tenant, value: &str) -> FieldValue {
        FieldValue::Hidden(tenant.hide(value))
    }

    /// The value for people; nothing if it is hidden.
    pub fn shown(&self) -> &str {
        match self {
            FieldValue::Clear(value) => value,
            FieldValue::Hidden(_) => "",
        }
    }
}

/// Field name, as in the OCI runtime spec, to value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distilled(BTreeMap<String, FieldValue>);

impl Distilled {
    /// The fields in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FieldValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// One field.
    pub fn get(&self, field: &str) -> Option<&FieldValue> {
        self.0.get(field)
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Equal hashes: equal specs in every compared field.
    pub fn hash(&self) -> DistilledHash {
        let mut c = Canonical::new("thaw distilled spec v1");
        c.count(self.0.len());
        for (name, value) in &self.0 {
            c.text(name);
            match value {
                FieldValue::Clear(value) => c.count(0).text(value),
                FieldValue::Hidden(hash) => c.count(1).text(hash),
            };
        }
        c.finish().into()
    }

    /// Names of the fields that are not equal in both, in order.
    pub fn differing<'a>(&'a self, other: &'a Distilled) -> BTreeSet<&'a str> {
        self.0
            .keys()
            .chain(other.0.keys())
            .filter(|name| self.0.get(*name) != other.0.get(*name))
            .map(String::as_str)
            .collect()
    }
}

/// Distils `spec` (the content of `config.json`).
pub fn distil(spec: &Value, context: &Context) -> Result<Distilled, DistilError> {
    fields::collect(spec, context).map(Distilled)
}

#[cfg(test)]
mod tests;
