//! How many bytes of background fetching may be on their way at once. Pure.
//!
//! Too few leave the link idle, too many queue in front of the next demanded page: on a link of 200 MB/s 32 MiB on their
//! way cost every demanded page 160 ms. So the window starts small and grows only as long as a larger one brings more
//! throughput.

use std::time::Duration;

/// Smallest window, bytes.
pub const MIN: u64 = 4 << 20;
/// Largest window, bytes.
pub const MAX: u64 = 64 << 20;

/// A larger window must bring this much more to be kept.
const GAIN: f64 = 1.15;
/// Rounds after which a larger window is tried again: links change.
const PROBE_EVERY: u32 = 16;

/// The window and what is known about the link.
#[derive(Debug)]
pub struct Window {
    size: u64,
    /// Bytes and time of the current round.
    bytes: u64,
    since: Duration,
    /// Throughput of the round before, bytes per second.
    last: f64,
    grown: bool,
    quiet: u32,
}

impl Window {
    /// A window at time `now` of any steady clock.
    pub fn new(now: Duration) -> Window {
        Window {
            size: MIN,
            bytes: 0,
            since: now,
            last: 0.0,
            // The first round has nothing to compare with and always grows.
            grown: true,
            quiet: 0,
        }
    }

    /// Bytes that may be on their way.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that one request should have, so that several are on their way.
    pub fn request(&self) -> u64 {
        (self.size / 4).clamp(1 << 20, 4 << 20)
    }

    /// The link was idle by our own decision: what was measured says nothing about it.
    pub fn pause(&mut self, now: Duration) {
        self.bytes = 0;
        self.since = now;
    }

    /// `bytes` arrived.
    pub fn arrived(&mut self, bytes: u64, now: Duration) {
        self.bytes += bytes;
        let seconds = now.saturating_sub(self.since).as_secs_f64();
        if self.bytes < self.size || seconds <= 0.0 {
            return;
        }
        let rate = self.bytes as f64 / seconds;
        self.bytes = 0;
        self.since = now;
        if self.grown {
            if rate >= self.last * GAIN {
                self.grow();
            } else {
                self.size = (self.size / 2).max(MIN);
                self.grown = false;
                self.quiet = 0;
            }
        } else {
            self.quiet += 1;
            if self.quiet >= PROBE_EVERY {
                self.grow();
            }
        }
        self.last = rate;
    }

    fn grow(&mut self) {
        self.grown = self.size < MAX;
        self.size = (self.size * 2).min(MAX);
        self.quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link with a rate and a delay: a window of `w` bytes moves `min(rate, w / delay)`.
    fn settle(rate: f64, delay: f64) -> u64 {
        let mut now = 0.0;
        let mut window = Window::new(Duration::ZERO);
        let mut sizes = Vec::new();
        for _ in 0..400 {
            let bytes = 1 << 20;
            let speed = rate.min(window.size() as f64 / delay);
            now += bytes as f64 / speed;
            window.arrived(bytes, Duration::from_secs_f64(now));
            sizes.push(window.size());
        }
        sizes.sort_unstable();
        sizes[sizes.len() / 2]
    }

    #[test]
    fn a_link_with_little_delay_needs_the_smallest_window() {
        assert_eq!(settle(200e6, 0.005), MIN);
    }

    #[test]
    fn a_fast_far_link_gets_a_large_window() {
        // 1 GB/s over 50 ms: 50 MB on their way fill it.
        assert!(settle(1e9, 0.05) >= 32 << 20, "{}", settle(1e9, 0.05));
    }

    #[test]
    fn requests_stay_within_their_bounds() {
        let mut window = Window::new(Duration::ZERO);
        assert_eq!(window.request(), 1 << 20);
        window.size = MAX;
        assert_eq!(window.request(), 4 << 20);
    }
}
