//! Bundles, laid out as containerd lays them out.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use containerd_shim_protos::api::Mount;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

use super::error::{MockError, file};
use super::fifo::{self, Collector};
use super::place::{Mock, Root};
use super::spec::Spec;

/// The bundle of one container.
pub struct Bundle {
    id: String,
    path: PathBuf,
    work: PathBuf,
    root_mounts: Vec<Mount>,
    options: Option<Any>,
    terminal: bool,
    log: Collector,
}

impl Bundle {
    /// Writes everything that is there before a shim is started: the specification, an empty root, a work directory and
    /// the FIFO for the shim's log, which is read from now on.
    pub(super) fn write(
        mock: &Mock,
        id: &str,
        spec: &Spec,
        root: &Root,
    ) -> Result<Bundle, MockError> {
        let (path, work) = (mock.bundle_dir(id), mock.work_dir(id));
        for dir in [&path, &work] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o711)
                .create(dir)
                .map_err(file("create", dir))?;
        }
        let rootfs = path.join("rootfs");
        fs::create_dir(&rootfs).map_err(file("create", &rootfs))?;
        symlink(&work, path.join("work")).map_err(file("link", path.join("work")))?;
        let spec = mock.peer().adapt(spec.clone(), id);
        let config = path.join("config.json");
        fs::write(&config, spec.text(&mock.cgroup_of(id))).map_err(file("write", &config))?;
        mock.peer().prepare(mock, &path)?;
        let log = path.join("log");
        fifo::make(&log)?;
        Ok(Bundle {
            id: id.to_owned(),
            root_mounts: mock.root_mounts(id, root)?,
            options: mock.peer().options(mock),
            terminal: spec.has_terminal(),
            log: Collector::endless(mock.runtime(), &log)?,
            path,
            work,
        })
    }

    /// The container's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the root consists of, for `Create`.
    pub(super) fn root_mounts(&self) -> &[Mount] {
        &self.root_mounts
    }

    /// Runtime options, for `start` and `Create`.
    pub(super) fn options(&self) -> Option<&Any> {
        self.options.as_ref()
    }

    /// The specification asks for a terminal.
    pub(super) fn terminal(&self) -> bool {
        self.terminal
    }

    /// What the shim logged.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Removes the directories as containerd does after `delete`. What is still mounted there makes it fail.
    pub fn remove(&self) -> Result<(), MockError> {
        for dir in [
            self.path.join("rootfs"),
            self.path.clone(),
            self.work.clone(),
        ] {
            let removed = if dir.ends_with("rootfs") {
                fs::remove_dir(&dir)
            } else {
                fs::remove_dir_all(&dir)
            };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(file("remove", dir)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
