//! Passing control of a window (`pkg/flipcall/flipcall.go`, `ctrl_futex.go`).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::futex;
use thiserror::Error;

use super::Window;
use super::datagram::Datagram;

const SHUT_DOWN: u32 = 2;

/// Which end of a connection this is. The client has control at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Side {
    /// The sentry.
    Client = 0,
    /// The sidecar.
    Server = 1,
}

/// Why a connection is of no use any more.
#[derive(Debug, Error)]
pub enum Closed {
    /// One of the two sides shut it down.
    #[error("flipcall connection is shut down")]
    ShutDown,
    /// The peer broke the protocol.
    #[error("flipcall peer broke the protocol: {0}")]
    Protocol(&'static str),
    /// The futex call failed.
    #[error("wait for the flipcall peer: {0}")]
    Futex(#[from] io::Error),
}

/// One end of a flipcall connection.
#[derive(Debug)]
pub struct Connection {
    window: Window,
    side: Side,
    stop: AtomicBool,
}

impl Connection {
    /// One end over `window`.
    pub fn new(window: Window, side: Side) -> Self {
        Connection {
            window,
            side,
            stop: AtomicBool::new(false),
        }
    }

    /// The window; only to be used while this side has control.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Gives control to the peer, with `count` as the datagram's length word.
    pub fn give(&self, count: u32) -> Result<(), Closed> {
        let (me, peer) = self.turns();
        self.window.count().store(count, Ordering::Relaxed);
        match self
            .window
            .state()
            .compare_exchange(me, peer, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {}
            Err(SHUT_DOWN) => return Err(Closed::ShutDown),
            Err(_) => return Err(Closed::Protocol("control was taken out of turn")),
        }
        futex::wake(self.window.state(), futex::Flags::empty(), 1).map_err(io::Error::from)?;
        Ok(())
    }

    /// Waits for control and returns the peer's length word, which is not checked.
    pub fn wait(&self) -> Result<u32, Closed> {
        let (me, peer) = self.turns();
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Err(Closed::ShutDown);
            }
            match self.window.state().load(Ordering::Acquire) {
                state if state == me => return Ok(self.window.count().load(Ordering::Relaxed)),
                SHUT_DOWN => return Err(Closed::ShutDown),
                state if state != peer => {
                    return Err(Closed::Protocol("unknown connection state"));
                }
                _ => {}
            }
            match futex::wait(self.window.state(), futex::Flags::empty(), peer, None) {
                Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Closed::Futex(error.into())),
            }
        }
    }

    /// Ends the connection for both sides. May be called from any thread and repeatedly; a thread of this side that
    /// sleeps in [`Connection::wait`] returns, unless a hostile peer swallowed the wake-up: repeat until it has.
    pub fn shut_down(&self) {
        self.stop.store(true, Ordering::Release);
        self.window.state().swap(SHUT_DOWN, Ordering::AcqRel);
        // Waking cannot fail on a mapped, aligned word.
        let _ = futex::wake(
            self.window.state(),
            futex::Flags::empty(),
            i32::MAX.unsigned_abs(),
        );
    }

    /// Exchanges the JSON objects that open a connection. gVisor sends and expects nothing in them.
    pub fn shake_hands(&self) -> Result<(), Closed> {
        const HELLO: &[u8] = b"{}\n";
        if self.side == Side::Client {
            self.send_text(HELLO)?;
        }
        let len = self.wait()? as usize;
        if len > self.window.capacity() {
            return Err(Closed::Protocol("datagram is longer than the window"));
        }
        let mut text = vec![0; len];
        if !self.window.load(0, &mut text) {
            return Err(Closed::Protocol("datagram is longer than the window"));
        }
        serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&text)
            .map_err(|_| Closed::Protocol("handshake is not a JSON object"))?;
        if self.side == Side::Server {
            self.send_text(HELLO)?;
        }
        Ok(())
    }

    fn send_text(&self, text: &[u8]) -> Result<(), Closed> {
        if !self.window.store(0, text) {
            return Err(Closed::Protocol("window is too small for a handshake"));
        }
        self.give(text.len() as u32)
    }

    fn turns(&self) -> (u32, u32) {
        (self.side as u32, 1 - self.side as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn pair() -> (Arc<Connection>, Arc<Connection>) {
        let (fd, window) = Window::create(4096).unwrap();
        let other = Window::map(&fd, 0, 4096).unwrap();
        (
            Arc::new(Connection::new(window, Side::Server)),
            Arc::new(Connection::new(other, Side::Client)),
        )
    }

    #[test]
    fn control_goes_back_and_forth() {
        let (server, client) = pair();
        let echo = {
            let server = server.clone();
            std::thread::spawn(move || {
                server.shake_hands().unwrap();
                while let Ok(n) = server.wait() {
                    if server.give(n + 1).is_err() {
                        break;
                    }
                }
            })
        };
        client.shake_hands().unwrap();
        for n in 0..1000 {
            client.give(n).unwrap();
            assert_eq!(client.wait().unwrap(), n + 1);
        }
        client.shut_down();
        echo.join().unwrap();
        assert!(matches!(server.give(0), Err(Closed::ShutDown)));
    }

    #[test]
    fn a_sleeping_side_is_woken_by_its_own_shut_down() {
        let (server, _client) = pair();
        let sleeper = {
            let server = server.clone();
            std::thread::spawn(move || server.wait())
        };
        while !sleeper.is_finished() {
            server.shut_down();
            std::thread::yield_now();
        }
        assert!(matches!(sleeper.join().unwrap(), Err(Closed::ShutDown)));
    }

    #[test]
    fn a_handshake_that_is_no_object_or_too_long_is_refused() {
        for (text, len) in [(&b"[1]"[..], 3), (b"{}", 5000), (b"{", 1)] {
            let (server, client) = pair();
            assert!(client.window().store(0, text));
            client.give(len).unwrap();
            assert!(matches!(server.shake_hands(), Err(Closed::Protocol(_))));
        }
    }

    #[test]
    fn an_unknown_state_is_an_error() {
        let (server, client) = pair();
        client.window().state().store(7, Ordering::Release);
        assert!(matches!(server.wait(), Err(Closed::Protocol(_))));
        assert!(matches!(server.give(0), Err(Closed::Protocol(_))));
    }
}
