//! What containerd passes to `start`, in its dialects.
//!
//! containerd 2.3 and later write a `BootstrapParams` message to standard input. Older ones pass flags and environment
//! variables, and runtime options, if any, as a protobuf `Any` on standard input.

use std::io::{IsTerminal, Read};

use containerd_shim::Flags;
use containerd_shim_protos::bootstrap_api::BootstrapParams;
use protobuf::Message;
use protobuf::well_known_types::any::Any;

use super::{BootstrapError, io};
use crate::options;

/// containerd's own bound.
const MAX_INPUT: u64 = 10 << 20;

/// Which answer the caller understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// A `BootstrapResult` message.
    Message,
    /// JSON or a bare address, see [`super::reply`].
    Old,
}

/// The parameters of one `start`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartParams {
    pub(super) dialect: Dialect,
    /// containerd's event socket; empty: there is none.
    pub(super) ttrpc_address: String,
    /// containerd's gRPC socket.
    pub(super) grpc_address: String,
    /// containerd's binary.
    pub(super) containerd: String,
    pub(super) debug: bool,
    /// Where the socket shall be, if containerd says so.
    pub(super) socket_dir: Option<String>,
    /// Cgroup that the shim shall join.
    pub(super) shim_cgroup: String,
}

/// Environment that the old dialects use.
#[derive(Debug, Default)]
pub(super) struct Environment {
    pub(super) ttrpc_address: String,
    pub(super) grpc_address: String,
}

impl Environment {
    pub(super) fn of_process() -> Environment {
        let get = |name| std::env::var(name).unwrap_or_default();
        Environment {
            ttrpc_address: get("TTRPC_ADDRESS"),
            grpc_address: get("GRPC_ADDRESS"),
        }
    }
}

/// Reads standard input to its end, unless it is a terminal.
pub(super) fn read_input() -> Result<Vec<u8>, BootstrapError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(Vec::new());
    }
    let mut input = Vec::new();
    stdin
        .lock()
        .take(MAX_INPUT)
        .read_to_end(&mut input)
        .map_err(io("read start parameters from standard input"))?;
    Ok(input)
}

/// Understands either dialect.
pub(super) fn parse(
    input: &[u8],
    flags: &Flags,
    environment: Environment,
) -> Result<StartParams, BootstrapError> {
    if let Some(params) = message(input, flags)? {
        let extensions = params.extensions.iter();
        let shim_cgroup = shim_cgroup(extensions.filter_map(|e| e.value.as_ref()))?;
        return Ok(StartParams {
            dialect: Dialect::Message,
            ttrpc_address: params.containerd_ttrpc_address,
            grpc_address: params.containerd_grpc_address,
            containerd: params.containerd_binary,
            // The enum is open and counts downwards: -4 is debug.
            debug: flags.debug || params.log_level.value() <= -4,
            socket_dir: params.socket_dir.filter(|dir| !dir.is_empty()),
            shim_cgroup,
        });
    }
    let options = Any::parse_from_bytes(input).ok();
    let shim_cgroup = shim_cgroup(options.iter())?;
    Ok(StartParams {
        dialect: Dialect::Old,
        ttrpc_address: environment.ttrpc_address,
        grpc_address: if flags.address.is_empty() {
            environment.grpc_address
        } else {
            flags.address.clone()
        },
        containerd: flags.publish_binary.clone(),
        debug: flags.debug,
        socket_dir: None,
        shim_cgroup,
    })
}

fn message(input: &[u8], flags: &Flags) -> Result<Option<BootstrapParams>, BootstrapError> {
    if input.is_empty() {
        return Ok(None);
    }
    let Ok(params) = BootstrapParams::parse_from_bytes(input) else {
        return Ok(None);
    };
    if params.instance_id == flags.id && params.namespace == flags.namespace {
        return Ok(Some(params));
    }
    // An `Any` has its two fields under the same numbers as this message's first two, so it parses as one that has
    // nothing else.
    let any_in_disguise = BootstrapParams {
        instance_id: params.instance_id.clone(),
        namespace: params.namespace.clone(),
        ..BootstrapParams::default()
    };
    if params == any_in_disguise {
        return Ok(None);
    }
    Err(BootstrapError::Arguments(format!(
        "start parameters are for {}/{}, the command line says {}/{}",
        params.namespace, params.instance_id, flags.namespace, flags.id
    )))
}

