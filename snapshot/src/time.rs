//! RFC 3339 times in UTC, without a calendar library.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `YYYY-MM-DDThh:mm:ssZ` of a time after 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// Gregorian date of a day counted from 1970-01-01 (H. Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
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
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// Whether the text has the shape of an RFC 3339 time in UTC, with or without a fraction.
pub fn is_rfc3339(text: &str) -> bool {
    let shape = "dddd-dd-ddTdd:dd:dd";
    let Some((head, tail)) = text.split_at_checked(shape.len()) else {
        return false;
    };
    let head_fits = head.bytes().zip(shape.bytes()).all(|(c, s)| match s {
        b'd' => c.is_ascii_digit(),
        other => c == other,
    });
    let fraction = tail
        .strip_suffix('Z')
        .map(|f| f.strip_prefix('.').unwrap_or(f));
    head_fits && fraction.is_some_and(|f| f.len() <= 9 && f.bytes().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_083_199, "2026-11-30T23:59:59Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(rfc3339(time), text);
            assert!(is_rfc3339(text));
        }
        assert!(is_rfc3339("2026-11-30T20:00:00.123456789Z"));
        for bad in [
            "",
            "2026-11-30",
            "2026-11-30T20:00:00",
            "2026-11-30T20:00:00+01:00",
            "2026-11-30T20:00:0xZ",
        ] {
            assert!(!is_rfc3339(bad), "{bad}");
        }
    }
}
