//! Results of deletes, for a caller that missed its answer and asks again.
//!
//! A pod with an exec probe deletes a process every second for as long as it lives, so only the last ones are kept.

use std::collections::VecDeque;

use crate::container::ExitInfo;

/// A caller asks again within seconds.
const KEPT: usize = 128;

/// What a deleted process was.
pub(crate) type Result = (u32, ExitInfo);

#[derive(Debug)]
struct Entry {
    container: String,
    /// Empty: the container's first process.
    exec: String,
    result: Result,
}

/// The last results, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Deleted(VecDeque<Entry>);

impl Deleted {
    /// Keeps a result.
    pub(crate) fn keep(&mut self, container: &str, exec: &str, result: Result) {
        self.0
            .retain(|entry| entry.container != container || entry.exec != exec);
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Entry {
            container: container.to_owned(),
            exec: exec.to_owned(),
            result,
        });
    }

    /// The result, if it is among the last.
    pub(crate) fn get(&self, container: &str, exec: &str) -> Option<Result> {
        self.0
            .iter()
            .find(|entry| entry.container == container && entry.exec == exec)
            .map(|entry| entry.result)
    }

    /// A new container of this id has nothing to do with them.
    pub(crate) fn forget(&mut self, container: &str) {
        self.0.retain(|entry| entry.container != container);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn result(pid: u32) -> Result {
        let exit = ExitInfo {
            status: 0,
            at: SystemTime::UNIX_EPOCH,
        };
        (pid, exit)
    }

    #[test]
    fn only_the_last_are_kept() {
        let mut deleted = Deleted::default();
        for n in 0..1000 {
            deleted.keep("c", &format!("probe-{n}"), result(n));
        }
        assert_eq!(deleted.0.len(), KEPT);
        assert_eq!(deleted.get("c", "probe-999"), Some(result(999)));
        assert_eq!(deleted.get("c", "probe-0"), None);
        deleted.keep("c", "", result(1));
        deleted.keep("c", "", result(2));
        assert_eq!(deleted.get("c", ""), Some(result(2)));
        assert_eq!(deleted.get("c", "x"), None);
        deleted.keep("cc", "", result(3));
        deleted.forget("c");
        assert_eq!(deleted.get("c", ""), None);
        assert_eq!(deleted.get("cc", ""), Some(result(3)));
    }
}
