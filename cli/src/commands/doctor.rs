//! `thaw doctor`: one line per check, with what to do.

mod containerd;
mod disk;
mod host;

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use thaw_config::Config;
use thaw_proto::v1;
use thaw_runsc::TokioSpawner;
use thaw_runsc::probe::RuntimeProbe;
use thaw_runsc::sidecar::SidecarDir;

use crate::args::{self, Args};
use crate::context::{CALL_LIMIT, Context, load_config, said, within};
use crate::output;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Status {
    Ok,
    Warn,
    Fail,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    /// What was found; for a warning or failure also what to do.
    detail: String,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Check {
        Check::new(name, Status::Ok, detail)
    }

    fn warn(name: &'static str, detail: impl Into<String>) -> Check {
        Check::new(name, Status::Warn, detail)
    }

    fn fail(name: &'static str, detail: impl Into<String>) -> Check {
        Check::new(name, Status::Fail, detail)
    }

    fn new(name: &'static str, status: Status, detail: impl Into<String>) -> Check {
        Check {
            name,
            status,
            detail: detail.into(),
        }
    }
}

pub(crate) async fn run(args: &Args, doctor: &args::Doctor) -> anyhow::Result<ExitCode> {
    let mut report = Report {
        json: args.json,
        checks: Vec::new(),
    };
    report.add(host::user())?;
    let config = match load_config(args) {
        Ok(config) => {
            report.add(Check::ok("configuration", source(args)))?;
            config
        }
        Err(e) => {
            report.add(Check::fail("configuration", output::sentence(&e)))?;
            // What does not depend on it is still worth knowing.
            Config::default()
        }
    };
    let context = Context::with_config(args, config);
    runsc(&context, &mut report).await?;
    node(&context, &mut report).await?;
    report.add(containerd::shim_in_path())?;
    report.add(containerd::annotations(&doctor.containerd_config))?;
    report.add(disk::cache(&context.config))?;
    report.add(disk::spool(&context.config))?;
    report.add(host::oom_score())?;
    report.add(host::cgroups())?;
    report.finish()
}

fn source(args: &Args) -> String {
    match &args.config {
        Some(path) => path.display().to_string(),
        None if std::path::Path::new(thaw_config::DEFAULT_PATH).exists() => {
            thaw_config::DEFAULT_PATH.into()
        }
        None => format!("no file at {}, defaults", thaw_config::DEFAULT_PATH),
    }
}

async fn runsc(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let runsc = context.runsc();
    let run_dir = &context.config.run_dir;
    let probe = match RuntimeProbe::of(&runsc, &TokioSpawner, run_dir).await {
        Ok(probe) => probe,
        Err(e) => {
            report.add(Check::fail("runsc", e.to_string()))?;
            return Ok(());
        }
    };
    report.add(Check::ok(
        "runsc",
        format!(
            "{} ({}, {} CPU features)",
            probe.path.display(),
            probe.version,
            probe.cpu_features.len()
        ),
    ))?;
    report.add(
        match SidecarDir::prepare(run_dir, &probe.path, &context.lander()) {
            Ok(sidecar) => Check::ok(
                "lander",
                format!("runsc starts {}", sidecar.lander().display()),
            ),
            Err(e) => Check::fail("lander", e.to_string()),
        },
    )
}

/// thawd, and through it the store and containerd.
async fn node(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let client = match context.node().await {
        Ok(client) => client,
        Err(e) => {
            report.add(Check::fail("thawd", output::sentence(&e)))?;
            return report.add(containerd::socket(context.containerd_socket()));
        }
    };
    let request = v1::StatusRequest {
        probe_store: true,
        ..Default::default()
    };
    match client.status(within(CALL_LIMIT), &request).await {
        Err(e) => report.add(Check::fail(
            "thawd",
            format!("does not answer: {}", said(e)),
        ))?,
        Ok(status) => {
            report.add(daemon(&status))?;
            report.add(store(&status))?;
        }
    }
    let socket = containerd::socket(context.containerd_socket());
    if socket.status == Status::Fail {
        return report.add(socket);
    }
    // A question about a container that cannot be there shows whether thawd may ask at all.
    let request = v1::ResolveRequest {
        container: context.container("thaw-doctor"),
        ..Default::default()
    };
    report.add(match client.resolve(within(CALL_LIMIT), &request).await {
        Ok(_) => socket,
        Err(e) => Check::fail(
            "containerd",
            format!(
                "thawd cannot ask it at {}: {}",
                context.containerd_socket().display(),
                said(e)
            ),
        ),
    })
}

fn daemon(status: &v1::StatusResponse) -> Check {
    let ours = env!("CARGO_PKG_VERSION");
    if status.version != ours {
        return Check::warn(
            "thawd",
            format!(
                "pid {} is version {}, this is {ours}; restart it",
                status.pid, status.version
            ),
        );
    }
    Check::ok(
        "thawd",
        format!(
            "pid {}, {} of {} cached, {} restores and {} captures under way",
            status.pid,
            output::bytes(status.cache_bytes),
            output::bytes(status.cache_limit),
            status.landers,
            status.captures
        ),
    )
}

fn store(status: &v1::StatusResponse) -> Check {
    if status.store_error.is_empty() {
        return Check::ok(
            "store",
            format!("{} can be read and written", status.store_url),
        );
    }
    Check::fail(
        "store",
        format!(
            "{}: {}; check store.url, store.options, the credentials of thawd and the network",
            status.store_url, status.store_error
        ),
    )
}

/// Prints checks as they end.
struct Report {
    json: bool,
    checks: Vec<Check>,
}

impl Report {
    fn add(&mut self, check: Check) -> anyhow::Result<()> {
        if !self.json {
            let mark = match check.status {
                Status::Ok => "ok  ",
                Status::Warn => "warn",
                Status::Fail => "FAIL",
            };
            writeln!(
                std::io::stdout().lock(),
                "{mark}  {:<14} {}",
                check.name,
                output::clean(&check.detail)
            )?;
        }
        self.checks.push(check);
        Ok(())
    }

    fn finish(self) -> anyhow::Result<ExitCode> {
        if self.json {
            output::json(&self.checks)?;
        }
        let worst = self.checks.iter().map(|c| c.status).max();
        Ok(if worst == Some(Status::Fail) {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_error_fails_and_says_where_to_look() {
        let mut status = v1::StatusResponse {
            store_url: "s3://b".into(),
            ..Default::default()
        };
        assert_eq!(store(&status).status, Status::Ok);
        status.store_error = "403".into();
        let check = store(&status);
        assert_eq!(check.status, Status::Fail);
        assert!(check.detail.contains("s3://b: 403") && check.detail.contains("credentials"));
    }

    #[test]
    fn another_thawd_is_a_warning() {
        let mut status = v1::StatusResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        assert_eq!(daemon(&status).status, Status::Ok);
        status.version = "0.0.1".into();
        assert_eq!(daemon(&status).status, Status::Warn);
    }
}
