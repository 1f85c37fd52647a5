//! How long to leave a failing store alone. Pure.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Doubles with each failure in a row, up to 5 s.
#[derive(Debug, Default)]
pub struct Backoff {
    delay: Duration,
    until: Option<Duration>,
}

impl Backoff {
    /// Something failed. Says whether it was well before.
    pub fn failed(&mut self, now: Duration) -> bool {
        // Requests that were on the way together fail together: that is one failure.
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        let was_well = self.until.is_none();
        self.delay = (self.delay * 2).clamp(FIRST, LONGEST);
        self.until = Some(now + self.delay);
        was_well
    }

    /// Something worked. Says whether it failed before.
    pub fn worked(&mut self) -> bool {
        self.delay = Duration::ZERO;
        self.until.take().is_some()
    }

    /// How long to wait yet.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.until
            .and_then(|until| until.checked_sub(now))
            .filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_the_longest_and_starts_over() {
        let ms = Duration::from_millis;
        let mut b = Backoff::default();
        assert_eq!(b.wait(ms(0)), None);
        assert!(b.failed(ms(0)));
        assert!(!b.failed(ms(50)), "the same failure");
        assert_eq!(b.wait(ms(0)), Some(ms(100)));
        assert_eq!(b.wait(ms(100)), None);
        assert!(!b.failed(ms(100)));
        assert_eq!(b.wait(ms(100)), Some(ms(200)));
        let mut now = ms(300);
        for _ in 0..10 {
            b.failed(now);
            now += b.wait(now).unwrap();
        }
        b.failed(now);
        assert_eq!(b.wait(now), Some(LONGEST));
        assert!(b.worked());
        assert!(!b.worked());
        assert_eq!(b.wait(now), None);
    }
}
