//! Which reads something in the guest waits for. The protocol has no field for it.

use thaw_proto::data::{Class, File};

use crate::lander::coverage::Coverage;

/// Classifies the reads of one file.
#[derive(Debug)]
pub(super) struct Classifier {
    which: File,
    asked: Coverage,
}

impl Classifier {
    pub(super) fn new(which: File) -> Self {
        Classifier {
            which,
            asked: Coverage::default(),
        }
    }

    /// The sentry fills its free slots with the lowest pages that it never asked for, so a read from anywhere else is
    /// one that a thread is blocked on. Nothing runs without the streams.
    pub(super) fn classify(&mut self, offset: u64, len: u32) -> Class {
        if self.which != File::Pages {
            return Class::Demand;
        }
        let lowest = self.asked.frontier();
        self.asked.insert(offset, offset + u64::from(len));
        if offset == lowest {
            Class::Fill
        } else {
            Class::Demand
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lowest_unasked_page_is_background() {
        let mut c = Classifier::new(File::Pages);
        assert_eq!(c.classify(0, 10), Class::Fill);
        assert_eq!(c.classify(100, 10), Class::Demand);
        assert_eq!(c.classify(10, 10), Class::Fill);
        assert_eq!(c.classify(20, 80), Class::Fill);
        // 100..110 was read on demand, so the background goes on after it.
        assert_eq!(c.classify(110, 10), Class::Fill);
        assert_eq!(c.classify(130, 10), Class::Demand);
    }

    #[test]
    fn streams_are_always_awaited() {
        let mut c = Classifier::new(File::State);
        assert_eq!(c.classify(0, 10), Class::Demand);
        assert_eq!(c.classify(10, 10), Class::Demand);
    }
}
