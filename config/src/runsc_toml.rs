//! `runsc.toml`: the options file of gVisor's own shim, so that its users keep theirs (gVisor
//! `pkg/shim/v1/runsc/options.go`, <https://gvisor.dev/docs/user_guide/containerd/configuration/>).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::ConfigError;

/// The file's content. What is not set stays as `/etc/thaw/config.toml` has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunscToml {
    /// Cgroup that the shim joins.
    pub shim_cgroup: String,
    /// Owner of the pipes that a container gets as its streams.
    pub io_uid: u32,
    /// Group of these pipes.
    pub io_gid: u32,
    /// runsc; a bare name is looked up in PATH.
    pub binary_name: Option<PathBuf>,
    /// Directory of runsc's records; each containerd namespace has its own below it.
    pub root: Option<PathBuf>,
    /// `debug`, `info`, `warning`, ... for the shim's log.
    pub log_level: Option<String>,
    /// A file that gets the shim's log too; `%ID%` stands for the container's id, and a path that ends in `/` for a
    /// directory.
    pub log_path: Option<String>,
    /// All containers of a pod share one shim. Thaw always does that.
    pub grouping: bool,
    /// Starts gVisor's hibernate server. Thaw has its own ways to capture; only `false` is accepted.
    pub enable_hibernate_server: bool,
    /// Global flags of runsc, without dashes.
    pub runsc_config: BTreeMap<String, String>,
}

/// Keys of containerd's runtime section that it passes on together with the options.
const ENVELOPE: [&str; 3] = ["TypeUrl", "ConfigPath", "ConfigBody"];

impl RunscToml {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<RunscToml, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        RunscToml::parse(&text, path)
    }

    /// Reads a text that `origin` names in errors.
    pub fn parse(text: &str, origin: &Path) -> Result<RunscToml, ConfigError> {
        let parse = |message: String| ConfigError::Parse {
            path: origin.to_owned(),
            message,
        };
        let mut table: toml::Table = text
            .parse()
            .map_err(|e: toml::de::Error| parse(e.to_string()))?;
        for key in ENVELOPE {
            table.remove(key);
        }
        let options: RunscToml = table
            .try_into()
            .map_err(|e: toml::de::Error| parse(e.to_string()))?;
        let value = |key, message: String| ConfigError::Value {
            path: origin.to_owned(),
            key,
            message,
        };
        if options.enable_hibernate_server {
            return Err(value(
                "enable_hibernate_server",
                "there is none in Thaw, remove the line and use `thaw capture`".to_owned(),
            ));
        }
        if let Some(level) = &options.log_level
            && !LEVELS.contains(&level.to_lowercase().as_str())
        {
            return Err(value(
                "log_level",
                format!("{level:?} is none of {}", LEVELS.join(", ")),
            ));
        }
        Ok(options)
    }

    /// The log file for one container.
    pub fn log_file(&self, id: &str) -> Option<PathBuf> {
        let path = self.log_path.as_deref().filter(|path| !path.is_empty())?;
        let mut path = path.replace("%ID%", id);
        if path.ends_with('/') {
            path.push_str(&format!("runsc-shim-{id}.log"));
        }
        Some(path.into())
    }
}

/// What gVisor's shim accepts as a level.
const LEVELS: [&str; 8] = [
    "trace", "debug", "info", "warn", "warning", "error", "fatal", "panic",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RunscToml, String> {
        RunscToml::parse(text, Path::new("/etc/containerd/runsc.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn the_file_of_gvisors_documentation_is_understood() {
        let options = parse(
            r#"
            binary_name = "/usr/local/bin/runsc"
            log_path = "/var/log/runsc/%ID%/shim.log"
            log_level = "debug"
            grouping = true
            [runsc_config]
              debug = "true"
              debug-log = "/var/log/runsc/%ID%/gvisor.%COMMAND%.log"
            "#,
        )
        .unwrap();
        assert_eq!(options.binary_name, Some("/usr/local/bin/runsc".into()));
        assert_eq!(options.runsc_config["debug"], "true");
        assert_eq!(
            options.log_file("c1"),
            Some("/var/log/runsc/c1/shim.log".into())
        );
        let dir = parse("log_path = '/var/log/runsc/'").unwrap();
        assert_eq!(
            dir.log_file("c1"),
            Some("/var/log/runsc/runsc-shim-c1.log".into())
        );
        assert_eq!(parse("").unwrap(), RunscToml::default());
        assert_eq!(parse("TypeUrl = 'x'").unwrap(), RunscToml::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("binary_nam = 'x'", "binary_nam"),
            ("log_level = 'loud'", "log_level"),
            ("enable_hibernate_server = true", "enable_hibernate_server"),
            ("[runsc_config]\ndebug = true", "debug"),
            ("=", "runsc.toml"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{error}");
            assert!(error.contains("/etc/containerd/runsc.toml"), "{error}");
        }
    }
}
