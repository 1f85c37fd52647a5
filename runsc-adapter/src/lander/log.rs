//! What the lander says about itself: to FD 2, which is the debug log if runsc has one, and for the error that makes the
//! current runsc command fail also to runsc's own log, where containerd's shims look for it.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::time::SystemTime;

/// One line to the debug log.
pub(crate) fn say(message: fmt::Arguments<'_>) {
    // One write, so that lines of several processes in the same file do not mix. There is nobody to tell of a failure.
    let line = format!(
        "thaw-gofer[{}] {} {message}\n",
        std::process::id(),
        rfc3339(SystemTime::now())
    );
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The one line in runsc's log that becomes the user-visible error of the runsc command.
pub(crate) fn fatal(log: Option<&mut File>, message: &str) {
    say(format_args!("fatal: {message}"));
    if let Some(log) = log {
        let entry = serde_json::json!({
            "msg": format!("thaw-gofer: {message}"),
            "level": "error",
            "time": rfc3339(SystemTime::now()),
        });
        let _ = writeln!(log, "{entry}");
    }
}

fn rfc3339(time: SystemTime) -> String {
    let seconds = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs().cast_signed());
    // Days to civil date, for dates after 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms").
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_069_046, "2026-11-30T20:04:06Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(
                rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)),
                text
            );
        }
    }
}
