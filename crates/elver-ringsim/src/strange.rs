//! Faults that a run has or has not, and what they have done to it.

use std::collections::BTreeMap;

use elver_core::ClientLimits;
use elver_sim::{Fault, Rng};
use elver_verbs::Time;

use crate::canary::Canary;
use crate::forger::Forger;

/// Faults that a run has or has not, as its seed says: [`crate::run_under`] chooses.
pub const SWITCHED: [Fault; 5] =
    [Fault::Deregister, Fault::DestroyDct, Fault::CqOverflow, Fault::ClockJump, Fault::Forge];

/// In a run that has such a fault, so many in a hundred things that are done are one; a forger is busier.
const PERCENT: u32 = 3;
const FORGE_PERCENT: u32 = 15;
/// Runs of a hundred that have each of them.
const RUNS_PERCENT: u32 = 20;
/// Completions that a node holds for its processes, where they may overflow.
const COMPLETIONS: [u32; 3] = [64, 128, 512];

/// Which of them a run has.
#[derive(Clone, Debug)]
pub(crate) struct Strange {
    has: Vec<Fault>,
    /// Completions that a node holds for its processes.
    pub(crate) completions: u32,
}

impl Strange {
    /// Those that a seed draws; or, where that is said, these alone; and what a planted bug needs.
    pub(crate) fn generate(
        rng: &mut Rng,
        only: Option<&[Fault]>,
        canary: Option<Canary>,
    ) -> Strange {
        let drawn = SWITCHED.map(|fault| (fault, rng.percent(RUNS_PERCENT)));
        let few = rng.pick(&COMPLETIONS);
        let needed = canary.and_then(Canary::needs);
        let has = drawn.into_iter().filter(|(fault, drawn)| {
            needed == Some(*fault) || only.map_or(*drawn, |only| only.contains(fault))
        });
        let has: Vec<Fault> = has.map(|(fault, _)| fault).collect();
        let overflows = has.contains(&Fault::CqOverflow);
        let usual = ClientLimits::default().completions;
        Strange { has, completions: if overflows { few } else { usual } }
    }

    /// Whether the run has it.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.has.contains(&fault)
    }

    /// How many things in a hundred are this fault.
    pub(crate) fn percent(&self, fault: Fault) -> u32 {
        match (self.has(fault), fault) {
            (false, _) => 0,
            (true, Fault::Forge) => FORGE_PERCENT,
            (true, _) => PERCENT,
        }
    }
}

/// What has befallen a run.
pub(crate) struct Fate {
    pub(crate) rng: Rng,
    pub(crate) forger: Forger,
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// When a clock has jumped last.
    pub(crate) jumped_at: Option<Time>,
    /// Until when what was under way may have had less time than it needs, since all clocks have jumped.
    pub(crate) apart_until: Option<Time>,
}

impl Fate {
    pub(crate) fn new(root: &Rng) -> Fate {
        Fate {
            rng: root.split("fate"),
            forger: Forger::new(root.split("forger")),
            faults: BTreeMap::new(),
            jumped_at: None,
            apart_until: None,
        }
    }
}

/// A node's processes take no completions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deaf {
    pub(crate) since: Time,
    pub(crate) until: Time,
}
