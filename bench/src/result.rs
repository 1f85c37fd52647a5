//! Result lines.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

/// One line: what ours took, what the peer took, in one run.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) row: &'static str,
    /// Median.
    pub(crate) ours: f64,
    /// Median, or the bound where there is no peer, or what there was before.
    pub(crate) peer: f64,
    /// `ours / peer`.
    pub(crate) ratio: f64,
    pub(crate) unit: &'static str,
    /// Repetitions.
    pub(crate) n: usize,
    /// What the peer is.
    pub(crate) against: &'static str,
}

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Results(PathBuf);

impl Results {
    pub(crate) fn new(dir: &Path) -> anyhow::Result<Results> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Results(dir.to_owned()))
    }

    /// Compares medians, prints the row and appends its line.
    pub(crate) fn add(
        &self,
        row: &'static str,
        ours: &[f64],
        peer: &[f64],
        unit: &'static str,
        against: &'static str,
    ) -> anyhow::Result<()> {
        let (ours_median, peer_median) = (median(ours), median(peer));
        let line = Line {
            row,
            ours: ours_median,
            peer: peer_median,
            ratio: ratio(ours_median, peer_median),
            unit,
            n: ours.len(),
            against,
        };
        println!(
            "[bench] {row:<28} {:>10.1} {unit} against {:>10.1} {unit} ({against}): {:.2}x, n = {}",
            line.ours, line.peer, line.ratio, line.n
        );
        let path = self.0.join(format!("{row}.jsonl"));
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        writeln!(file, "{}", serde_json::to_string(&line)?)?;
        Ok(())
    }
}

/// Nothing against nothing is as much.
fn ratio(ours: f64, peer: f64) -> f64 {
    if ours == peer { 1.0 } else { ours / peer }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_as_much_as_nothing() {
        assert_eq!(ratio(0.0, 0.0), 1.0);
        assert_eq!(ratio(1.0, 4.0), 0.25);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
