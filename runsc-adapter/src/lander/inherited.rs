//! The descriptors that runsc leaves open for its sidecar.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use super::args::Args;

/// Descriptors named on the command line, owned.
pub(crate) struct Inherited {
    pub(crate) socket: OwnedFd,
    pub(crate) options: OwnedFd,
    pub(crate) log: Option<OwnedFd>,
    pub(crate) debug_log: Option<OwnedFd>,
}

impl Inherited {
    /// Takes the descriptors. To be called once.
    pub(crate) fn take(args: &Args) -> Inherited {
        let own = |fd: RawFd| {
            // SAFETY: runsc opened these descriptors for this process alone and named each one once on the command
            // line; nothing else in this process knows them. One that is not open fails at its first use.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // Nothing is executed from here but a failpoint's helper, which should not hold them.
            let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
            fd
        };
        Inherited {
            socket: own(args.socket),
            options: own(args.options),
            log: args.log.map(own),
            debug_log: args.debug_log.map(own),
        }
    }
}
