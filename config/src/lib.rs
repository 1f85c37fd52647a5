//! `/etc/thaw/config.toml`: where things are, how long they may take, and which containers are to be restored.
//!
//! Every field has a default, so that Thaw works without a file; an unknown key is an error that names it.

mod runsc_toml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

pub use runsc_toml::RunscToml;

/// Where the file is unless [`CONFIG_ENV`] says otherwise.
pub const DEFAULT_PATH: &str = "/etc/thaw/config.toml";
/// Environment variable that names another file. containerd passes its environment on to shims.
pub const CONFIG_ENV: &str = "THAW_CONFIG";
/// Annotation by which a container asks to be restored: `auto`, `require` or `off`.
pub const SNAPSHOT_ANNOTATION: &str = "thaw.dev/snapshot";
/// Annotation that pins a snapshot by its id.
pub const RESTORE_FROM_ANNOTATION: &str = "thaw.dev/restore-from";

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file is there but cannot be read.
    #[error("cannot read configuration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong kind.
    #[error("configuration file {path} is not valid: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column, key and what was expected.
        message: String,
    },
    /// A value that is well-formed but makes no sense.
    #[error("configuration file {path}: {key}: {message}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Dotted key.
        key: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
}

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Sockets and records that need not survive a reboot.
    pub run_dir: PathBuf,
    /// Cache, spool and the default store.
    pub state_dir: PathBuf,
    /// The cluster part of every tenant id. Never shared between clusters that do not trust each other.
    pub cluster: Option<String>,
    /// Machine series: part of the key. Default: CPU vendor, family and model.
    pub machine_series: Option<String>,
    /// Where snapshots live.
    pub store: Store,
    /// The node's cache of decoded chunks.
    pub cache: Cache,
    /// Where a paused application's memory is put first.
    pub spool: Spool,
    /// runsc.
    pub runsc: Runsc,
    /// Time limits.
    pub deadlines: Deadlines,
    /// thawd.
    pub daemon: Daemon,
    /// First match decides; no match: only annotations select.
    #[serde(rename = "policy")]
    pub policies: Vec<Policy>,
}

/// Where snapshots live.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// `file:///dir`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`. Default: `<state_dir>/store`.
    pub url: Option<String>,
    /// Options of the back end as in object_store's configuration keys, e.g. `aws_endpoint`, `aws_region`,
    /// `aws_allow_http`. Credentials come from the environment, profile, workload identity or web identity as usual.
    pub options: BTreeMap<String, String>,
}

/// The node's cache of decoded chunks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Default: `<state_dir>/cache`.
    pub dir: Option<PathBuf>,
    /// Upper bound in bytes.
    pub max_bytes: u64,
}

/// Where a paused application's memory is put first.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spool {
    /// Default: `<state_dir>/spool`.
    pub dir: Option<PathBuf>,
    /// Bytes that must stay free on its file system.
    pub keep_free_bytes: u64,
}

/// runsc.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runsc {
    /// The binary; a bare name is looked up in PATH.
    pub path: PathBuf,
    /// The lander. Default: `thaw-gofer` beside the shim's own binary.
    pub lander: Option<PathBuf>,
    /// thawd, for starting it on demand. Default: `thawd` beside the shim's own binary.
    pub daemon: Option<PathBuf>,
    /// Global flags of runsc, without dashes: `platform = "systrap"`.
    pub flags: BTreeMap<String, String>,
}

/// Time limits, milliseconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deadlines {
    /// Look-up: later is `store-slow`.
    pub lookup_ms: u64,
    /// From the start of a trial until it is ready to run: later is `restore-timeout`.
    pub trial_ms: u64,
    /// Any runsc command but restore and checkpoint.
    pub runsc_ms: u64,
    /// A checkpoint, that is the pause of the application.
    pub checkpoint_ms: u64,
    /// Starting thawd on demand.
    pub daemon_start_ms: u64,
}

/// thawd.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// Ends by itself after this many seconds without lander, capture or call; 0: never.
    pub idle_exit_s: u64,
    /// Requests in flight to the store, all restores together.
    pub fetch_parallelism: usize,
    /// Log file of a thawd that was started on demand. Default: `<run_dir>/thawd.log`.
    pub log: Option<PathBuf>,
}

/// Whether a container is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Restore if possible, else start normally.
    Auto,
    /// Restore or fail.
    Require,
    /// Start normally.
    Off,
}

