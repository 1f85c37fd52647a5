//! What every command needs: the configuration, thawd, and the names that the user gave.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use protobuf::MessageField;
use thaw_config::{CONFIG_ENV, Config, DEFAULT_PATH};
use thaw_proto::client::{Launch, NodeClient, ensure_node};
use thaw_proto::v1;
use thaw_runsc::Runsc;

use crate::args::Args;

/// thawd answers from the store, which may be slow.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(60);

/// See the module.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) json: bool,
    pub(crate) namespace: String,
    address: PathBuf,
    config_file: Option<PathBuf>,
}

impl Context {
    pub(crate) fn new(args: &Args) -> anyhow::Result<Context> {
        check_name("namespace", &args.namespace)?;
        Ok(Context::with_config(args, load_config(args)?))
    }

    pub(crate) fn with_config(args: &Args, config: Config) -> Context {
        Context {
            config,
            json: args.json,
            namespace: args.namespace.clone(),
            address: args.address.clone(),
            config_file: args.config.clone(),
        }
    }

    /// thawd, started if need be.
    pub(crate) async fn node(&self) -> anyhow::Result<NodeClient> {
        let launch = Launch {
            socket: self.config.node_socket(),
            daemon: self.daemon(),
            config: self.config_file.clone(),
            log: self
                .config
                .daemon
                .log
                .clone()
                .unwrap_or_else(|| self.config.run_dir.join("thawd.log")),
            limit: self.config.deadlines.daemon_start(),
        };
        Ok(ensure_node(&launch).await?)
    }

    pub(crate) fn daemon(&self) -> PathBuf {
        self.config
            .runsc
            .daemon
            .clone()
            .unwrap_or_else(|| beside("thawd"))
    }

    pub(crate) fn lander(&self) -> PathBuf {
        self.config
            .runsc
            .lander
            .clone()
            .unwrap_or_else(|| beside("thaw-gofer"))
    }

    /// runsc as the shims run it.
    pub(crate) fn runsc(&self) -> Runsc {
        let root = self.config.run_dir.join("runsc").join(&self.namespace);
        Runsc::new(&self.config.runsc.path, root).with_flags(&self.config.runsc.flags)
    }

    pub(crate) fn container(&self, id: &str) -> MessageField<v1::ContainerRef> {
        MessageField::some(v1::ContainerRef {
            containerd_address: self.address.display().to_string(),
            containerd_namespace: self.namespace.clone(),
            id: id.to_owned(),
            ..Default::default()
        })
    }

    pub(crate) fn containerd_socket(&self) -> &Path {
        &self.address
    }
}

/// The configuration that the shims and thawd use, if they were started with the same environment.
pub(crate) fn load_config(args: &Args) -> anyhow::Result<Config> {
    match &args.config {
        Some(path) => Ok(Config::from_file(path)?),
        None => Config::load().with_context(|| {
            format!("set {CONFIG_ENV} or repair {DEFAULT_PATH}; `thaw doctor` checks it")
        }),
    }
}

/// A program of Thaw's beside this one; a bare name, for PATH, if this one's place is not known.
pub(crate) fn beside(name: &str) -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join(name)))
        .unwrap_or_else(|| name.into())
}

/// Ids and namespaces become parts of paths.
pub(crate) fn check_name(what: &str, name: &str) -> anyhow::Result<()> {
    let fine = !name.is_empty()
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if !fine {
        bail!("{name:?} is not a {what}: letters, digits, '-', '_' and '.' are allowed");
    }
    Ok(())
}

/// The sentence in an answer's status, which is written for people.
pub(crate) fn said(error: ttrpc::Error) -> anyhow::Error {
    match error {
        ttrpc::Error::RpcStatus(status) => anyhow::anyhow!("{}", status.message()),
        other => anyhow::anyhow!("{other}"),
    }
}

pub(crate) fn within(limit: Duration) -> ttrpc::context::Context {
    ttrpc::context::with_duration(limit)
}