/// Of the first that are runtime options; other extensions are not for this shim.
fn shim_cgroup<'a>(anys: impl Iterator<Item = &'a Any>) -> Result<String, BootstrapError> {
    let options = anys
        .filter(|any| options::known(any))
        .map(options::read)
        .next();
    match options {
        Some(options) => options
            .map(|options| options.shim_cgroup)
            .map_err(BootstrapError::Arguments),
        None => Ok(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use containerd_shim_protos::bootstrap_api::{Extension, LogLevel};
    use containerd_shim_protos::shim::oci::Options;
    use protobuf::EnumOrUnknown;

    use super::*;

    fn flags() -> Flags {
        Flags {
            id: "c1".into(),
            namespace: "default".into(),
            address: "/run/containerd/containerd.sock".into(),
            publish_binary: "/usr/bin/containerd".into(),
            ..Flags::default()
        }
    }

    fn environment() -> Environment {
        Environment {
            ttrpc_address: "/run/containerd/containerd.sock.ttrpc".into(),
            grpc_address: "/env/containerd.sock".into(),
        }
    }

    fn options_any(cgroup: &str) -> Any {
        let options = Options {
            shim_cgroup: cgroup.into(),
            ..Options::default()
        };
        crate::publisher::pack(&options)
    }

    #[test]
    fn the_new_dialect_is_taken_from_standard_input() {
        let params = BootstrapParams {
            instance_id: "c1".into(),
            namespace: "default".into(),
            log_level: EnumOrUnknown::new(LogLevel::LOG_LEVEL_DEBUG),
            containerd_ttrpc_address: "/t".into(),
            containerd_grpc_address: "/g".into(),
            containerd_binary: "/c".into(),
            socket_dir: Some("/s".into()),
            extensions: vec![Extension {
                value: Some(options_any("/shims")).into(),
                ..Extension::default()
            }],
            ..BootstrapParams::default()
        };
        let parsed = parse(&params.write_to_bytes().unwrap(), &flags(), environment()).unwrap();
        assert_eq!(
            parsed,
            StartParams {
                dialect: Dialect::Message,
                ttrpc_address: "/t".into(),
                grpc_address: "/g".into(),
                containerd: "/c".into(),
                debug: true,
                socket_dir: Some("/s".into()),
                shim_cgroup: "/shims".into(),
            }
        );
    }

    #[test]
    fn nothing_or_options_on_standard_input_is_the_old_dialect() {
        let options = options_any("/shims").write_to_bytes().unwrap();
        let empty_options = options_any("").write_to_bytes().unwrap();
        for (input, cgroup) in [
            (&[][..], ""),
            (&options[..], "/shims"),
            (&empty_options[..], ""),
            (&[0xff, 0xfe, 1][..], ""),
        ] {
            let parsed = parse(input, &flags(), environment()).unwrap();
            assert_eq!(parsed.dialect, Dialect::Old);
            assert_eq!(parsed.shim_cgroup, cgroup);
            assert_eq!(parsed.grpc_address, "/run/containerd/containerd.sock");
            assert_eq!(
                parsed.ttrpc_address,
                "/run/containerd/containerd.sock.ttrpc"
            );
        }
    }

    #[test]
    fn an_empty_event_address_is_allowed() {
        let parsed = parse(&[], &flags(), Environment::default()).unwrap();
        assert_eq!(parsed.ttrpc_address, "");
    }

    #[test]
    fn parameters_for_another_container_are_refused() {
        let params = BootstrapParams {
            instance_id: "c2".into(),
            namespace: "default".into(),
            containerd_binary: "/c".into(),
            ..BootstrapParams::default()
        };
        assert!(parse(&params.write_to_bytes().unwrap(), &flags(), environment()).is_err());
    }
}
