//! Pods: which containers belong together, and what a pod's sandbox owes to its members.
//!
//! gVisor runs a pod in one sandbox. On the host only that sandbox exists, so the members' limits and OOM scores have no
//! process of their own to act on: they act on the sandbox, as sums and as the lowest score. Pure functions; the
//! container modules do the rest.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Annotations of containerd's CRI plugin and of CRI-O: what the container is, and whose sandbox it lives in.
const CONTAINER_TYPE: [&str; 2] = [
    "io.kubernetes.cri.container-type",
    "io.kubernetes.cri-o.ContainerType",
];
const SANDBOX_ID: [&str; 2] = [
    "io.kubernetes.cri.sandbox-id",
    "io.kubernetes.cri-o.SandboxID",
];
/// Resources of the whole pod, which containerd's CRI plugin writes into the sandbox's annotations only.
const POD_MEMORY: &str = "io.kubernetes.cri.sandbox-memory";
const POD_CPU_QUOTA: &str = "io.kubernetes.cri.sandbox-cpu-quota";
const POD_CPU_PERIOD: &str = "io.kubernetes.cri.sandbox-cpu-period";
const POD_CPU_SHARES: &str = "io.kubernetes.cri.sandbox-cpu-shares";
/// The kernel's own default, in microseconds.
pub(crate) const CPU_PERIOD: u64 = 100_000;
/// The kernel refuses less, in microseconds.
const MIN_CPU_QUOTA: u64 = 1_000;

/// What a container is to its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Alone in its sandbox, as `ctr` makes them.
    Plain,
    /// The first container of a pod, which holds the sandbox.
    Sandbox,
    /// A further container in the sandbox of this id.
    Member(String),
}

/// Reads the annotations. A member that names no sandbox is an error that says so.
pub(crate) fn kind(annotations: &BTreeMap<String, String>) -> Result<Kind, String> {
    let get = |names: [&str; 2]| names.iter().find_map(|name| annotations.get(*name));
    match get(CONTAINER_TYPE).map(String::as_str) {
        None => Ok(Kind::Plain),
        Some("sandbox") => Ok(Kind::Sandbox),
        Some("container") => match get(SANDBOX_ID) {
            Some(sandbox) => Ok(Kind::Member(sandbox.clone())),
            None => Err(format!(
                "annotation {} says that the container belongs to a pod, but {} is missing",
                CONTAINER_TYPE[0], SANDBOX_ID[0]
            )),
        },
        Some(other) => Err(format!(
            "annotation {} is {other:?}, neither sandbox nor container",
            CONTAINER_TYPE[0]
        )),
    }
}

/// The sandbox that a container names, whatever it is.
pub(crate) fn sandbox_id(annotations: &BTreeMap<String, String>) -> Option<&str> {
    SANDBOX_ID
        .iter()
        .find_map(|name| annotations.get(*name))
        .map(String::as_str)
}

/// Makes a member name its sandbox as runsc knows it.
pub(crate) fn point_at_sandbox(spec: &mut Value, sandbox: &str) {
    let Some(annotations) = spec.get_mut("annotations").and_then(Value::as_object_mut) else {
        return;
    };
    let id = thaw_runsc::id::to_runsc(sandbox);
    for name in SANDBOX_ID {
        if let Some(value) = annotations.get_mut(name) {
            *value = Value::from(id.as_ref());
        }
    }
}

/// Limits in bytes and microseconds; `None`: unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) memory: Option<u64>,
    /// Quota per [`CPU_PERIOD`].
    pub(crate) cpu_quota: Option<u64>,
    pub(crate) cpu_shares: Option<u64>,
}

impl Limits {
    /// Of an OCI `linux.resources` object.
    pub(crate) fn of(resources: &Value) -> Limits {
        let number = |pointer: &str| resources.pointer(pointer).and_then(Value::as_i64);
        let positive = |pointer: &str| {
            number(pointer)
                .and_then(|value| u64::try_from(value).ok())
                .filter(|value| *value > 0)
        };
        let period = positive("/cpu/period").unwrap_or(CPU_PERIOD);
        Limits {
            memory: positive("/memory/limit"),
            cpu_quota: positive("/cpu/quota").map(|quota| scale(quota, period).max(MIN_CPU_QUOTA)),
            cpu_shares: positive("/cpu/shares"),
        }
    }

    /// These, with what `changed` says instead: OCI updates leave out what stays.
    pub(crate) fn updated(self, changed: &Value) -> Limits {
        let new = Limits::of(changed);
        let given = |pointer: &str| {
            changed
                .pointer(pointer)
                .is_some_and(|v| v.as_i64() != Some(0))
        };
        Limits {
            memory: if given("/memory/limit") {
                new.memory
            } else {
                self.memory
            },
            cpu_quota: if given("/cpu/quota") {
                new.cpu_quota
            } else {
                self.cpu_quota
            },
            cpu_shares: if given("/cpu/shares") {
                new.cpu_shares
            } else {
                self.cpu_shares
            },
        }
    }
}