impl Mode {
    /// The annotation's value.
    pub fn parse(value: &str) -> Option<Mode> {
        match value {
            "auto" => Some(Mode::Auto),
            "require" => Some(Mode::Require),
            "off" => Some(Mode::Off),
            _ => None,
        }
    }
}

/// One rule: all given selectors must match.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// containerd namespace (plain containers) or Kubernetes namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Annotations that must be there with these values.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// What to do.
    pub mode: Mode,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            run_dir: "/run/thaw".into(),
            state_dir: "/var/lib/thaw".into(),
            cluster: None,
            machine_series: None,
            store: Store::default(),
            cache: Cache::default(),
            spool: Spool::default(),
            runsc: Runsc::default(),
            deadlines: Deadlines::default(),
            daemon: Daemon::default(),
            policies: Vec::new(),
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            dir: None,
            max_bytes: 20 << 30,
        }
    }
}

impl Default for Spool {
    fn default() -> Self {
        Spool {
            dir: None,
            keep_free_bytes: 1 << 30,
        }
    }
}

impl Default for Runsc {
    fn default() -> Self {
        Runsc {
            path: "runsc".into(),
            lander: None,
            daemon: None,
            flags: BTreeMap::new(),
        }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            lookup_ms: 1_000,
            trial_ms: 15_000,
            runsc_ms: 30_000,
            checkpoint_ms: 600_000,
            daemon_start_ms: 5_000,
        }
    }
}

impl Default for Daemon {
    fn default() -> Self {
        Daemon {
            idle_exit_s: 600,
            fetch_parallelism: 24,
            log: None,
        }
    }
}

const SCHEMES: &[&str] = &["file", "s3", "gs", "az"];

impl Config {
    /// The file named by [`CONFIG_ENV`], else [`DEFAULT_PATH`] if it exists, else the defaults. A file named by the
    /// variable must exist.
    pub fn load() -> Result<Config, ConfigError> {
        match std::env::var_os(CONFIG_ENV) {
            Some(path) => Config::from_file(Path::new(&path)),
            None => match Path::new(DEFAULT_PATH).try_exists() {
                Ok(false) => Ok(Config::default()),
                _ => Config::from_file(Path::new(DEFAULT_PATH)),
            },
        }
    }

    /// Reads and checks one file.
    pub fn from_file(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Config::from_text(&text, path)
    }

    /// Parses and checks text; `path` is for messages.
    pub fn from_text(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|e| ConfigError::Parse {
            path: path.to_owned(),
            message: e.to_string().trim_end().to_owned(),
        })?;
        config.check(path)?;
        Ok(config)
    }

    fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key, message: String| {
            Err(ConfigError::Value {
                path: path.to_owned(),
                key,
                message,
            })
        };
        for (key, dir) in [("run_dir", &self.run_dir), ("state_dir", &self.state_dir)] {
            if !dir.is_absolute() {
                return bad(key, format!("{} is not an absolute path", dir.display()));
            }
        }
        // Unix socket paths end at 107 bytes; the longest one that Thaw makes adds a 64-digit hash and a directory.
        if self.run_dir.as_os_str().len() > 34 {
            return bad(
                "run_dir",
                format!(
                    "{} is longer than 34 bytes, too long for socket paths below it",
                    self.run_dir.display()
                ),
            );
        }
        if let Some(url) = &self.store.url {
            match url::Url::parse(url) {
                Err(e) => return bad("store.url", format!("{url:?} is not a URL: {e}")),
                Ok(u) if !SCHEMES.contains(&u.scheme()) => {
                    return bad(
                        "store.url",
                        format!(
                            "scheme {:?} is not supported, use one of {}",
                            u.scheme(),
                            SCHEMES.join(", ")
                        ),
                    );
                }
                Ok(u) if u.scheme() == "file" && u.path().len() < 2 => {
                    return bad("store.url", "file:// needs an absolute directory".into());
                }
                Ok(u) if u.scheme() != "file" && u.host_str().unwrap_or("").is_empty() => {
                    return bad("store.url", format!("{url:?} names no bucket"));
                }
                Ok(_) => {}
            }
        }
        if self.daemon.fetch_parallelism == 0 {
            return bad("daemon.fetch_parallelism", "must be at least 1".into());
        }
        Ok(())
    }

    /// The store's URL with its default filled in.
    pub fn store_url(&self) -> String {
        self.store
            .url
            .clone()
            .unwrap_or_else(|| format!("file://{}/store", self.state_dir.display()))
    }

    /// The cache directory with its default filled in.
    pub fn cache_dir(&self) -> PathBuf {
        self.cache
            .dir
            .clone()
            .unwrap_or_else(|| self.state_dir.join("cache"))
    }

    /// The spool directory with its default filled in.
    pub fn spool_dir(&self) -> PathBuf {
        self.spool
            .dir
            .clone()
            .unwrap_or_else(|| self.state_dir.join("spool"))
    }

    /// thawd's ttrpc socket.
    pub fn node_socket(&self) -> PathBuf {
        self.run_dir.join("thawd.sock")
    }

    /// thawd's data socket.
    pub fn data_socket(&self) -> PathBuf {
        self.run_dir.join("data.sock")
    }

    /// The record by which `thaw` finds a container's shim.
    pub fn container_record(&self, namespace: &str, id: &str) -> PathBuf {
        self.run_dir
            .join("containers")
            .join(namespace)
            .join(format!("{id}.json"))
    }

    /// What is to be done with a container: its annotation if it has one, else the first matching policy, else off.
    ///
    /// An annotation with an unknown value is an error that names it, never silently off.
    pub fn mode(
        &self,
        namespace: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Mode, String> {
        if let Some(value) = annotations.get(SNAPSHOT_ANNOTATION) {
            return Mode::parse(value).ok_or_else(|| {
                format!(
                    "annotation {SNAPSHOT_ANNOTATION} is {value:?}, use one of auto, require, off"
                )
            });
        }
        Ok(self
            .policies
            .iter()
            .find(|p| {
                p.namespace.as_deref().is_none_or(|n| n == namespace)
                    && p.annotations
                        .iter()
                        .all(|(k, v)| annotations.get(k) == Some(v))
            })
            .map_or(Mode::Off, |p| p.mode))
    }
}

