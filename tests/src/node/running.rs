//! Starting, using and ending a test node.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio as ProcessStdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thaw_proto::StartRecord;

use super::container::{Container, Stdio};
use super::cri::{self, Cri};
use super::daemon::{self, Dialect};
use super::error::{NodeError, file_error};
use super::files::Files;
use super::leak::Leaks;
use super::mounts;
use super::procs::{self, Process};
use super::settings::Settings;
use crate::command::{self, CommandError, Output};
use crate::image::Image;
use crate::tools::{CriTools, Product, Tools};

/// Limit of `ctr` and `thaw` commands unless a test says otherwise.
const LIMIT: Duration = Duration::from_secs(60);
pub(super) const BOOT: Duration = Duration::from_secs(20);

/// How a node begins.
#[derive(Debug)]
pub struct NodeOptions {
    /// Thaw's binaries; none for a node that only runs other runtimes.
    pub product: Option<Product>,
    /// Real components.
    pub tools: Tools,
    /// Thaw's configuration beyond the directories.
    pub settings: Settings,
    /// For a node that serves the CRI.
    pub cri: Option<CriTools>,
}

impl NodeOptions {
    /// Test builds of Thaw with failpoints, installed components, default configuration.
    pub fn for_tests() -> Result<NodeOptions, NodeError> {
        Ok(NodeOptions {
            product: Some(Product::build()?),
            tools: Tools::find()?,
            settings: Settings::default(),
            cri: None,
        })
    }

    /// [`NodeOptions::for_tests`] of a node that serves the CRI, with Thaw as the runtime of its pods.
    pub fn for_pods() -> Result<NodeOptions, NodeError> {
        Ok(NodeOptions {
            cri: Some(CriTools::find()?),
            ..NodeOptions::for_tests()?
        })
    }
}

/// A running node. Dropping it kills its processes, unmounts what is mounted below its directory and removes it; with
/// `THAW_KEEP` set in the environment the directory stays.
#[derive(Debug)]
pub struct TestNode {
    files: Files,
    namespace: String,
    /// Topmost directory of its containers in every cgroup hierarchy.
    cgroup: String,
    settings: Settings,
    tools: Tools,
    pub(super) cri: Option<Cri>,
    containerd: Option<Child>,
    dir: Option<TempDir>,
}

impl TestNode {
    /// Starts containerd and waits until it answers.
    pub fn start(options: NodeOptions) -> Result<TestNode, NodeError> {
        // Unix socket paths below it must stay short, so it is not in TMPDIR.
        let dir = tempfile::Builder::new()
            .prefix("thaw-")
            .tempdir_in("/tmp")
            .map_err(|e| file_error("create a directory in", Path::new("/tmp"), e))?;
        let files = Files::new(dir.path());
        // cgroups and networks of the whole machine bear this name: it must be nobody else's.
        let unique = dir
            .path()
            .file_name()
            .map(|n| n.to_string_lossy().to_lowercase().replace('.', "-"))
            .unwrap_or_default();
        let mut settings = options.settings;
        settings
            .set("run_dir", files.thaw_run().display().to_string())
            .set("state_dir", files.thaw_state().display().to_string())
            .set(
                "runsc.path",
                files.bin().join("runsc").display().to_string(),
            );
        let cri = match options.cri {
            Some(tools) => {
                let scratch = files.scratch();
                fs::create_dir_all(&scratch).map_err(|e| file_error("create", &scratch, e))?;
                Some(Cri::lay_out(&files, tools, &unique)?)
            }
            None => None,
        };
        let mut node = TestNode {
            files,
            namespace: match cri {
                Some(_) => cri::NAMESPACE.to_owned(),
                // containerd names cgroups by the namespace.
                None => unique.clone(),
            },
            cgroup: unique,
            settings,
            tools: options.tools,
            cri,
            containerd: None,
            dir: Some(dir),
        };
        node.lay_out(options.product.as_ref())?;
        node.write_settings()?;
        node.boot()?;
        Ok(node)
    }

    fn lay_out(&self, product: Option<&Product>) -> Result<(), NodeError> {
        let files = &self.files;
        for dir in daemon::directories(files) {
            fs::create_dir_all(&dir).map_err(|e| file_error("create", &dir, e))?;
        }
        let mut binaries: Vec<PathBuf> = product.map(Product::paths).unwrap_or_default();
        binaries.extend([
            self.tools.runsc.clone(),
            self.tools.containerd.clone(),
            self.tools.ctr.clone(),
        ]);
        for binary in binaries {
            self.install(&binary)?;
        }
        self.write_containerd_config()
    }

