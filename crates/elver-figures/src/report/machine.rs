//! What the machine is like while it is measured: whether its cores are two, and whether somebody else
//! had them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use elver_console::say;
use elver_testbed::seat::pin;
use serde_json::{Value, json};

use crate::report::contract;
use crate::report::load::Load;
use crate::report::siblings::{self, slowed_beside};

/// Round trips of a cache line above this no two cores have: somebody else ran on one of them meanwhile.
const DISTURBED_NS: f64 = 1_000.0;
/// Cache line round trips that a probe takes.
const LINE_TRIPS: u64 = 200_000;
/// A probe that takes longer has seen enough.
const PROBE_MAX: Duration = Duration::from_millis(500);
/// Trips between two looks at that.
const TRIPS_PER_LOOK: u64 = 1_024;
/// Shares of one core that others, or the hypervisor, may take before it is said.
const OTHERS_MAX: f64 = 0.05;
const STOLEN_MAX: f64 = 0.02;

/// A look at the machine before a benchmark.
pub(crate) struct Watch {
    before_ns: f64,
    slowed: f64,
    load: Option<Load>,
    since: Instant,
}

/// What it was like from then on.
pub(crate) struct Machine {
    before_ns: f64,
    after_ns: f64,
    /// How many times as long one core takes beside the other, the worse of before and after.
    slowed: f64,
    /// Cores' worth of time that others took, and that the hypervisor did; none if Linux does not
    /// tell.
    shares: Option<[f64; 2]>,
    /// Tasks that could run, at the end.
    runnable: Option<u64>,
}

impl Watch {
    pub(crate) fn begin() -> Watch {
        let before_ns = line_round_trip_ns();
        let slowed = slowed_beside();
        Watch { before_ns, slowed, load: Load::now(), since: Instant::now() }
    }

    pub(crate) fn end(&self) -> Machine {
        let runnable = Load::runnable();
        let shares = Load::now().zip(self.load.as_ref()).map(|(now, before)| {
            let seconds = self.since.elapsed().as_secs_f64();
            now.since(before).map(|spent| spent / seconds)
        });
        let slowed = self.slowed.max(slowed_beside());
        let after_ns = line_round_trip_ns();
        Machine { before_ns: self.before_ns, after_ns, slowed, shares, runnable }
    }
}

impl Machine {
    fn are_siblings(&self) -> bool {
        self.slowed >= siblings::FACTOR
    }

    /// Why these figures should not be quoted; nothing if they may.
    pub(crate) fn objections(&self) -> Vec<String> {
        let mut objections = Vec::new();
        if self.are_siblings() {
            objections.push("the two cores are threads of one core".to_string());
        }
        if self.before_ns.max(self.after_ns) > DISTURBED_NS {
            objections.push("one of the two cores was not free".to_string());
        }
        if let Some([others, stolen]) = self.shares {
            if others > OTHERS_MAX {
                objections.push(format!("other processes had {others:.2} cores' time meanwhile"));
            }
            if stolen > STOLEN_MAX {
                objections.push(format!("the hypervisor took {stolen:.2} cores' time meanwhile"));
            }
        }
        objections
    }

    /// Into the JSON of a benchmark.
    pub(crate) fn tell(&self, object: &mut Value) {
        let objections = self.objections();
        object["line_round_trip_ns"] = json!({
            "before": contract::us(self.before_ns),
            "after": contract::us(self.after_ns),
        });
        object["cores"] = json!({
            "slowed_beside": contract::us(self.slowed),
            "siblings": self.are_siblings(),
        });
        object["machine"] = json!({
            "others_cores": self.shares.map(|shares| contract::us(shares[0])),
            "stolen_cores": self.shares.map(|shares| contract::us(shares[1])),
            "runnable": self.runnable,
        });
        object["sound"] = objections.is_empty().into();
        object["objections"] = objections.into();
    }

    /// For people: what the cores are like, behind what else is in that line.
    pub(crate) fn print(&self, beside: &str) {
        let (before, after, slowed) = (self.before_ns, self.after_ns, self.slowed);
        say!(
            "{beside}; a cache line's round trip {before:.0} ns before, {after:.0} ns after; beside the other a core takes {slowed:.2} times as long"
        );
        for objection in self.objections() {
            say!("DO NOT QUOTE THESE FIGURES: {objection}");
        }
    }
}

/// Nanoseconds that a cache line takes to the other core and back.
fn line_round_trip_ns() -> f64 {
    let line = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut trip = 0;
            loop {
                match line.load(Ordering::Acquire) {
                    LAST => return,
                    asked if asked == 2 * trip + 1 => {
                        trip += 1;
                        line.store(2 * trip, Ordering::Release);
                    }
                    _ => std::hint::spin_loop(),
                }
            }
        });
        let timed = scope.spawn(|| {
            pin(0);
            let start = Instant::now();
            let mut trips = 0;
            while trips < LINE_TRIPS {
                line.store(2 * trips + 1, Ordering::Release);
                trips += 1;
                while line.load(Ordering::Acquire) != 2 * trips {
                    std::hint::spin_loop();
                }
                if trips.is_multiple_of(TRIPS_PER_LOOK) && start.elapsed() > PROBE_MAX {
                    break;
                }
            }
            let took = start.elapsed();
            line.store(LAST, Ordering::Release);
            took.as_nanos() as f64 / trips as f64
        });
        timed.join().unwrap_or(f64::NAN)
    })
}

/// What ends a probe.
const LAST: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(after_ns: f64, slowed: f64, shares: [f64; 2]) -> Machine {
        Machine { before_ns: 120.0, after_ns, slowed, shares: Some(shares), runnable: None }
    }

    #[test]
    fn two_real_cores_that_nobody_else_has_are_sound() {
        assert!(machine(130.0, 1.01, [0.01, 0.0]).objections().is_empty());
    }

    #[test]
    fn each_fault_of_a_machine_is_said() {
        for (machine, word) in [
            (machine(120.0, 1.6, [0.0; 2]), "threads of one core"),
            (machine(6_000.0, 1.0, [0.0; 2]), "not free"),
            (machine(120.0, 1.0, [0.7, 0.0]), "other processes had 0.70"),
            (machine(120.0, 1.0, [0.0, 0.5]), "hypervisor took 0.50"),
        ] {
            let objections = machine.objections();
            assert_eq!(objections.len(), 1, "{objections:?}");
            assert!(objections[0].contains(word), "{objections:?}");
            let mut told = json!({});
            machine.tell(&mut told);
            assert_eq!(told["sound"], false);
        }
    }
}
