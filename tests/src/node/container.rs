//! What a test says about a container that it wants.

use std::path::{Path, PathBuf};

/// A container to be made by `ctr run`.
#[derive(Debug, Clone)]
pub struct Container {
    /// containerd's id.
    pub id: String,
    /// Name of an imported image.
    pub image: String,
    /// Arguments; empty: the image's.
    pub args: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// Annotations of the OCI spec.
    pub annotations: Vec<(String, String)>,
    /// Network.
    pub network: Network,
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Standard output and error.
    pub stdio: Stdio,
    /// containerd's name of the runtime.
    pub runtime: String,
    /// Further flags of `ctr run`.
    pub flags: Vec<String>,
}

/// Which network namespace it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// A new one with nothing but loopback.
    Private,
    /// The one that this file names.
    Joined(PathBuf),
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Directory of this machine.
    pub source: PathBuf,
    /// Place in the container.
    pub destination: String,
}

/// Where output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stdio {
    /// Nowhere.
    Null,
    /// Appended to a file.
    File(PathBuf),
}

impl Container {
    /// Thaw's runtime name.
    pub const RUNTIME: &'static str = "io.containerd.thaw.v1";

    /// A container of Thaw's runtime that nothing selects for restoring.
    pub fn new(id: &str, image: &str) -> Container {
        Container {
            id: id.to_owned(),
            image: image.to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            annotations: Vec::new(),
            network: Network::Private,
            mounts: Vec::new(),
            stdio: Stdio::Null,
            runtime: Container::RUNTIME.to_owned(),
            flags: Vec::new(),
        }
    }

    /// Other arguments than the image's.
    pub fn args(mut self, args: &[&str]) -> Container {
        self.args = args.iter().map(|s| (*s).to_owned()).collect();
        self
    }

    /// One more variable, `NAME=value`.
    pub fn env(mut self, variable: &str) -> Container {
        self.env.push(variable.to_owned());
        self
    }

    /// One more annotation.
    pub fn annotation(mut self, name: &str, value: &str) -> Container {
        self.annotations.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `thaw.dev/snapshot`: `auto`, `require` or `off`.
    pub fn snapshot(self, mode: &str) -> Container {
        self.annotation(thaw_config::SNAPSHOT_ANNOTATION, mode)
    }

    /// Joins a network namespace.
    pub fn join(mut self, namespace: &Path) -> Container {
        self.network = Network::Joined(namespace.to_owned());
        self
    }

    /// One more bind mount.
    pub fn mount(mut self, source: &Path, destination: &str) -> Container {
        self.mounts.push(Mount {
            source: source.to_owned(),
            destination: destination.to_owned(),
        });
        self
    }

    /// Keeps the output.
    pub fn log(mut self, file: &Path) -> Container {
        self.stdio = Stdio::File(file.to_owned());
        self
    }

    /// One more flag of `ctr run`.
    pub fn flag(mut self, flag: &str) -> Container {
        self.flags.push(flag.to_owned());
        self
    }

    /// Arguments of `ctr` after `run`, without those that say how to attach.
    pub fn run_arguments(&self) -> Vec<String> {
        let mut line = vec![format!("--runtime={}", self.runtime)];
        for variable in &self.env {
            line.push(format!("--env={variable}"));
        }
        for (name, value) in &self.annotations {
            line.push(format!("--annotation={name}={value}"));
        }
        if let Network::Joined(path) = &self.network {
            line.push(format!("--with-ns=network:{}", path.display()));
        }
        for mount in &self.mounts {
            line.push(format!(
                "--mount=type=bind,src={},dst={},options=rbind:rw",
                mount.source.display(),
                mount.destination
            ));
        }
        line.extend(self.flags.iter().cloned());
        line.extend([self.image.clone(), self.id.clone()]);
        line.extend(self.args.iter().cloned());
        line
    }
}