fn scale(quota: u64, period: u64) -> u64 {
    let scaled = u128::from(quota) * u128::from(CPU_PERIOD) / u128::from(period.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// What the sandbox of a pod is limited to: its own limit, and the sum of its members' once each of them has one.
/// `base_memory` is what the sandbox itself needed before any member came; it is not taken from their share.
pub(crate) fn sandbox_limits(own: Limits, base_memory: u64, members: &[Limits]) -> Limits {
    let sum = |of: fn(&Limits) -> Option<u64>| {
        let parts: Option<Vec<u64>> = members.iter().map(of).collect();
        parts.filter(|parts| !parts.is_empty()).map(|parts| {
            parts
                .iter()
                .fold(0u64, |sum, part| sum.saturating_add(*part))
        })
    };
    let lower = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    Limits {
        memory: lower(
            own.memory,
            sum(|limits| limits.memory).map(|sum| sum.saturating_add(base_memory)),
        ),
        cpu_quota: lower(own.cpu_quota, sum(|limits| limits.cpu_quota)),
        cpu_shares: own.cpu_shares,
    }
}

/// The score of a pod's sandbox: the lowest of its members', as gVisor does it (`runsc/container/container.go`,
/// adjustSandboxOOMScoreAdj), or the sandbox container's own while no member has one.
pub(crate) fn oom_score(
    own: Option<i64>,
    members: impl Iterator<Item = Option<i64>>,
) -> Option<i64> {
    members.flatten().min().or(own)
}

/// Writes the pod's resources from the annotations into the sandbox container's spec, where runsc applies them.
pub(crate) fn apply_pod_resources(spec: &mut Value) {
    let number = |name: &str| -> Option<i64> {
        spec.get("annotations")?
            .get(name)?
            .as_str()?
            .parse()
            .ok()
            .filter(|value| *value > 0)
    };
    let found = [
        ("memory", "limit", number(POD_MEMORY)),
        ("cpu", "quota", number(POD_CPU_QUOTA)),
        ("cpu", "period", number(POD_CPU_PERIOD)),
        ("cpu", "shares", number(POD_CPU_SHARES)),
    ];
    let Some(spec) = spec.as_object_mut() else {
        return;
    };
    for (group, name, value) in found {
        let Some(value) = value else {
            continue;
        };
        let Some(place) = object(spec, "linux")
            .and_then(|linux| object(linux, "resources"))
            .and_then(|resources| object(resources, group))
        else {
            return;
        };
        place.insert(name.to_owned(), value.into());
    }
}

fn object<'a>(
    parent: &'a mut Map<String, Value>,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    let child = parent
        .entry(name)
        .or_insert_with(|| Value::Object(Map::new()));
    if child.is_null() {
        *child = Value::Object(Map::new());
    }
    child.as_object_mut()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn both_plugins_annotations_are_understood() {
        assert_eq!(kind(&annotations(&[])), Ok(Kind::Plain));
        for (kind_name, id_name) in CONTAINER_TYPE.into_iter().zip(SANDBOX_ID) {
            assert_eq!(
                kind(&annotations(&[(kind_name, "sandbox"), (id_name, "p")])),
                Ok(Kind::Sandbox)
            );
            assert_eq!(
                kind(&annotations(&[(kind_name, "container"), (id_name, "p")])),
                Ok(Kind::Member("p".into()))
            );
            assert!(kind(&annotations(&[(kind_name, "container")])).is_err());
            assert!(kind(&annotations(&[(kind_name, "vm")])).is_err());
        }
    }

    #[test]
    fn a_member_names_its_sandbox_as_runsc_does() {
        let mut spec = json!({"annotations": {SANDBOX_ID[0]: "pod", "a": "b"}});
        point_at_sandbox(&mut spec, "pod");
        assert_eq!(
            spec,
            json!({"annotations": {SANDBOX_ID[0]: "pod+", "a": "b"}})
        );
    }

    #[test]
    fn limits_are_read_from_oci_resources() {
        let limits = Limits::of(&json!({
            "memory": {"limit": 1000}, "cpu": {"quota": 5000, "period": 10_000, "shares": 2}
        }));
        assert_eq!(
            limits,
            Limits {
                memory: Some(1000),
                cpu_quota: Some(50_000),
                cpu_shares: Some(2)
            }
        );
        assert_eq!(
            Limits::of(&json!({"memory": {"limit": -1}, "cpu": {"quota": 0}})),
            Limits::default()
        );
        let updated = limits.updated(&json!({"memory": {"limit": -1}, "cpu": {"quota": 0}}));
        assert_eq!(updated.memory, None);
        assert_eq!(updated.cpu_quota, limits.cpu_quota);
    }

    #[test]
    fn the_sandbox_is_limited_once_all_members_are() {
        let limited = |memory| Limits {
            memory: Some(memory),
            ..Limits::default()
        };
        let of = |own, members: &[Limits]| sandbox_limits(own, 7, members).memory;
        assert_eq!(of(Limits::default(), &[]), None);
        assert_eq!(of(Limits::default(), &[limited(10), limited(20)]), Some(37));
        assert_eq!(
            of(Limits::default(), &[limited(10), Limits::default()]),
            None
        );
        assert_eq!(of(limited(5), &[limited(10)]), Some(5));
        assert_eq!(of(limited(5), &[Limits::default()]), Some(5));
    }

    #[test]
    fn the_lowest_member_decides_over_the_score() {
        assert_eq!(oom_score(Some(-998), [].into_iter()), Some(-998));
        assert_eq!(
            oom_score(Some(-998), [Some(900), None, Some(100)].into_iter()),
            Some(100)
        );
        assert_eq!(oom_score(None, [None].into_iter()), None);
    }

    #[test]
    fn the_pods_resources_reach_the_spec() {
        let mut spec = json!({
            "annotations": {POD_MEMORY: "4096", POD_CPU_QUOTA: "20000", POD_CPU_PERIOD: "100000", POD_CPU_SHARES: "x"},
            "linux": {"resources": {"cpu": {"shares": 2}, "memory": null}}
        });
        apply_pod_resources(&mut spec);
        assert_eq!(
            spec["linux"]["resources"],
            json!({
                "cpu": {"shares": 2, "quota": 20_000, "period": 100_000}, "memory": {"limit": 4096}
            })
        );
        for mut odd in [
            json!(null),
            json!({"annotations": {POD_MEMORY: "1"}, "linux": 3}),
        ] {
            apply_pod_resources(&mut odd);
        }
    }
}