impl Deadlines {
    /// Look-up.
    pub fn lookup(&self) -> Duration {
        Duration::from_millis(self.lookup_ms)
    }
    /// Trial.
    pub fn trial(&self) -> Duration {
        Duration::from_millis(self.trial_ms)
    }
    /// Ordinary runsc commands.
    pub fn runsc(&self) -> Duration {
        Duration::from_millis(self.runsc_ms)
    }
    /// Checkpoint.
    pub fn checkpoint(&self) -> Duration {
        Duration::from_millis(self.checkpoint_ms)
    }
    /// Starting thawd.
    pub fn daemon_start(&self) -> Duration {
        Duration::from_millis(self.daemon_start_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::from_text(text, Path::new("test.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("").unwrap(), Config::default());
        assert_eq!(Config::default().store_url(), "file:///var/lib/thaw/store");
    }

    #[test]
    fn an_unknown_key_is_named() {
        for text in [
            "stor = 1",
            "[store]\nurll = 'x'",
            "[[policy]]\nmode = 'auto'\nnamspace = 'x'",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("unknown field"), "{error}");
            assert!(error.contains("test.toml"), "{error}");
        }
    }

    #[test]
    fn wrong_schemes_and_paths_are_refused() {
        let error = parse("[store]\nurl = 'ftp://x/y'").unwrap_err();
        assert!(error.contains("ftp") && error.contains("s3"), "{error}");
        assert!(parse("[store]\nurl = 'not a url'").is_err());
        assert!(parse("[store]\nurl = 's3://'").is_err());
        assert!(parse("run_dir = 'relative'").is_err());
        assert!(parse("run_dir = '/a/very/long/run/directory/that/does/not/fit'").is_err());
        assert!(parse("[store]\nurl = 's3://bucket/prefix'").is_ok());
    }

    #[test]
    fn annotation_beats_policy_beats_off() {
        let config =
            parse("[[policy]]\nnamespace = 'prod'\nmode = 'auto'\nannotations = { team = 'a' }")
                .unwrap();
        let team = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        assert_eq!(config.mode("prod", &team), Ok(Mode::Auto));
        assert_eq!(config.mode("prod", &BTreeMap::new()), Ok(Mode::Off));
        assert_eq!(config.mode("dev", &team), Ok(Mode::Off));
        let annotated = BTreeMap::from([(SNAPSHOT_ANNOTATION.to_owned(), "require".to_owned())]);
        assert_eq!(config.mode("dev", &annotated), Ok(Mode::Require));
        let wrong = BTreeMap::from([(SNAPSHOT_ANNOTATION.to_owned(), "yes".to_owned())]);
        assert!(config.mode("dev", &wrong).unwrap_err().contains("yes"));
    }
}
