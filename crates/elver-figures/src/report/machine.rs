//! What the machine is like while it is measured: whether its cores are two, and whether somebody else
//! had them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use elver_console::say;
use elver_testbed::seat::{cores, has_missed_a_seat, pin};
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
/// Trips between two looks at that: where somebody else has one of the cores, a trip takes two turns of threads.
const TRIPS_PER_LOOK: u64 = 16;
/// Shares of one core that others, or the hypervisor, may take before it is said.
const OTHERS_MAX: f64 = 0.05;
const STOLEN_MAX: f64 = 0.02;

/// What two cores are like: nothing of it is to be had where there is one.
#[derive(Clone, Copy)]
struct Probe {
    line_ns: f64,
    /// How many times as long one core takes beside the other.
    slowed: f64,
}

/// A look at the machine before a benchmark.
pub(crate) struct Watch {
    before: Option<Probe>,
    load: Option<Load>,
    since: Instant,
}

/// What it was like from then on.
pub(crate) struct Machine {
    /// Before and after.
    probes: Option<[Probe; 2]>,
    /// A thread could not be put on its core.
    missed_a_seat: bool,
    /// Cores' worth of time that others took, and that the hypervisor did; none if Linux does not
    /// tell.
    shares: Option<[f64; 2]>,
    /// Tasks that could run, at the end.
    runnable: Option<u64>,
}

impl Probe {
    fn of(cores: usize) -> Option<Probe> {
        (cores > 1).then(|| Probe { line_ns: line_round_trip_ns(), slowed: slowed_beside() })
    }
}

impl Watch {
    pub(crate) fn begin() -> Watch {
        Watch { before: Probe::of(cores()), load: Load::now(), since: Instant::now() }
    }

    pub(crate) fn end(&self) -> Machine {
        let runnable = Load::runnable();
        let shares = Load::now().zip(self.load.as_ref()).map(|(now, before)| {
            let seconds = self.since.elapsed().as_secs_f64();
            now.since(before).map(|spent| spent / seconds)
        });
        let probes = self.before.zip(Probe::of(cores())).map(<[Probe; 2]>::from);
        Machine { probes, missed_a_seat: has_missed_a_seat(), shares, runnable }
    }
}

impl Machine {
    /// The worse of before and after.
    fn slowed(&self) -> Option<f64> {
        self.probes.map(|[before, after]| before.slowed.max(after.slowed))
    }

    fn are_siblings(&self) -> Option<bool> {
        self.slowed().map(|slowed| slowed >= siblings::FACTOR)
    }

    /// Why these figures should not be quoted; nothing if they may.
    pub(crate) fn objections(&self) -> Vec<String> {
        let mut objections = Vec::new();
        if self.probes.is_none() {
            objections.push("there is one core, which both ends share".to_string());
        }
        if self.missed_a_seat {
            objections.push("a thread could not be put on its core".to_string());
        }
        if self.are_siblings() == Some(true) {
            objections.push("the two cores are threads of one core".to_string());
        }
        if self.probes.is_some_and(|probes| probes.iter().any(|one| one.line_ns > DISTURBED_NS)) {
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
        let trips = self.probes.map(|probes| probes.map(|probe| contract::us(probe.line_ns)));
        let [before, after] = trips.map_or([None; 2], |trips| trips.map(Some));
        object["line_round_trip_ns"] = json!({ "before": before, "after": after });
        object["cores"] = json!({
            "slowed_beside": self.slowed().map(contract::us),
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
        match self.probes.zip(self.slowed()) {
            Some(([before, after], slowed)) => say!(
                "{beside}; a cache line's round trip {:.0} ns before, {:.0} ns after; beside the other a core takes {slowed:.2} times as long",
                before.line_ns,
                after.line_ns
            ),
            None => say!("{beside}; on one core"),
        }
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
        let before = Probe { line_ns: 120.0, slowed: 1.0 };
        let probes = Some([before, Probe { line_ns: after_ns, slowed }]);
        Machine { probes, missed_a_seat: false, shares: Some(shares), runnable: None }
    }

    /// Where one core is to be had: no probe, which would take turns for seconds.
    fn one_core() -> Machine {
        assert!(Probe::of(1).is_none());
        Machine { probes: None, ..machine(0.0, 0.0, [0.0; 2]) }
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
            (one_core(), "there is one core"),
            (Machine { missed_a_seat: true, ..machine(120.0, 1.0, [0.0; 2]) }, "put on its core"),
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
