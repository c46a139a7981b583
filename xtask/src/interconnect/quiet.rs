//! Whether two cores are ours alone.
//!
//! Asked of the processor's own counters while this process does nothing, so it speaks of now: a load average would
//! still hold what was built a minute ago.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result};

/// The part of a core's time from which on two polling threads are no longer undisturbed.
const BUSY: f64 = 0.08;

/// How long is looked: a few dozen ticks of the counters.
const LOOK: Duration = Duration::from_millis(500);

/// What others took of the cores while this process slept; nothing, where that is little.
///
/// # Errors
/// The counters cannot be read.
pub(super) fn disturbed(cpus: [usize; 2]) -> Result<Option<f64>> {
    let read = || fs::read_to_string("/proc/stat").context("cannot read /proc/stat");
    let before = read()?;
    thread::sleep(LOOK);
    let after = read()?;
    let used = cpus.map(|cpu| used(&before, &after, cpu).with_context(|| format!("no core {cpu} here")));
    let [first, second] = used;
    let most = first?.max(second?);
    Ok((most > BUSY).then_some(most))
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
}
