//! Copy tasks: which of them still run, waiting for the outputs, stopping all.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::AbortHandle;

#[derive(Clone)]
pub(super) struct Copies {
    outputs: watch::Sender<usize>,
    tasks: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Default for Copies {
    fn default() -> Self {
        Copies {
            outputs: watch::channel(0).0,
            tasks: Arc::default(),
        }
    }
}

/// Counts one output until it is dropped, however its task ends.
struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl Copies {
    /// Copies until the source ends.
    pub(super) fn output<R, W>(&self, mut from: R, mut to: W)
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        self.outputs.send_modify(|running| *running += 1);
        let counted = Counted(self.outputs.clone());
        self.keep(async move {
            let _counted = counted;
            report(tokio::io::copy(&mut from, &mut to).await);
        });
    }

    /// The same for input, which nobody waits for.
    pub(super) fn input<R, W>(&self, mut from: R, mut to: W)
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        self.keep(async move { report(tokio::io::copy(&mut from, &mut to).await) });
    }

    fn keep(&self, copy: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().expect("task lock");
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::spawn(copy).abort_handle());
    }

    /// Waits until all outputs have ended.
    pub(super) async fn drained(&self) {
        // The sender is ours, so the wait cannot fail.
        let _ = self
            .outputs
            .subscribe()
            .wait_for(|running| *running == 0)
            .await;
    }

    /// Stops whatever still runs.
    pub(super) fn stop(&self) {
        for task in self.tasks.lock().expect("task lock").drain(..) {
            task.abort();
        }
    }
}

fn report(outcome: std::io::Result<u64>) {
    match outcome {
        Ok(_) => {}
        // A terminal that hangs up and a pipe that lost its reader are how copies normally end.
        Err(error)
            if error.kind() == std::io::ErrorKind::BrokenPipe
                || error.raw_os_error() == Some(nix::errno::Errno::EIO as i32) => {}
        Err(error) => tracing::warn!(%error, "copying a stream failed"),
    }
}
