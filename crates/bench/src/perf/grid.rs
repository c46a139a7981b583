//! Parses lists of values, and makes the trials of all their combinations in a fixed order.

use super::{LaneChoice, Load, Op, PerfError, SIZES, Test, Trial};

/// The values to measure; each combination is one trial.
#[derive(Clone, PartialEq, Debug)]
pub struct Grid {
    /// The measured quantities.
    pub tests: Vec<Test>,
    /// The operations.
    pub ops: Vec<Op>,
    /// The bytes of a message; an empty list stands for the [`SIZES`] that an operation allows.
    pub sizes: Vec<u32>,
    /// The numbers of simultaneous streams.
    pub streams: Vec<u32>,
    /// The pending messages of a stream in tests of bandwidth.
    pub depths: Vec<u32>,
    /// True to measure both directions at once.
    pub bidirectional: bool,
    /// The background load.
    pub load: Option<Load>,
    /// The lane.
    pub lane: LaneChoice,
}

impl Grid {
    /// Returns the trials by test, operation, streams, depth, then size.
    ///
    /// # Errors
    /// An invalid value, or no valid trial is left.
    pub fn trials(&self) -> Result<Vec<Trial>, PerfError> {
        let mut trials = Vec::new();
        for test in self.tests.iter().copied() {
            for op in self.ops.iter().copied() {
                for streams in self.streams.iter().copied() {
                    let depths = if test == Test::Latency { &[1][..] } else { &self.depths };
                    for depth in depths.iter().copied() {
                        let (bidirectional, load, lane) = (self.bidirectional, self.load, self.lane);
                        for bytes in self.sizes_of(op, streams) {
                            let trial = Trial { test, op, bytes, streams, depth, bidirectional, load, lane };
                            let trial = trial.in_places();
                            // Two depths that do not fit are reduced to the same one.
                            if !trials.contains(&trial) {
                                trials.push(trial);
                            }
                        }
                    }
                }
            }
        }
        trials.iter().try_for_each(Trial::check)?;
        Ok(trials)
    }

    /// Returns the requested sizes; without a request, the default sizes that the operation allows
    /// and has room for.
    fn sizes_of(&self, op: Op, streams: u32) -> Vec<u32> {
        let (least, most) = op.sizes();
        match self.sizes.is_empty() {
            true if least == most => vec![least],
            true => SIZES
                .into_iter()
                .filter(|size| (least..=most).contains(size) && op.has_room(*size, streams))
                .collect(),
            false if least == most => vec![least],
            false => self.sizes.clone(),
        }
    }
}

/// Parses a number of bytes: digits, and K, M or G for units of 1024.
///
/// # Errors
/// The reason why `text` is not a size.
pub fn size(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return Err(format!("`{text}` is no size: write 64, 16K or 4M")),
    };
    let number = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| format!("`{text}` is no size: write 64, 16K or 4M"))
}

/// Parses sizes: one (`64`), a list (`8,4K`) or a sweep by powers of two (`8..4M`), also mixed.
///
/// # Errors
/// The reason why `text` is not a list of sizes.
pub fn sizes(text: &str) -> Result<Vec<u32>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        let Some((from, to)) = part.split_once("..") else {
            sizes.push(size(part)?);
            continue;
        };
        let (from, to) = (size(from)?, size(to.trim_start_matches('='))?);
        if from == 0 || from > to {
            return Err(format!("`{part}` is no sweep: write the smaller size first, as in 8..4M"));
        }
        sizes.extend(
            std::iter::successors(Some(from), |size| size.checked_mul(2)).take_while(|size| *size <= to),
        );
    }
    Ok(sizes)
}

/// Parses a load: `max`, or a rate in 10^6 bytes per second. Its messages have `bytes` bytes.
///
/// # Errors
/// The reason why `text` is not a load.
pub fn load(text: &str, bytes: u32) -> Result<Load, String> {
    if text == "max" {
        return Ok(Load { mb_per_s: None, bytes });
    }
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
    let rate = rate.ok_or_else(|| format!("`{text}` is no load: write max, or MB/s as in 500"))?;
    Ok(Load { mb_per_s: Some(rate), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, right) in [
            ("64", Ok(vec![64])),
            ("8,4K,4M", Ok(vec![8, 4096, 4 << 20])),
            ("8..64", Ok(vec![8, 16, 32, 64])),
            ("1,16k..64KiB", Ok(vec![1, 16 << 10, 32 << 10, 64 << 10])),
            ("3..20", Ok(vec![3, 6, 12])),
            ("64..8", Err(())),
            ("0..8", Err(())),
            ("", Err(())),
            ("8,", Err(())),
            ("4X", Err(())),
            ("-1", Err(())),
            ("4096G", Err(())),
        ] {
            assert_eq!(sizes(text).map_err(drop), right, "{text}");
        }
        assert_eq!(load("max", 8), Ok(Load { mb_per_s: None, bytes: 8 }));
        assert_eq!(load("2.5", 8), Ok(Load { mb_per_s: Some(2.5), bytes: 8 }));
        assert!(load("0", 8).is_err() && load("NaN", 8).is_err() && load("fast", 8).is_err());
    }

    #[test]
    fn every_combination_once_and_latency_has_no_depth() {
        let grid = Grid {
            tests: vec![Test::Latency, Test::Bandwidth],
            ops: vec![Op::Send, Op::Put],
            sizes: vec![8, 64],
            streams: vec![1, 4],
            depths: vec![4, 16],
            bidirectional: true,
            load: None,
            lane: LaneChoice::Auto,
        };
        let trials = grid.trials().unwrap();
        assert_eq!(trials.len(), 2 * 2 * 2 + 2 * 2 * 2 * 2);
        assert!(trials.iter().all(|trial| trial.bidirectional));
        assert!(trials.iter().all(|trial| (trial.test == Test::Latency) == (trial.depth == 1)));
        let usual = Grid { sizes: Vec::new(), ..grid.clone() };
        // The window has no room for four streams of puts of 4 MiB. Both depths are reduced to one
        // with 1 MiB, and with 4 streams of 256 KiB.
        let (no_room, of_one_depth) = (3, 4);
        assert_eq!(usual.trials().unwrap().len(), trials.len() / 2 * SIZES.len() - no_room - of_one_depth);
        assert!(Grid { sizes: vec![5 << 20], ..grid }.trials().is_err());
    }
}
