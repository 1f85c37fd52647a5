//! Deadlines and retries. object_store's own are switched off: they retry parts of a request and allow three minutes.

use std::future::Future;
use std::time::Duration;

use object_store::path::Path;
use thaw_proto::data::Class;
use tokio::time::Instant;

use super::error::{Failure, Operation, StoreError, StoreErrorKind};

const FIRST_PAUSE: Duration = Duration::from_millis(40);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Slowest transfer that is still waited for, bytes per second.
const SLOWEST: u64 = 1 << 20;

/// How long and how often an operation is tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    attempt: Duration,
    attempts: u32,
    /// Common to all operations with this budget.
    end: Option<Instant>,
}

impl Budget {
    /// Something waits for one or more operations and says how long from now.
    pub(super) fn within(deadline: Duration) -> Budget {
        Budget {
            attempt: deadline,
            attempts: 3,
            end: Some(Instant::now() + deadline),
        }
    }

    /// A read of `len` bytes.
    pub(super) fn read(class: Class, len: u64) -> Budget {
        let (base, attempts) = match class {
            Class::Demand => (Duration::from_secs(4), 4),
            Class::Hot | Class::Fill => (Duration::from_secs(10), 4),
        };
        Budget::sized(base, len, attempts)
    }

    /// A write of `len` bytes, or anything else that nobody waits for.
    pub(super) fn background(len: u64) -> Budget {
        Budget::sized(Duration::from_secs(20), len, 6)
    }

    fn sized(base: Duration, len: u64, attempts: u32) -> Budget {
        let attempt = base + Duration::from_secs(len / SLOWEST);
        Budget {
            attempt,
            attempts,
            end: None,
        }
    }
}

/// Tries until it works, it cannot work, or the budget is spent.
pub(super) async fn run<T, F: Future<Output = Result<T, Failure>>>(
    operation: Operation,
    path: &Path,
    budget: Budget,
    attempt: impl Fn() -> F,
) -> Result<T, StoreError> {
    let start = Instant::now();
    let end = budget
        .end
        .unwrap_or_else(|| start + budget.attempt * budget.attempts);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let limit = (Instant::now() + budget.attempt).min(end);
        let failure = match tokio::time::timeout_at(limit, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(failure)) => failure,
            Err(_) => Failure {
                kind: StoreErrorKind::Slow,
                message: format!("no complete answer within {:?}", limit - start),
            },
        };
        let pause = pause(attempts);
        if !failure.is_transient() || attempts >= budget.attempts || Instant::now() + pause >= end {
            return Err(StoreError {
                operation,
                path: path.to_string(),
                kind: failure.kind,
                message: failure.message,
                attempts,
                elapsed: start.elapsed(),
            });
        }
        tracing::debug!(%operation, %path, attempts, message = failure.message, "retry");
        tokio::time::sleep(pause).await;
    }
}

/// Exponential with full jitter.
fn pause(attempts: u32) -> Duration {
    let longest = FIRST_PAUSE
        .saturating_mul(1 << attempts.min(16))
        .min(LONGEST_PAUSE);
    // The clock's low digits are random enough to keep nodes from retrying in step.
    let random = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos() / 7 % 1000);
    longest.mul_f64(0.25 + 0.75 * f64::from(random) / 1000.0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn failure(kind: StoreErrorKind) -> Failure {
        Failure {
            kind,
            message: "words".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn transient_failures_are_retried_and_others_are_not() {
        let path = Path::from("a");
        let tried = Cell::new(0);
        let ok = run(
            Operation::Get,
            &path,
            Budget::read(Class::Demand, 0),
            || async {
                tried.set(tried.get() + 1);
                if tried.get() < 3 {
                    Err(failure(StoreErrorKind::Unreachable))
                } else {
                    Ok(7)
                }
            },
        )
        .await;
        assert_eq!((ok.unwrap(), tried.get()), (7, 3));

        tried.set(0);
        let denied = run(Operation::Get, &path, Budget::background(0), || async {
            tried.set(tried.get() + 1);
            Err::<(), _>(failure(StoreErrorKind::Denied))
        })
        .await
        .unwrap_err();
        assert_eq!((denied.kind, tried.get()), (StoreErrorKind::Denied, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_store_is_slow_after_the_deadline() {
        let deadline = Duration::from_millis(700);
        let start = Instant::now();
        let error = run(
            Operation::List,
            &Path::from("a"),
            Budget::within(deadline),
            std::future::pending::<Result<(), Failure>>,
        )
        .await
        .unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Slow);
        assert_eq!(error.reason(), thaw_proto::Reason::StoreSlow);
        assert_eq!(start.elapsed(), deadline);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_bounded() {
        let tried = Cell::new(0);
        let error = run(
            Operation::List,
            &Path::from("a"),
            Budget::within(Duration::from_secs(60)),
            || async {
                tried.set(tried.get() + 1);
                Err::<(), _>(failure(StoreErrorKind::Unreachable))
            },
        )
        .await
        .unwrap_err();
        assert_eq!((tried.get(), error.attempts), (3, 3));
    }
}
