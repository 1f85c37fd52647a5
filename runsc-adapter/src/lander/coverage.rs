//! Which bytes of a file were seen.

use std::collections::BTreeMap;

/// A set of bytes: all below the frontier, and some islands above it.
#[derive(Debug, Default)]
pub struct Coverage {
    frontier: u64,
    /// Start to end, disjoint, not adjacent, all above the frontier.
    islands: BTreeMap<u64, u64>,
}

impl Coverage {
    /// The lowest byte that is not in the set.
    pub fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Whether the set has no byte.
    pub fn is_empty(&self) -> bool {
        self.frontier == 0 && self.islands.is_empty()
    }

    /// Adds `start..end`.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        // Islands that overlap or touch the new range begin at or below its end; the last of them ends highest.
        while let Some((&from, &to)) = self.islands.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.islands.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        if start <= self.frontier {
            self.frontier = self.frontier.max(end);
        } else {
            self.islands.insert(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_frontier_jumps_over_what_was_seen_ahead() {
        let mut c = Coverage::default();
        assert!(c.is_empty());
        c.insert(10, 20);
        assert!(!c.is_empty());
        assert_eq!(c.frontier(), 0);
        c.insert(0, 10);
        assert_eq!(c.frontier(), 20);
        c.insert(30, 40);
        c.insert(20, 30);
        assert_eq!(c.frontier(), 40);
        assert!(c.islands.is_empty());
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_bytes_inserted(
            ranges in prop::collection::vec((0u64..64, 0u64..12), 0..40),
        ) {
            let mut c = Coverage::default();
            let mut seen = [false; 80];
            for (start, len) in ranges {
                c.insert(start, start + len);
                seen[start as usize..(start + len) as usize].fill(true);
                let frontier = seen.iter().position(|s| !s).unwrap() as u64;
                prop_assert_eq!(c.frontier(), frontier);
                for byte in 0..80 {
                    let inside = byte < c.frontier
                        || c.islands.iter().any(|(from, to)| (*from..*to).contains(&byte));
                    prop_assert_eq!(inside, seen[byte as usize], "byte {}", byte);
                }
            }
        }
    }
}
