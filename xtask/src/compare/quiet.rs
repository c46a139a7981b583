//! Whether the cores are ours alone: who is disturbed measures somebody else, and writes nothing.
//!
//! Asked of the processor's own counters while this process does nothing, so it speaks of now: a load average would
//! still hold what was built a minute ago.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result, ensure};

/// The part of a core's time from which on threads that poll are no longer undisturbed.
const BUSY: f64 = 0.08;

/// How long is looked: a few dozen ticks of the counters.
const LOOK: Duration = Duration::from_millis(500);

const REFUSED: &str = "something else uses the cores, so nothing is written: come back later, or use --anyway to write what comes out";

/// What else uses the cores.
pub(crate) struct Others {
    cpus: Vec<usize>,
    /// How often something did.
    seen: u32,
    /// The largest part of a core.
    most: f64,
}

impl Others {
    /// Nothing seen yet on these cores.
    pub(crate) fn on(cpus: impl IntoIterator<Item = usize>) -> Self {
        Self { cpus: cpus.into_iter().collect(), seen: 0, most: 0.0 }
    }

    /// Looks while this process does nothing.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub(crate) fn look(&mut self) -> Result<()> {
        let read = || fs::read_to_string("/proc/stat").context("cannot read /proc/stat");
        let before = read()?;
        thread::sleep(LOOK);
        let used = self.note(&before, &read()?)?;
        if used > BUSY {
            println!("something else uses {:.0} % of a core", used * 100.0);
        }
        Ok(())
    }

    /// What others took of a core, where they took most, between these two readings.
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

    /// Refuses what is to be written though something else used the cores.
    ///
    /// # Errors
    /// It did, and nobody said that this does not matter.
    pub(crate) fn permit(&self, write: bool, anyway: bool) -> Result<()> {
        ensure!(self.seen == 0 || !write || anyway, REFUSED);
        Ok(())
    }

    /// A line above what was measured though something else used the cores.
    pub(crate) fn said(&self) -> Option<String> {
        let (seen, most) = (self.seen, self.most * 100.0);
        let said = || {
            format!(
                "Something else used up to {most:.0} % of a core, seen {seen} times: these numbers mean little."
            )
        };
        (seen > 0).then(said)
    }
}

/// The part of its time in which a core was not idle.
fn used(before: &str, after: &str, cpu: usize) -> Option<f64> {
    let [before, after] = [ticks(before, cpu)?, ticks(after, cpu)?];
    let [idle, all] = [0, 1].map(|which| after[which].saturating_sub(before[which]));
    Some(all.saturating_sub(idle) as f64 / all.max(1) as f64)
}

/// Idle ticks of a core since the start of the machine, and all.
fn ticks(stat: &str, cpu: usize) -> Option<[u64; 2]> {
    let name = format!("cpu{cpu} ");
    let fields = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    // User, nice, system, idle, waiting for input, interrupts twice, stolen; guests are in the first two already.
    let fields: Vec<u64> =
        fields.split_whitespace().take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    Some([fields.get(3)? + fields.get(4)?, fields.iter().sum()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_waiting_is_used() {
        let before = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 0 0 0 100 10 0 0 0 0 0\ncpu1 5 0 0 100 0 0 0 0 0 0\n";
        let after = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 5 5 170 20 0 0 0 7 0\ncpu1 5 0 0 150 0 0 0 50 0 0\n";
        assert_eq!(used(before, after, 0), Some(0.2));
        assert_eq!(used(before, after, 1), Some(0.5), "what the host took is gone too");
        assert_eq!(used(before, before, 1), Some(0.0));
        assert_eq!(used(before, after, 2), None);
    }

    #[test]
    fn what_is_disturbed_is_not_written() {
        let idle = "cpu0 0 0 0 100 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0\n";
        let later = "cpu0 1 0 0 199 0 0 0 0\ncpu1 50 0 0 150 0 0 0 0\n";
        let looked = |cpus: &[usize]| {
            let mut others = Others::on(cpus.iter().copied());
            others.note(idle, later).expect("both cores are there");
            others
        };
        let quiet = looked(&[0]);
        assert!(quiet.permit(true, false).is_ok() && quiet.said().is_none());
        let disturbed = looked(&[0, 1]);
        assert!(disturbed.permit(true, false).is_err_and(|why| why.to_string() == REFUSED));
        assert!(disturbed.permit(false, false).is_ok() && disturbed.permit(true, true).is_ok());
        assert!(disturbed.said().is_some_and(|said| said.contains("up to 50 %")));
        assert!(Others::on([2]).note(idle, later).is_err());
    }
}
