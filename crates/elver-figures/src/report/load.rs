//! Who has the machine's cores, as Linux counts it in ticks.

use std::fs;

/// Ticks of a second, as `/proc` has them on every Linux.
const TICKS_PER_S: f64 = 100.0;

/// Ticks so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Of all processes.
    all: u64,
    /// Of this one, and of those that it started and that have ended.
    own: u64,
    /// That the hypervisor gave to others.
    stolen: u64,
}

impl Load {
    /// So far; none if Linux does not tell.
    pub(crate) fn now() -> Option<Load> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Load::of(&stat, &own)
    }

    /// Seconds of a core since then: those that others had, and those that were stolen. Processes of
    /// ours that still run count as others.
    pub(crate) fn since(&self, before: &Load) -> [f64; 2] {
        let all = self.all.saturating_sub(before.all);
        let own = self.own.saturating_sub(before.own);
        let stolen = self.stolen.saturating_sub(before.stolen);
        [all.saturating_sub(own), stolen].map(|ticks| ticks as f64 / TICKS_PER_S)
    }

    /// Tasks that run or could, now.
    pub(crate) fn runnable() -> Option<u64> {
        let text = fs::read_to_string("/proc/loadavg").ok()?;
        text.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
    }

    fn of(stat: &str, own: &str) -> Option<Load> {
        let cpu = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let cpu: Vec<u64> = cpu.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let all = cpu.get(..3)?.iter().sum();
        let stolen = cpu.get(7).copied().unwrap_or(0);
        // Behind the name, which may have anything in it: field 3 and on.
        let (_, fields) = own.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let times = fields.get(11..15)?.iter().map(|word| word.parse::<u64>().ok());
        Some(Load { all, own: times.sum::<Option<u64>>()?, stolen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 20 30 4000 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n";
    const OWN: &str = "1 (a ) b) S 2 3 4 5 6 7 8 9 10 11 40 30 20 10 20 0 1 0 99 0 0";

    #[test]
    fn what_linux_tells_is_read() {
        let load = Load::of(STAT, OWN).unwrap();
        assert_eq!(load, Load { all: 150, own: 100, stolen: 8 });
        let later = Load { all: 400, own: 300, stolen: 58 };
        assert_eq!(later.since(&load), [0.5, 0.5]);
        assert_eq!(Load::of("", OWN), None);
        assert!(Load::now().is_some());
        assert!(Load::runnable().unwrap() >= 1);
    }
}
