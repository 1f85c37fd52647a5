//! The gate: whether the restored kernel may run, and the connection to the shim that decides it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use thaw_proto::Reason;
use thaw_proto::data::File;
use thaw_proto::gate::{FromLander, MAX_PACKET, ToLander};

use super::{log, seqpacket};

const HOLDING: u8 = 0;
const WENT: u8 = 1;
const ABORTED: u8 = 2;

/// What the shim decided, or that it went away.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Go.
    Go,
    /// Abort.
    Abort,
    /// The shim hung up.
    HangUp,
}

/// State of the gate. One word decides: the first of go and abort that reaches it wins, for ever.
#[derive(Debug)]
pub(crate) struct Gate {
    state: AtomicU8,
    /// The file whose completions are withheld, by its wire number.
    withheld: AtomicU8,
    /// Held for reading while the sentry is given an answer, so that an abort is only confirmed when none is under way.
    answering: RwLock<()>,
    readiness: Mutex<Readiness>,
    shim: OwnedFd,
}

#[derive(Debug, Default)]
struct Readiness {
    node: bool,
    asked: bool,
    told: bool,
}

impl Gate {
    /// A closed gate whose shim is at the other end of `shim`.
    pub(crate) fn new(shim: OwnedFd) -> Self {
        Gate {
            state: AtomicU8::new(HOLDING),
            withheld: AtomicU8::new(File::PagesMeta as u8),
            answering: RwLock::new(()),
            readiness: Mutex::default(),
            shim,
        }
    }

    /// Opens the gate. False if it was aborted before.
    pub(crate) fn go(&self) -> bool {
        self.decide(WENT) == WENT
    }

    /// Aborts. False if the gate was opened before. When this returns true no answer is under way any more.
    pub(crate) fn abort(&self) -> bool {
        let aborted = self.decide(ABORTED) == ABORTED;
        drop(
            self.answering
                .write()
                .unwrap_or_else(PoisonError::into_inner),
        );
        aborted
    }

    fn decide(&self, wanted: u8) -> u8 {
        match self
            .state
            .compare_exchange(HOLDING, wanted, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => wanted,
            Err(already) => already,
        }
    }

    /// Whether the gate is open.
    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == WENT
    }

    /// Withholds this file instead of `pages_meta.img`. To be called before any file is opened.
    pub(crate) fn withhold(&self, file: File) {
        self.withheld.store(file as u8, Ordering::Release);
    }

    /// Whether this is the file without which the restored kernel cannot run.
    pub(crate) fn withholds(&self, file: File) -> bool {
        self.withheld.load(Ordering::Acquire) == file as u8
    }

    /// Whether completions of this file may be handed over now.
    pub(crate) fn passes(&self, file: File) -> bool {
        match self.state.load(Ordering::Acquire) {
            HOLDING => !self.withholds(file),
            WENT => true,
            _ => false,
        }
    }

    /// Gives the sentry an answer, unless the restore was aborted.
    pub(crate) fn answer<T>(&self, answer: impl FnOnce() -> T) -> Option<T> {
        let _answering = self
            .answering
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        (self.state.load(Ordering::Acquire) != ABORTED).then(answer)
    }

    /// thawd has verified what a start needs.
    pub(crate) fn node_is_ready(&self) {
        self.update_readiness(|r| r.node = true);
    }

    /// The sentry has asked for the file that is withheld.
    pub(crate) fn sentry_has_asked(&self) {
        self.update_readiness(|r| r.asked = true);
    }

    fn update_readiness(&self, change: impl FnOnce(&mut Readiness)) {
        let mut readiness = self
            .readiness
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        change(&mut readiness);
        if readiness.node && readiness.asked && !readiness.told {
            readiness.told = true;
            thaw_proto::failpoint::hit("lander.ready");
            self.tell(&FromLander::Ready);
        }
    }

    /// The restore cannot go on. Before go it ends here: nothing is answered any more and the shim decides what happens.
    /// False after go.
    pub(crate) fn fail(&self, reason: Reason, detail: String) -> bool {
        log::say(format_args!("failed: {reason}: {detail}"));
        if self
            .state
            .compare_exchange(HOLDING, ABORTED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            self.tell(&FromLander::Failed { reason, detail });
        }
        !self.is_open()
    }

    /// Says something to the shim. A shim that is gone hears nothing.
    pub(crate) fn tell(&self, message: &FromLander) {
        match serde_json::to_vec(message) {
            Ok(packet) => {
                if let Err(error) = seqpacket::send(&self.shim, &packet, None) {
                    log::say(format_args!("say {message:?} to the shim: {error}"));
                }
            }
            Err(error) => log::say(format_args!("encode {message:?}: {error}")),
        }
    }

    /// Waits for the shim's next word.
    pub(crate) fn listen(&self) -> Decision {
        let mut buffer = [0; MAX_PACKET];
        match seqpacket::receive(&self.shim, &mut buffer) {
            Ok(Some((len, _))) => match serde_json::from_slice(&buffer[..len]) {
                Ok(ToLander::Go) => Decision::Go,
                Ok(ToLander::Abort) => Decision::Abort,
                Err(error) => {
                    log::say(format_args!("shim said nonsense: {error}"));
                    Decision::HangUp
                }
            },
            Ok(None) => Decision::HangUp,
            Err(error) => {
                log::say(format_args!("listen to the shim: {error}"));
                Decision::HangUp
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn gate() -> Gate {
        let (a, _) = std::os::unix::net::UnixStream::pair().unwrap();
        Gate::new(a.into())
    }

    #[test]
    fn the_first_decision_wins() {
        let g = gate();
        assert!(g.go());
        assert!(!g.abort());
        assert!(g.go());
        assert!(g.passes(File::PagesMeta));
        let g = gate();
        assert!(g.abort());
        assert!(!g.go());
        assert!(File::ALL.into_iter().all(|f| !g.passes(f)));
        assert_eq!(g.answer(|| 1), None);
    }

    #[test]
    fn only_one_file_is_withheld() {
        let g = gate();
        g.withhold(File::State);
        assert!(!g.passes(File::State));
        assert!(g.passes(File::PagesMeta));
        let g = gate();
        assert!(g.passes(File::State));
        assert!(!g.passes(File::PagesMeta));
        assert_eq!(g.answer(|| 1), Some(1));
    }

    #[test]
    fn one_of_many_deciders_wins_whatever_they_want() {
        for _ in 0..200 {
            let g = gate();
            let (went, aborted) = std::thread::scope(|s| {
                let go = s.spawn(|| g.go());
                let abort = s.spawn(|| g.abort());
                (go.join().unwrap(), abort.join().unwrap())
            });
            assert!(went != aborted);
            assert_eq!(g.is_open(), went);
        }
    }

    #[test]
    fn an_abort_waits_for_the_answer_under_way() {
        let g = gate();
        let answered = AtomicBool::new(false);
        let started = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                g.answer(|| {
                    started.store(true, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(50));
                    answered.store(true, Ordering::SeqCst);
                })
            });
            while !started.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert!(g.abort());
            assert!(answered.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn a_failure_before_go_ends_the_restore_and_after_go_does_not() {
        let g = gate();
        assert!(g.fail(Reason::StoreSlow, String::new()));
        assert!(!g.go());
        let g = gate();
        assert!(g.go());
        assert!(!g.fail(Reason::StoreSlow, String::new()));
        assert!(g.is_open());
    }
}
