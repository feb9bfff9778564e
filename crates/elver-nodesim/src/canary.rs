//! Bugs to plant: a model that does not catch them is worth nothing.
//!
//! They are planted between the cores and the harness, so that no product code knows of them: a check
//! that a device or a node does not make is one that forged packets pass, since they have what it asks
//! for.

use std::fmt;
use std::str::FromStr;

use elver_core::{Completion, VqpId};
use elver_sim::Rng;
use thiserror::Error;

use crate::forge::Forger;

/// A bug to plant in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Canary {
    /// A completion is given twice.
    RepeatedCompletion,
    /// A completion goes to another VQP.
    StrayCompletion,
    /// Two completions of one VQP change places.
    ReorderedCompletion,
    /// A completion is lost.
    LostCompletion,
    /// A message, or what a READ returned, has a wrong byte.
    CorruptData,
    /// A message comes with the VQP of another sender.
    WrongSource,
    /// The end of a connect is never told.
    LostConnect,
    /// A WR passes the check of its remote region, which it fails.
    SkippedCheck,
    /// A deregistration is done before leases and work in flight have ended.
    EarlyDeregistration,
    /// What a client held that died is kept.
    ZombieClient,
    /// A region is kept that was told to be deregistered.
    LeakedRegion,
    /// A VQP is connected in a way that its policy excludes.
    ExcludedVia,
    /// A client's bad WR leaves a shared QP in its error state.
    StuckQueue,
    /// Connections take memory of the pool each.
    GrowingPool,
    /// A device tells of an RC QP that broke that this got less far than it did, so that WRs are posted
    /// again which were executed.
    PostedAgain,
    /// A device does not take some of the answers of peers that they are there.
    UnheardAnswer,
    /// A node takes control messages that have not its Q_Key.
    UncheckedQkey,
    /// A DC target opens sessions for those who have not its access key.
    UncheckedKey,
    /// A connected QP takes packets from other addresses than its peer's.
    UncheckedSource,
    /// DC takes packets from other ports than devices'.
    UncheckedPort,
    /// A DC target believes where an initiator is who repeats no token of it.
    UncheckedToken,
}

const NAMES: [(Canary, &str); 21] = [
    (Canary::RepeatedCompletion, "repeated-completion"),
    (Canary::StrayCompletion, "stray-completion"),
    (Canary::ReorderedCompletion, "reordered-completion"),
    (Canary::LostCompletion, "lost-completion"),
    (Canary::CorruptData, "corrupt-data"),
    (Canary::WrongSource, "wrong-source"),
    (Canary::LostConnect, "lost-connect"),
    (Canary::SkippedCheck, "skipped-check"),
    (Canary::EarlyDeregistration, "early-deregistration"),
    (Canary::ZombieClient, "zombie-client"),
    (Canary::LeakedRegion, "leaked-region"),
    (Canary::ExcludedVia, "excluded-via"),
    (Canary::StuckQueue, "stuck-queue"),
    (Canary::GrowingPool, "growing-pool"),
    (Canary::PostedAgain, "posted-again"),
    (Canary::UnheardAnswer, "unheard-answer"),
    (Canary::UncheckedQkey, "unchecked-qkey"),
    (Canary::UncheckedKey, "unchecked-key"),
    (Canary::UncheckedSource, "unchecked-source"),
    (Canary::UncheckedPort, "unchecked-port"),
    (Canary::UncheckedToken, "unchecked-token"),
];

impl Canary {
    /// Every canary.
    pub fn all() -> impl Iterator<Item = Canary> {
        NAMES.into_iter().map(|(canary, _)| canary)
    }
}

impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMES.iter().find(|(canary, _)| canary == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// No canary has such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown canary `{0}`; `elver sim node --list-canaries` lists them")]
pub struct UnknownCanary(pub String);

impl FromStr for Canary {
    type Err = UnknownCanary;

    fn from_str(name: &str) -> Result<Canary, UnknownCanary> {
        let named = NAMES.into_iter().find(|(_, given)| *given == name);
        named.map(|(canary, _)| canary).ok_or_else(|| UnknownCanary(name.into()))
    }
}

impl Canary {
    /// Strikes in a hundred chances: often enough for a short run, seldom enough to look like a bug.
    fn percent(self) -> u32 {
        match self {
            // A run has few chances for these, or needs many strikes.
            Canary::SkippedCheck | Canary::EarlyDeregistration | Canary::GrowingPool => 50,
            Canary::PostedAgain | Canary::UnheardAnswer => 100,
            // A check that there is not never strikes.
            _ if self.forger().is_some() => 100,
            _ => 10,
        }
    }

    /// Who must forge for it to strike.
    pub(crate) fn forger(self) -> Option<Forger> {
        match self {
            Canary::UncheckedQkey | Canary::UncheckedKey | Canary::UncheckedSource => {
                Some(Forger::Stranger)
            }
            Canary::UncheckedPort => Some(Forger::Process),
            Canary::UncheckedToken => Some(Forger::Member),
            _ => None,
        }
    }
}

/// Plants a run's bug.
#[derive(Debug)]
pub(crate) struct Planter {
    canary: Option<Canary>,
    rng: Rng,
    pub(crate) strikes: u64,
}

impl Planter {
    pub(crate) fn new(canary: Option<Canary>, rng: Rng) -> Planter {
        Planter { canary, rng, strikes: 0 }
    }

    /// Whether the run's bug is this one, and strikes now.
    pub(crate) fn strikes(&mut self, canary: Canary) -> bool {
        let struck = self.canary == Some(canary) && self.rng.percent(canary.percent());
        self.strikes += u64::from(struck);
        struck
    }

    /// Spoils completions that a client has taken. `others` are VQPs of the client's.
    pub(crate) fn completions(&mut self, taken: &mut Vec<Completion>, others: &[VqpId]) {
        if taken.is_empty() || self.canary.is_none() {
            return;
        }
        let chosen = self.rng.index(taken.len());
        if self.strikes(Canary::LostCompletion) {
            taken.remove(chosen);
        } else if self.strikes(Canary::RepeatedCompletion) {
            taken.push(taken[chosen]);
        } else if let Some(other) = others.iter().find(|other| **other != taken[chosen].vqp)
            && self.strikes(Canary::StrayCompletion)
        {
            taken[chosen].vqp = *other;
        } else if let Some(at) = (1..taken.len()).find(|at| one_queue(&taken[at - 1], &taken[*at]))
            && self.strikes(Canary::ReorderedCompletion)
        {
            taken.swap(at - 1, at);
        } else if let Some(source) = taken[chosen].source
            && let Some(other) = others.iter().find(|other| **other != source)
            && self.strikes(Canary::WrongSource)
        {
            taken[chosen].source = Some(*other);
        }
    }
}

/// Whether two completions are of the same queue of one VQP.
fn one_queue(a: &Completion, b: &Completion) -> bool {
    a.vqp == b.vqp && a.wc.wr_id & 1 == b.wc.wr_id & 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_return() {
        for canary in Canary::all() {
            assert_eq!(canary.to_string().parse(), Ok(canary));
        }
        assert!("nothing".parse::<Canary>().is_err());
    }
}
