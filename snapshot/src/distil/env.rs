//! Which environment variables differ between any two pods of one template.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::KeyEnv;

/// Names that the downward API is customarily read into, after [`PREFIXES`].
const POD_NAMES: &[&str] = &[
    "HOST_IP",
    "HOST_IPS",
    "NODE_IP",
    "NODE_NAME",
    "POD_IP",
    "POD_IPS",
    "POD_NAME",
    "POD_UID",
];
const PREFIXES: &[&str] = &["", "MY_", "K8S_", "KUBE_", "KUBERNETES_"];
const PROTOCOLS: &[&str] = &["TCP", "UDP", "SCTP"];

/// Whether the variable names this pod or node, or is one of the variables that kubelet adds for every service.
///
/// Service variables are told by their whole shape, not by `_PORT` or `_SERVICE_` in the name alone: `APP_PORT=8080` is
/// what a program was told to do, and a restored program would not do it.
pub fn always_differs(name: &str, value: &str, env: &BTreeMap<&str, Vec<&str>>) -> bool {
    names_the_pod(name) || is_service_link(name, value, env)
}

fn names_the_pod(name: &str) -> bool {
    name == "HOSTNAME"
        || PREFIXES.iter().any(|prefix| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| POD_NAMES.contains(&rest))
        })
}

/// `X_SERVICE_HOST`, `X_SERVICE_PORT[_NAME]`, `X_PORT` with a URL, `X_PORT_<n>_<PROTOCOL>[_PROTO|_PORT|_ADDR]`
/// (Kubernetes `pkg/kubelet/envvars`).
fn is_service_link(name: &str, value: &str, env: &BTreeMap<&str, Vec<&str>>) -> bool {
    let is_service = |service: &str| {
        env.get(format!("{service}_SERVICE_HOST").as_str())
            .is_some_and(|values| values.iter().all(|v| v.parse::<IpAddr>().is_ok()))
    };
    if let Some(service) = name.strip_suffix("_SERVICE_HOST") {
        return is_service(service);
    }
    if let Some((service, port)) = name.rsplit_once("_SERVICE_PORT") {
        return is_service(service)
            && (port.is_empty() || port.starts_with('_'))
            && value.parse::<u16>().is_ok();
    }
    if name.ends_with("_PORT") && is_url(value) {
        return true;
    }
    let Some((_, rest)) = name.split_once("_PORT_") else {
        return false;
    };
    let mut parts = rest.split('_');
    let number = parts.next().is_some_and(|n| n.parse::<u16>().is_ok());
    let protocol = parts.next().is_some_and(|p| PROTOCOLS.contains(&p));
    let detail = parts
        .next()
        .is_none_or(|d| ["PROTO", "PORT", "ADDR"].contains(&d));
    number && protocol && detail && parts.next().is_none()
}

fn is_url(value: &str) -> bool {
    value
        .split_once("://")
        .is_some_and(|(scheme, _)| PROTOCOLS.iter().any(|p| p.eq_ignore_ascii_case(scheme)))
}

/// The variables that belong to the key: name to value. A name that is given more than once has all its values.
pub(super) fn compared<'a>(
    entries: impl Iterator<Item = &'a str>,
    key_env: &KeyEnv,
) -> BTreeMap<&'a str, String> {
    let mut env: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in entries {
        let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
        env.entry(name).or_default().push(value);
    }
    let listed: Option<&BTreeSet<String>> = match key_env {
        KeyEnv::All => None,
        KeyEnv::None => return BTreeMap::new(),
        KeyEnv::Only(names) => Some(names),
    };
    env.iter()
        .filter(|(name, values)| match listed {
            Some(names) => names.contains(**name),
            None => !values.iter().all(|value| always_differs(name, value, &env)),
        })
        // No value can hold a NUL, so the joined text is unambiguous.
        .map(|(name, values)| (*name, values.join("\0")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(entries: &[&'static str]) -> Vec<&'static str> {
        compared(entries.iter().copied(), &KeyEnv::All)
            .into_keys()
            .collect()
    }

    #[test]
    fn pod_and_service_variables_are_left_out() {
        assert!(
            kept(&[
                "HOSTNAME=a",
                "POD_NAME=a",
                "MY_POD_IP=10.0.0.1",
                "NODE_NAME=n",
                "K8S_POD_UID=u",
                "KUBERNETES_SERVICE_HOST=10.96.0.1",
                "KUBERNETES_SERVICE_PORT=443",
                "KUBERNETES_SERVICE_PORT_HTTPS=443",
                "KUBERNETES_PORT=tcp://10.96.0.1:443",
                "KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443",
                "KUBERNETES_PORT_443_TCP_PROTO=tcp",
                "KUBERNETES_PORT_443_TCP_PORT=443",
                "KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1",
            ])
            .is_empty()
        );
    }

    #[test]
    fn what_a_program_is_told_to_do_is_kept() {
        let told = [
            "APP_PORT=8080",
            "DB_SERVICE_HOST=db.example",
            "DB_SERVICE_PORT=5432",
            "POD_NAMESPACE=ns",
            "PORT=80",
            "X_PORT_FORWARD=1",
        ];
        let names: Vec<&str> = told.iter().map(|t| t.split_once('=').unwrap().0).collect();
        assert_eq!(kept(&told), names);
    }

    #[test]
    fn a_list_decides_alone() {
        let only = KeyEnv::parse(" A, HOSTNAME ").unwrap();
        let env = compared(["A=1", "B=2", "HOSTNAME=h"].into_iter(), &only);
        assert_eq!(env.into_keys().collect::<Vec<_>>(), ["A", "HOSTNAME"]);
        assert!(compared(["A=1"].into_iter(), &KeyEnv::None).is_empty());
        assert_eq!(KeyEnv::parse("A,,B"), None);
    }

    #[test]
    fn a_repeated_name_keeps_all_its_values() {
        let env = |e: [&'static str; 2]| compared(e.into_iter(), &KeyEnv::All);
        assert_ne!(env(["A=1", "A=2"]), env(["A=2", "A=1"]));
    }
}
