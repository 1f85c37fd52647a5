//! Delays and sudden deaths at named places, for tests. Compiled to nothing without the feature `failpoints`, which no
//! released binary has.
//!
//! The environment variable `THAW_FAILPOINTS` names a file that is read anew at every point. Each line is
//! `<point>=<milliseconds>` or `<point>=kill`; the process that meets `kill` ends by SIGKILL.

use std::time::Duration;

/// Environment variable that names the file.
pub const FAILPOINTS_ENV: &str = "THAW_FAILPOINTS";

/// The delay asked for at this point, zero if none. Does not return if the point says `kill`.
///
/// Async callers sleep it off with their runtime's timer, others use [`hit`].
#[cfg(feature = "failpoints")]
pub fn delay(point: &str) -> Duration {
    let Some(text) =
        std::env::var_os(FAILPOINTS_ENV).and_then(|path| std::fs::read_to_string(path).ok())
    else {
        return Duration::ZERO;
    };
    match text
        .lines()
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| *name == point)
    {
        Some((_, "kill")) => {
            let _ = std::process::Command::new("kill")
                .args(["-9", &std::process::id().to_string()])
                .status();
            std::process::abort();
        }
        Some((_, ms)) => ms.parse().map_or(Duration::ZERO, Duration::from_millis),
        None => Duration::ZERO,
    }
}

/// No point is ever delayed without the feature.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn delay(_point: &str) -> Duration {
    Duration::ZERO
}

/// Sleeps the calling thread for [`delay`].
#[inline(always)]
pub fn hit(point: &str) {
    let pause = delay(point);
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
}
