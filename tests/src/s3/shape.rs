//! How slow and how narrow the server is.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Time before the first byte of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Latency {
    /// Only what the machine takes.
    #[default]
    None,
    /// The same for each request.
    Fixed {
        /// Milliseconds.
        ms: f64,
    },
    /// A log-normal distribution, drawn in the order of requests from a seed.
    LogNormal {
        /// Milliseconds.
        median_ms: f64,
        /// Standard deviation of the logarithm; object stores have about 0.5.
        sigma: f64,
        /// Same seed, same sequence.
        seed: u64,
    },
}

impl Latency {
    /// The latency of request number `sequence`.
    pub fn of(self, sequence: u64) -> Duration {
        let ms = match self {
            Latency::None => 0.0,
            Latency::Fixed { ms } => ms,
            Latency::LogNormal {
                median_ms,
                sigma,
                seed,
            } => {
                let (a, b) = (unit(seed, 2 * sequence), unit(seed, 2 * sequence + 1));
                // Box-Muller.
                let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
                median_ms * (sigma * normal).exp()
            }
        };
        Duration::try_from_secs_f64(ms / 1_000.0).unwrap_or_default()
    }
}

/// A number in (0, 1] that depends on seed and index only (SplitMix64).
fn unit(seed: u64, index: u64) -> f64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    ((z >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// Latency and bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Before each answer.
    pub latency: Latency,
    /// Bytes per second over all connections; 0: no limit.
    pub total_bytes_per_s: u64,
    /// Bytes per second on each connection; 0: no limit.
    pub connection_bytes_per_s: u64,
}

/// Spreads bytes evenly over time at a rate that may change between calls.
#[derive(Debug, Default)]
pub(super) struct Pacer(Mutex<Option<Instant>>);

impl Pacer {
    /// Books `bytes` and says when they may leave.
    pub(super) fn book(&self, bytes: usize, bytes_per_s: u64) -> Option<Instant> {
        if bytes_per_s == 0 {
            return None;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64);
        let now = Instant::now();
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = free.map_or(now, |at| at.max(now)) + takes;
        *free = Some(done);
        Some(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_normal_has_its_median_and_repeats() {
        let latency = Latency::LogNormal {
            median_ms: 20.0,
            sigma: 0.5,
            seed: 7,
        };
        let mut drawn: Vec<Duration> = (0..2_001).map(|i| latency.of(i)).collect();
        assert_eq!(drawn[5], latency.of(5));
        drawn.sort();
        let median = drawn[1_000].as_secs_f64() * 1_000.0;
        assert!((18.0..22.0).contains(&median), "{median}");
    }

    #[test]
    fn a_pacer_books_one_after_the_other() {
        let pacer = Pacer::default();
        let first = pacer.book(1_000_000, 1_000_000).unwrap();
        let second = pacer.book(500_000, 1_000_000).unwrap();
        assert_eq!(second - first, Duration::from_millis(500));
        assert!(pacer.book(1, 0).is_none());
    }
}
