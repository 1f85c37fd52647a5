//! critest, against a containerd with CRI and a pod network of the world's own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::ginkgo;
use super::inside::{Desk, InsideError, setup};
use super::kit::CNI_PLUGINS;
use super::suite::Shim;
use crate::command;

const SOCKET: &str = "/run/containerd/containerd.sock";
/// containerd's for plugins.
const NRI: &str = "/var/run/nri/nri.sock";
/// A spec that hangs must not take more than its own time; the slowest one that passes takes a minute.
const CALL: &str = "90s";
const BOOT: Duration = Duration::from_secs(20);

pub(super) fn run(desk: &mut Desk) -> Result<(), InsideError> {
    configure(desk).map_err(setup("configure containerd"))?;
    let mut containerd = boot(desk)?;
    let report = desk.places.out().join("report.json");
    let mut command = desk.command("critest");
    command
        .current_dir(desk.places.tmp())
        .env("TEST_IMAGE_WITH_DIGEST", &desk.job.by_digest.critest)
        .arg(format!("-runtime-endpoint=unix://{SOCKET}"))
        .arg(format!("-runtime-handler={}", desk.job.shim.name()))
        .arg(format!("-runtime-service-timeout={CALL}"))
        .arg(format!("-nri-socket={NRI}"))
        // One order for all.
        .args(["-ginkgo.seed=1", "-ginkgo.no-color", "-ginkgo.timeout=30m"])
        .arg(format!("-ginkgo.json-report={}", report.display()));
    for test in &desk.job.tests {
        command.arg(format!("-ginkgo.focus={}", literal(test)));
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(desk.log("stderr.log")?)
        .spawn()
        .map_err(setup("start critest"))?;
    if let Some(stdout) = child.stdout.take() {
        follow(desk, stdout)?;
    }
    child.wait().map_err(setup("wait for critest"))?;
    let failed = |message: String| InsideError::Report {
        path: report.clone(),
        message,
    };
    let text = fs::read(&report).map_err(|e| failed(e.to_string()))?;
    for outcome in ginkgo::outcomes(&text).map_err(|e| failed(e.to_string()))? {
        desk.put(&outcome)?;
    }
    let _ = containerd.kill();
    let _ = containerd.wait();
    Ok(())
}

/// A regular expression that matches just this text.
fn literal(text: &str) -> String {
    let mut expression = String::new();
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            expression.push('\\');
        }
        expression.push(c);
    }
    expression
}

/// Keeps what critest prints, and shows how many specs are done.
fn follow(desk: &Desk, stdout: std::process::ChildStdout) -> Result<(), InsideError> {
    let mut log = desk.log("suite.log")?;
    let (mut done, mut failed, mut said) = (0, 0, 0);
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.map_err(setup("read critest's output"))?;
        let line = String::from_utf8_lossy(&line);
        std::io::Write::write_all(&mut log, format!("{line}\n").as_bytes())
            .map_err(setup("write the suite's log"))?;
        // A bullet per spec; those that need more words have a line of their own: "• [FAILED] [30.001 seconds]".
        done += line.matches('•').count();
        failed += usize::from(line.starts_with("• [FAILED]") || line.starts_with("• [TIMEDOUT]"));
        if done >= said + 10 {
            said = done;
            desk.say(&format!("{done} specs done, {failed} failed"));
        }
    }
    desk.say(&format!("{done} specs done, {failed} failed"));
    Ok(())
}

fn configure(desk: &Desk) -> std::io::Result<()> {
    let shim = desk.job.shim;
    let put = |path: &str, text: String| -> std::io::Result<()> {
        let path = Path::new(path);
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(path, text)
    };
    put(
        "/etc/containerd/config.toml",
        format!(
            r#"version = 3

[plugins."io.containerd.cri.v1.runtime"]
  # CAP_SYS_RESOURCE may be missing.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{CNI_PLUGINS}"]
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "{name}"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
      runtime_type = "{runtime}"
{options}

[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/etc/containerd/certs.d"
"#,
            name = shim.name(),
            runtime = shim.runtime(),
            options = match shim {
                // It reads its configuration only if it is told where it is.
                Shim::Gvisor => format!(
                    r#"      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{}.options]
        TypeUrl = "io.containerd.runsc.v1.options"
        ConfigPath = "/etc/containerd/runsc/config.toml""#,
                    shim.name()
                ),
                Shim::Runc | Shim::Thaw => String::new(),
            },
        ),
    )?;
    put(
        "/etc/containerd/certs.d/_default/hosts.toml",
        format!(
            "server = \"http://{0}\"\n[host.\"http://{0}\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
            desk.registry
        ),
    )?;
    put(
        "/etc/cni/net.d/10-pods.conflist",
        r#"{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "promiscMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "10.88.0.0/16" }]],
        "routes": [{ "dst": "0.0.0.0/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
"#
        .to_owned(),
    )
}

fn boot(desk: &Desk) -> Result<Child, InsideError> {
    let log = desk.log("containerd.log")?;
    let child = desk
        .command("containerd")
        .args(["--log-level", "debug"])
        .stdout(log.try_clone().map_err(setup("open containerd's log"))?)
        .stderr(log)
        .spawn()
        .map_err(setup("start containerd"))?;
    let started = Instant::now();
    loop {
        let answer = command::run(
            desk.command("ctr").args(["plugins", "list", "id==cri"]),
            Duration::from_secs(5),
        );
        if answer.is_ok_and(|output| output.ok()) {
            return Ok(child);
        }
        if started.elapsed() > BOOT {
            let late =
                std::io::Error::other(format!("it does not answer within {} s", BOOT.as_secs()));
            return Err(setup("start containerd")(late));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