    fn write_containerd_config(&self) -> Result<(), NodeError> {
        let dialect = Dialect::of(&self.tools.containerd)?;
        let text = daemon::config(&self.files, self.cri.as_ref().map(Cri::plugins), dialect);
        let path = self.files.containerd_config();
        fs::write(&path, text).map_err(|e| file_error("write", &path, e))
    }

    /// Puts another containerd in the place of this one, which is killed, and starts it on what the first one left.
    pub fn upgrade(&mut self, tools: Tools) -> Result<(), NodeError> {
        self.kill_containerd();
        for binary in [&tools.containerd, &tools.ctr] {
            self.install(binary)?;
        }
        self.tools = tools;
        self.write_containerd_config()?;
        self.boot()
    }

    /// Puts a binary into the node's own directory, by a hard link where possible.
    pub fn install(&self, binary: &Path) -> Result<PathBuf, NodeError> {
        let real = fs::canonicalize(binary).map_err(|e| file_error("find", binary, e))?;
        let to = self
            .files
            .bin()
            .join(binary.file_name().unwrap_or_default());
        let _ = fs::remove_file(&to);
        fs::hard_link(&real, &to)
            .or_else(|_| fs::copy(&real, &to).map(drop))
            .map_err(|e| file_error("install", &to, e))?;
        Ok(to)
    }

    /// Starts containerd. For use after [`TestNode::kill_containerd`] or [`TestNode::power_loss`].
    pub fn boot(&mut self) -> Result<(), NodeError> {
        let log = self.files.containerd_log();
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(|e| file_error("open", &log, e))?;
        let errors = file.try_clone().map_err(|e| file_error("open", &log, e))?;
        let mut command = Command::new(self.files.bin().join("containerd"));
        command
            .arg("--config")
            .arg(self.files.containerd_config())
            .stdin(ProcessStdio::null())
            .stdout(file)
            .stderr(errors);
        self.environment(&mut command);
        let child = match &self.cri {
            Some(cri) => cri.inside(|| command.spawn())?,
            None => command.spawn(),
        }
        .map_err(|source| CommandError::Run {
            command: "containerd".into(),
            source,
        })?;
        self.containerd = Some(child);
        let started = Instant::now();
        while started.elapsed() < BOOT {
            if self.files.socket().exists()
                && self
                    .ctr_limited(&["version"], Duration::from_secs(5))
                    .is_ok_and(|o| o.ok())
                && (self.cri.is_none() || self.crictl(&["version"]).is_ok_and(|o| o.ok()))
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(NodeError::Boot {
            log: tail(&log, 20),
        })
    }

    fn environment(&self, command: &mut Command) {
        let path = format!(
            "{}:{}",
            self.files.bin().display(),
            std::env::var("PATH").unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".into())
        );
        command
            .env("PATH", path)
            .env(thaw_config::CONFIG_ENV, self.files.thaw_config())
            .env("THAW_FAILPOINTS", self.files.failpoints())
            // What ctr says about the machine is no output of the container's.
            .env("CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS", "1")
            .env("CONTAINERD_ADDRESS", self.files.socket())
            .env("CONTAINERD_NAMESPACE", &self.namespace);
    }

    /// Where its files are.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Its containerd namespace, which is nobody else's but for a node that serves the CRI.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The directory in every cgroup hierarchy that all its containers are below. Pods must be put there by their
    /// `cgroup_parent`, which is `/` and this.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// Thaw's configuration; [`TestNode::write_settings`] makes changes count.
    pub fn settings(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// Writes Thaw's configuration file. Shims read it when they start, thawd when it starts.
    pub fn write_settings(&self) -> Result<(), NodeError> {
        self.write_config(&self.settings.text())
    }

    /// Writes any text as Thaw's configuration file.
    pub fn write_config(&self, text: &str) -> Result<(), NodeError> {
        let path = self.files.thaw_config();
        fs::write(&path, text).map_err(|e| file_error("write", &path, e))
    }

    /// Sets the failpoints in force, e.g. `[("shim.before-go", "200")]`; none: no delays.
    pub fn failpoints(&self, points: &[(&str, &str)]) -> Result<(), NodeError> {
        let text: String = points.iter().map(|(p, v)| format!("{p}={v}\n")).collect();
        let path = self.files.failpoints();
        let staged = path.with_extension("new");
        // Readers must never meet half a file.
        fs::write(&staged, text)
            .and_then(|()| fs::rename(&staged, &path))
            .map_err(|e| file_error("write", &path, e))
    }

    /// Runs `ctr` with these arguments to its end.
    pub fn ctr(&self, arguments: &[&str]) -> Result<Output, NodeError> {
        self.ctr_limited(arguments, LIMIT)
    }

    /// [`TestNode::ctr`] with another time limit.
    pub fn ctr_limited(&self, arguments: &[&str], limit: Duration) -> Result<Output, NodeError> {
        Ok(command::run(&mut self.ctr_command(arguments), limit)?)
    }

    /// `ctr` with these arguments, to be started by the caller.
    pub fn ctr_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.files.bin().join("ctr"));
        self.environment(&mut command);
        command.args(arguments);
        command
    }

