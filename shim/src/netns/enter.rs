//! Running something inside another network namespace.

use std::fs::File;
use std::path::Path;

use nix::sched::{CloneFlags, setns};

use super::NetnsError;

/// Runs `work` on a thread of its own inside the namespace. The thread ends afterwards: it could not be trusted to be
/// back in its old namespace, and threads of a runtime must never leave theirs.
pub(crate) fn inside<T: Send>(
    path: &Path,
    work: impl FnOnce() -> Result<T, NetnsError> + Send,
) -> Result<T, NetnsError> {
    let fail = |source| NetnsError::Enter {
        path: path.to_owned(),
        source,
    };
    let namespace = File::open(path).map_err(fail)?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, || {
                setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(|e| fail(e.into()))?;
                work()
            })
            .map_err(fail)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(fail(std::io::Error::other("thread panicked"))))
    })
}
