//! What keeps thawd alive, and what it did.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thaw_proto::StartRecord;

/// Landers, calls and outcomes.
#[derive(Debug)]
pub struct Activity {
    landers: AtomicU32,
    calls: AtomicU32,
    last: Mutex<Instant>,
    outcomes: Mutex<BTreeMap<String, u64>>,
}

impl Default for Activity {
    fn default() -> Self {
        Activity {
            landers: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            last: Mutex::new(Instant::now()),
            outcomes: Mutex::default(),
        }
    }
}

/// Something that is under way until this is dropped.
#[derive(Debug)]
pub struct Busy {
    activity: Arc<Activity>,
    lander: bool,
}

impl Activity {
    /// A call begins.
    pub fn call(self: &Arc<Self>) -> Busy {
        self.begin(false)
    }

    /// A lander comes.
    pub fn lander(self: &Arc<Self>) -> Busy {
        self.begin(true)
    }

    fn begin(self: &Arc<Self>, lander: bool) -> Busy {
        self.counter(lander).fetch_add(1, Relaxed);
        Busy {
            activity: Arc::clone(self),
            lander,
        }
    }

    fn counter(&self, lander: bool) -> &AtomicU32 {
        if lander { &self.landers } else { &self.calls }
    }

    /// Landers connected now.
    pub fn landers(&self) -> u32 {
        self.landers.load(Relaxed)
    }

    /// How long nothing has been under way.
    pub fn idle(&self) -> Duration {
        if self.landers() > 0 || self.calls.load(Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }

    /// Counts a start.
    pub fn outcome(&self, record: &StartRecord) {
        let name = match record.reason {
            Some(reason) => format!("{} {reason}", record.outcome),
            None => record.outcome.to_string(),
        };
        *self
            .outcomes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(name)
            .or_default() += 1;
    }

    /// Starts so far, by outcome and reason.
    pub fn outcomes(&self) -> BTreeMap<String, u64> {
        self.outcomes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self
            .activity
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.activity.counter(self.lander).fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_idle_while_something_is_under_way() {
        let activity = Arc::new(Activity::default());
        let call = activity.call();
        let lander = activity.lander();
        assert_eq!(activity.landers(), 1);
        drop(call);
        assert_eq!(activity.idle(), Duration::ZERO);
        drop(lander);
        assert_eq!(activity.landers(), 0);
    }
}