    /// Runs `thaw` with these arguments to its end.
    pub fn thaw(&self, arguments: &[&str]) -> Result<Output, NodeError> {
        Ok(command::run(&mut self.thaw_command(arguments), LIMIT)?)
    }

    /// `thaw` with these arguments, to be started by the caller.
    pub fn thaw_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.files.bin().join("thaw"));
        self.environment(&mut command);
        command.args(arguments);
        command
    }

    /// Imports an image.
    pub fn import(&self, image: &Image) -> Result<(), NodeError> {
        let archive = self.files.scratch().join("image.tar");
        image.write(&archive)?;
        let limit = Duration::from_secs(300);
        let archive_name = archive.to_string_lossy();
        let mut line = vec!["image", "import"];
        // 2.x as 1.x does it, not through its transfer service.
        if Dialect::of(&self.tools.containerd)? == Dialect::Two {
            line.push("--local");
        }
        line.push(&archive_name);
        let result = self.ctr_limited(&line, limit);
        let _ = fs::remove_file(&archive);
        result?.success()?;
        Ok(())
    }

    /// Starts a container and leaves it running. The output's time is that until it was running.
    pub fn run(&self, container: &Container) -> Result<Output, NodeError> {
        let mut line: Vec<String> = vec!["run".into(), "--detach".into()];
        line.push(match &container.stdio {
            Stdio::Null => "--null-io".into(),
            Stdio::File(path) => format!("--log-uri=file://{}", path.display()),
        });
        line.extend(container.run_arguments());
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        self.ctr(&line)
    }

    /// Runs a container to its end, attached, and removes it. The output is the program's.
    pub fn run_attached(&self, container: &Container) -> Result<Output, NodeError> {
        let mut line: Vec<String> = vec!["run".into(), "--rm".into()];
        line.extend(container.run_arguments());
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        self.ctr(&line)
    }

    /// Runs a program in a container.
    pub fn exec(&self, id: &str, args: &[&str]) -> Result<Output, NodeError> {
        let exec_id = format!("exec-{}", unique());
        let mut line = vec!["task", "exec", "--exec-id", &exec_id, id];
        line.extend(args);
        self.ctr(&line)
    }

    /// State of a task as `ctr` names it, e.g. `RUNNING`, or none if there is no task.
    pub fn task_state(&self, id: &str) -> Result<Option<String>, NodeError> {
        let output = self.ctr(&["task", "list"])?.success()?;
        Ok(output
            .stdout
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|fields| fields.first() == Some(&id))
            .and_then(|fields| fields.last().map(|s| (*s).to_owned())))
    }

    /// Kills a container's processes and removes task and container. It need not be there.
    pub fn remove(&self, id: &str) -> Result<(), NodeError> {
        if self.task_state(id)?.is_some() {
            // A task that is being torn down anyway refuses both; what counts is that it is gone.
            let _ = self.ctr(&["task", "delete", "--force", id])?;
            self.until("the task is deleted", LIMIT, || {
                let state = self.task_state(id)?;
                if state.is_some() {
                    let _ = self.ctr(&["task", "delete", "--force", id])?;
                }
                Ok((state.is_none(), format!("{state:?}")))
            })?;
        }
        let exists = self
            .ctr(&["container", "list", "--quiet"])?
            .success()?
            .stdout
            .lines()
            .any(|line| line == id);
        if exists {
            self.ctr(&["container", "delete", id])?.success()?;
        }
        Ok(())
    }

    /// The record of a container's last start.
    pub fn record(&self, id: &str) -> Result<StartRecord, NodeError> {
        let path = self
            .files
            .bundles(&self.namespace)
            .join(id)
            .join(thaw_proto::record::RECORD_FILE);
        let text = fs::read(&path).map_err(|e| file_error("read", &path, e))?;
        serde_json::from_slice(&text).map_err(|e| NodeError::Record {
            path,
            message: e.to_string(),
        })
    }

    /// The record as soon as it satisfies `wanted`: reasons are refined after the start.
    pub fn record_when(
        &self,
        id: &str,
        what: &str,
        wanted: impl Fn(&StartRecord) -> bool,
    ) -> Result<StartRecord, NodeError> {
        let mut found = None;
        self.until(what, Duration::from_secs(5), || {
            let record = self.record(id);
            let seen = format!("{record:?}");
            found = record.ok().filter(&wanted);
            Ok((found.is_some(), seen))
        })?;
        match found {
            Some(record) => Ok(record),
            None => self.record(id),
        }
    }

    /// Polls until the answer's first part is true; the second says what was seen.
    pub fn until(
        &self,
        what: &str,
        limit: Duration,
        mut check: impl FnMut() -> Result<(bool, String), NodeError>,
    ) -> Result<(), NodeError> {
        let started = Instant::now();
        loop {
            let (done, seen) = check()?;
            if done {
                return Ok(());
            }
            if started.elapsed() > limit {
                return Err(NodeError::Late {
                    what: what.to_owned(),
                    limit,
                    seen,
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The node's processes.
    pub fn processes(&self) -> Vec<Process> {
        procs::below(self.files.top())
    }

    /// Kills containerd as a crash would. Shims live on.
    pub fn kill_containerd(&mut self) {
        if let Some(mut child) = self.containerd.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// What is left that should not be, once every container is removed.
    pub fn leaks(&self) -> Leaks {
        Leaks::find(&self.files, &self.namespace, &self.cgroup)
    }

    /// Ends all processes, unmounts everything and removes the directory; then says what was left in spite of that.
    pub fn end(mut self) -> Result<(), String> {
        self.tear_down();
        let top = self.files.top().to_owned();
        let mut left: Vec<String> = procs::below(&top)
            .iter()
            .map(|p| format!("process {} {}", p.pid, p.args.join(" ")))
            .collect();
        left.extend(
            mounts::below(&top)
                .iter()
                .map(|m| format!("mount {}", m.display())),
        );
        left.extend(
            super::leak::cgroups(&self.cgroup)
                .iter()
                .map(|c| format!("cgroup {}", c.display())),
        );
        if top.exists() && std::env::var_os("THAW_KEEP").is_none() {
            left.push(format!("directory {}", top.display()));
        }
        if left.is_empty() {
            Ok(())
        } else {
            Err(left.join("\n"))
        }
    }

    fn tear_down(&mut self) {
        self.kill_containerd();
        let started = Instant::now();
        // A process killed early may just have started another one.
        while started.elapsed() < Duration::from_secs(20) {
            let processes = self.processes();
            if processes.is_empty() {
                break;
            }
            processes.iter().for_each(Process::kill);
            std::thread::sleep(Duration::from_millis(20));
        }
        mounts::unmount_below(self.files.top());
        super::leak::remove_cgroups(&self.cgroup);
        if let Some(cri) = self.cri.take() {
            cri.forget_results();
        }
        if let Some(dir) = self.dir.take() {
            if std::env::var_os("THAW_KEEP").is_some() {
                eprintln!("kept {}", dir.keep().display());
            } else if let Err(e) = dir.close() {
                eprintln!("cannot remove {}: {e}", self.files.top().display());
            }
        }
    }

    /// Ends of all logs, for a failed test.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for path in [
            self.files.containerd_log(),
            self.files.thaw_run().join("thawd.log"),
        ] {
            text += &format!("--- {}\n{}\n", path.display(), tail(&path, 60));
        }
        text
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if std::thread::panicking() && self.dir.is_some() {
            eprintln!("{}", self.logs());
        }
        self.tear_down();
    }
}

fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // containerd names each plugin at its start, which says nothing.
    let all: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("loading plugin"))
        .collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
