//! Runtime options as containerd passes them: to `start`, and with each Create.

use std::path::Path;

use containerd_shim_protos::shim::oci::Options as RuncOptions;
use protobuf::Message;
use protobuf::well_known_types::any::Any;
use thaw_config::RunscToml;
use thaw_proto::v1::RuntimeOptions;

/// Names of the two messages that callers send.
const RUNC: &str = "containerd.runc.v1.Options";
const RUNTIME: &str = "runtimeoptions.v1.Options";

/// Whether a message is one that [`read`] understands.
pub(crate) fn known(any: &Any) -> bool {
    matches!(any.type_url.rsplit('/').next(), Some(RUNC | RUNTIME))
}

/// Reads options of either kind. Those of another kind, or that make no sense, are errors that name what is wrong.
pub(crate) fn read(any: &Any) -> Result<RunscToml, String> {
    let name = any.type_url.rsplit('/').next().unwrap_or_default();
    let damaged = |e: protobuf::Error| format!("runtime options of type {name} are damaged: {e}");
    match name {
        "" => Ok(RunscToml::default()),
        RUNTIME => {
            let options = RuntimeOptions::parse_from_bytes(&any.value).map_err(damaged)?;
            let read = if !options.config_path.is_empty() {
                RunscToml::load(Path::new(&options.config_path))
            } else {
                let text = String::from_utf8_lossy(&options.config_body);
                RunscToml::parse(
                    &text,
                    Path::new("runtime options in containerd's configuration"),
                )
            };
            read.map_err(|e| e.to_string())
        }
        RUNC => {
            let options = RuncOptions::parse_from_bytes(&any.value).map_err(damaged)?;
            let filled = |text: String| (!text.is_empty()).then(|| text.into());
            let mut flags = std::collections::BTreeMap::new();
            if options.systemd_cgroup {
                flags.insert("systemd-cgroup".to_owned(), "true".to_owned());
            }
            Ok(RunscToml {
                shim_cgroup: options.shim_cgroup,
                io_uid: options.io_uid,
                io_gid: options.io_gid,
                binary_name: filled(options.binary_name),
                root: filled(options.root),
                runsc_config: flags,
                ..RunscToml::default()
            })
        }
        other => Err(format!(
            "runtime options of type {other} are not understood, only {RUNTIME} and {RUNC}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publisher::pack;

    #[test]
    fn both_kinds_say_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runsc.toml");
        std::fs::write(
            &path,
            "binary_name = '/opt/runsc'\n[runsc_config]\nsystemd-cgroup = 'true'",
        )
        .unwrap();
        let file = RuntimeOptions {
            type_url: "io.containerd.runsc.v1.options".into(),
            config_path: path.display().to_string(),
            ..RuntimeOptions::default()
        };
        let inline = RuntimeOptions {
            config_body: std::fs::read(&path).unwrap(),
            ..RuntimeOptions::default()
        };
        let runc = RuncOptions {
            binary_name: "/opt/runsc".into(),
            systemd_cgroup: true,
            ..RuncOptions::default()
        };
        for any in [pack(&file), pack(&inline), pack(&runc)] {
            let read = read(&any).unwrap();
            assert_eq!(read.binary_name, Some("/opt/runsc".into()));
            assert_eq!(read.runsc_config["systemd-cgroup"], "true");
        }
        assert_eq!(read(&Any::default()), Ok(RunscToml::default()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let missing = RuntimeOptions {
            config_path: "/no/such/runsc.toml".into(),
            ..RuntimeOptions::default()
        };
        let unknown = RuntimeOptions {
            config_body: b"rot = 'x'".to_vec(),
            ..RuntimeOptions::default()
        };
        let foreign = Any {
            type_url: "type.googleapis.com/kata.Options".into(),
            ..Any::default()
        };
        let damaged = Any {
            value: vec![0xff],
            ..pack(&RuncOptions::default())
        };
        for (any, named) in [
            (pack(&missing), "/no/such/runsc.toml"),
            (pack(&unknown), "rot"),
            (foreign, "kata.Options"),
            (damaged, RUNC),
        ] {
            let error = read(&any).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
