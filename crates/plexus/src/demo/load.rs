//! The load that other programs put on the machine while the demonstration compares.

use std::fs;

/// The CPU time in clock ticks since the machine and this process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CpuTicks {
    /// The time of all cores, idle or not.
    all: u64,
    /// The time in which programs, or other virtual machines, used the cores.
    used: u64,
    /// The time that this process and its ended children used.
    own: u64,
}

impl CpuTicks {
    /// Returns the current values; `None` if `/proc` cannot be read.
    pub(super) fn now() -> Option<Self> {
        let read = |path| fs::read_to_string(path).ok();
        Self::parse(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    /// Parses the files `/proc/stat` and `/proc/self/stat`.
    fn parse(machine: &str, process: &str) -> Option<Self> {
        let numbers = machine.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let numbers = numbers.map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        let [user, nice, system, .., steal] = *numbers.get(..8)? else { return None };
        // The name of the program, in parentheses, may contain spaces.
        let process: Vec<&str> = process.rsplit_once(") ")?.1.split(' ').collect();
        // utime, stime, cutime and cstime are the fields 14 to 17 of the whole line.
        let own = process.get(11..15)?.iter().map(|field| field.parse::<u64>());
        Some(Self {
            all: numbers[..8].iter().sum(),
            used: user + nice + system + steal,
            own: own.sum::<Result<_, _>>().ok()?,
        })
    }

    /// Returns the share of the machine's time since `earlier` that other programs used.
    pub(super) fn others_since(&self, earlier: &Self) -> f64 {
        // The system may correct its numbers downwards.
        let since = u64::saturating_sub;
        let others = since(self.used, earlier.used).saturating_sub(since(self.own, earlier.own));
        others as f64 / since(self.all, earlier.all).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(user: u64, idle: u64, own: u64) -> CpuTicks {
        let machine = format!("cpu  {user} 1 2 {idle} 5 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        let process = format!("7 (a (b) c) S 1 7 7 0 -1 4194560 9 0 0 0 {own} 10 20 30 20 0 1 0 99 0\n");
        CpuTicks::parse(&machine, &process).unwrap()
    }

    #[test]
    fn the_share_of_other_programs_is_what_the_own_processes_did_not_use() {
        assert_eq!(ticks(100, 200, 40), CpuTicks { all: 329, used: 111, own: 100 });
        let before = ticks(100, 200, 40);
        assert_eq!(ticks(180, 220, 100).others_since(&before), 0.2);
        assert_eq!(ticks(150, 250, 100).others_since(&before), 0.0, "own ticks may be counted later");
        assert_eq!(before.others_since(&before), 0.0);
        assert_eq!(CpuTicks::parse("cpu 1 2 3\n", "7 (a) S"), None);
    }

    #[test]
    fn the_files_of_this_system_can_be_read() {
        assert!(CpuTicks::now().is_some_and(|now| now.all > now.used && now.used > 0));
    }
}
