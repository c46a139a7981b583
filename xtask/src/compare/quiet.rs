//! Detects other load on the cores, which makes measurements useless.
//!
//! It reads the counters of the processor while this process is idle, so it shows the present load.
//! A load average would still include a build that ended a minute ago.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result, ensure};

/// The share of a core's time above which other load disturbs polling threads.
const BUSY: f64 = 0.08;

/// The time between two readings: a few dozen ticks of the counters.
const LOOK: Duration = Duration::from_millis(500);

const REFUSED: &str = "other processes use the cores, so nothing is written: repeat it later, or write the results with --anyway";

/// The load of other processes on some cores.
pub(crate) struct CoreLoad {
    cpus: Vec<usize>,
    /// The number of samples with other load.
    seen: u32,
    /// The largest share of a core that other processes used.
    most: f64,
}

impl CoreLoad {
    /// Watches these cores; no sample is taken yet.
    pub(crate) fn on(cpus: impl IntoIterator<Item = usize>) -> Self {
        Self { cpus: cpus.into_iter().collect(), seen: 0, most: 0.0 }
    }

    /// Samples the load while this process is idle.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub(crate) fn sample(&mut self) -> Result<()> {
        let read = || fs::read_to_string("/proc/stat").context("cannot read /proc/stat");
        let before = read()?;
        thread::sleep(LOOK);
        let used = self.note(&before, &read()?)?;
        if used > BUSY {
            println!("other processes use {:.0} % of a core", used * 100.0);
        }
        Ok(())
    }

    /// Returns the largest share of a core that was used between two readings.
    fn note(&mut self, before: &str, after: &str) -> Result<f64> {
        let mut most = 0.0_f64;
        for cpu in &self.cpus {
            most = most.max(used(before, after, *cpu).with_context(|| format!("no core {cpu} here"))?);
        }
        if most > BUSY {
            self.seen += 1;
            self.most = self.most.max(most);
        }
        Ok(most)
    }

    /// Refuses to write results that other load disturbed.
    ///
    /// # Errors
    /// There was other load, `write` is set and `anyway` is not.
    pub(crate) fn permit(&self, write: bool, anyway: bool) -> Result<()> {
        ensure!(self.seen == 0 || !write || anyway, REFUSED);
        Ok(())
    }

    /// Returns a warning for the report if there was other load.
    pub(crate) fn warning(&self) -> Option<String> {
        let (seen, most) = (self.seen, self.most * 100.0);
        let text = || {
            format!(
                "Other processes used up to {most:.0} % of a core in {seen} samples: these results are unreliable."
            )
        };
        (seen > 0).then(text)
    }
}

/// Returns the share of its time in which a core was not idle.
fn used(before: &str, after: &str, cpu: usize) -> Option<f64> {
    let [before, after] = [ticks(before, cpu)?, ticks(after, cpu)?];
    let [idle, all] = [0, 1].map(|which| after[which].saturating_sub(before[which]));
    Some(all.saturating_sub(idle) as f64 / all.max(1) as f64)
}

/// Returns the idle ticks of a core since the machine started, and all its ticks.
fn ticks(stat: &str, cpu: usize) -> Option<[u64; 2]> {
    let name = format!("cpu{cpu} ");
    let fields = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    // User, nice, system, idle, iowait, irq, softirq, steal. The first two include guest time.
    let fields: Vec<u64> =
        fields.split_whitespace().take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    Some([fields.get(3)? + fields.get(4)?, fields.iter().sum()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_neither_idle_nor_iowait_is_used() {
        let before = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 0 0 0 100 10 0 0 0 0 0\ncpu1 5 0 0 100 0 0 0 0 0 0\n";
        let after = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 5 5 170 20 0 0 0 7 0\ncpu1 5 0 0 150 0 0 0 50 0 0\n";
        assert_eq!(used(before, after, 0), Some(0.2));
        assert_eq!(used(before, after, 1), Some(0.5), "time taken by the host counts as used");
        assert_eq!(used(before, before, 1), Some(0.0));
        assert_eq!(used(before, after, 2), None);
    }

    #[test]
    fn disturbed_results_are_refused() {
        let idle = "cpu0 0 0 0 100 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0\n";
        let later = "cpu0 1 0 0 199 0 0 0 0\ncpu1 50 0 0 150 0 0 0 0\n";
        let sampled = |cpus: &[usize]| {
            let mut others = CoreLoad::on(cpus.iter().copied());
            others.note(idle, later).expect("both cores are there");
            others
        };
        let quiet = sampled(&[0]);
        assert!(quiet.permit(true, false).is_ok() && quiet.warning().is_none());
        let disturbed = sampled(&[0, 1]);
        assert!(disturbed.permit(true, false).is_err_and(|why| why.to_string() == REFUSED));
        assert!(disturbed.permit(false, false).is_ok() && disturbed.permit(true, true).is_ok());
        assert!(disturbed.warning().is_some_and(|text| text.contains("up to 50 %")));
        assert!(CoreLoad::on([2]).note(idle, later).is_err());
    }
}
