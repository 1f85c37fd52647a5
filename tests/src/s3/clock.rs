//! The two date formats of the S3 protocol, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

struct Civil {
    year: u64,
    month: u64,
    day: u64,
    weekday: usize,
    seconds: u64,
    millis: u32,
}

/// Days to civil date by Hinnant's algorithm; correct from 1970 on.
fn civil(time: SystemTime) -> Civil {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let days = since.as_secs() / 86_400;
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    Civil {
        year: year_of_era + era * 400 + u64::from(month <= 2),
        month,
        day: day_of_year - (153 * shifted + 2) / 5 + 1,
        weekday: (days % 7) as usize,
        seconds: since.as_secs() % 86_400,
        millis: since.subsec_millis(),
    }
}

/// For `Last-Modified`: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn http_date(time: SystemTime) -> String {
    let c = civil(time);
    format!(
        "{}, {:02} {} {} {:02}:{:02}:{:02} GMT",
        DAYS[c.weekday],
        c.day,
        MONTHS[c.month as usize - 1],
        c.year,
        c.seconds / 3_600,
        c.seconds / 60 % 60,
        c.seconds % 60
    )
}

/// For listings: `1994-11-06T08:49:37.000Z`.
pub(super) fn iso_date(time: SystemTime) -> String {
    let c = civil(time);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        c.year,
        c.month,
        c.day,
        c.seconds / 3_600,
        c.seconds / 60 % 60,
        c.seconds % 60,
        c.millis
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_dates() {
        let at = |s| UNIX_EPOCH + Duration::from_secs(s);
        assert_eq!(http_date(at(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(iso_date(at(784_111_777)), "1994-11-06T08:49:37.000Z");
        assert_eq!(iso_date(at(951_782_400)), "2000-02-29T00:00:00.000Z");
        assert_eq!(iso_date(at(0)), "1970-01-01T00:00:00.000Z");
    }
}
