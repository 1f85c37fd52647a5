//! One file per command.

pub(crate) mod capture;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod ls;
pub(crate) mod rm;
pub(crate) mod show;

use anyhow::bail;
use thaw_proto::v1;

use crate::context::{CALL_LIMIT, Context, check_name, said, within};
use crate::records::ContainerRecord;

/// What runtime a container of Thaw has in containerd.
const RUNTIME: &str = "io.containerd.thaw.v1";

/// The record of a container that a shim of Thaw serves, or a sentence that says what the container is instead.
async fn find_container(context: &Context, id: &str) -> anyhow::Result<ContainerRecord> {
    check_name("container id", id)?;
    let path = context.config.container_record(&context.namespace, id);
    if let Some(record) = ContainerRecord::load(&path)? {
        return Ok(record);
    }
    let request = v1::ResolveRequest {
        container: context.container(id),
        ..Default::default()
    };
    let found = context
        .node()
        .await?
        .resolve(within(CALL_LIMIT), &request)
        .await
        .map_err(said)?;
    bail!(
        "{}",
        absent(id, &context.namespace, found.exists, &found.runtime)
    );
}

fn absent(id: &str, namespace: &str, exists: bool, runtime: &str) -> String {
    if !exists {
        format!(
            "there is no container {id} in namespace {namespace}; --namespace chooses another one"
        )
    } else if runtime != RUNTIME {
        format!(
            "container {id} runs with {runtime}, not with Thaw; create it with the runtime {RUNTIME}"
        )
    } else {
        format!("container {id} has stopped; start it first")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_running_container_of_thaw_is_named() {
        let text = absent("a", "default", false, "");
        assert!(text.starts_with("there is no container a in namespace default"));
        let text = absent("a", "default", true, "io.containerd.runc.v2");
        assert!(text.contains("runs with io.containerd.runc.v2, not with Thaw"));
        assert!(absent("a", "default", true, RUNTIME).contains("has stopped"));
    }
}
