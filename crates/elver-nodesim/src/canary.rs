//! Bugs to plant: a model that does not catch them is worth nothing.
//!
//! They are planted between the cores and the harness, so that no product code knows of them: a check
//! that a device or a node does not make is one that forged packets pass, since they have what it asks
//! for.

use elver_core::{Completion, VqpId};
use elver_sim::{Plantable, Planter, canaries};

use crate::forge::Forger;

canaries! {
    "node";
    /// A completion is given twice.
    RepeatedCompletion = "repeated-completion",
    /// A completion goes to another VQP.
    StrayCompletion = "stray-completion",
    /// Two completions of one VQP change places.
    ReorderedCompletion = "reordered-completion",
    /// A completion is lost.
    LostCompletion = "lost-completion",
    /// A message, or what a READ returned, has a wrong byte.
    CorruptData = "corrupt-data",
    /// A receive is filled beyond what its message has.
    FilledTooFar = "filled-too-far",
    /// The message of a WRITE_WITH_IMM comes before the last byte that it writes.
    ToldBeforeWritten = "told-before-written",
    /// A message comes with the VQP of another sender.
    WrongSource = "wrong-source",
    /// The end of a connect is never told.
    LostConnect = "lost-connect",
    /// A WR passes the check of its remote region, which it fails.
    SkippedCheck = "skipped-check",
    /// A deregistration is done before leases and work in flight have ended.
    EarlyDeregistration = "early-deregistration",
    /// What a client held that died is kept.
    ZombieClient = "zombie-client",
    /// A region is kept that was told to be deregistered.
    LeakedRegion = "leaked-region",
    /// A VQP is connected in a way that its policy excludes.
    ExcludedVia = "excluded-via",
    /// A client's bad WR leaves a shared QP in its error state.
    StuckQueue = "stuck-queue",
    /// Connections take memory of the pool each.
    GrowingPool = "growing-pool",
    /// A device tells of an RC QP that broke that this got less far than it did, so that WRs are posted
    /// again which were executed.
    PostedAgain = "posted-again",
    /// A core takes what it cannot find out of a WR for that it was not executed, and posts it again.
    GuessedFate = "guessed-fate",
    /// A DCI repeats what it sent however long ago that may have been executed.
    UnboundedRepeat = "unbounded-repeat",
    /// A DC target counts time that it slept through as silence of its initiators.
    SleepAsSilence = "sleep-as-silence",
    /// A device does not take some of the answers of peers that they are there.
    UnheardAnswer = "unheard-answer",
    /// A node takes control messages that have not its Q_Key.
    UncheckedQkey = "unchecked-qkey",
    /// A DC target opens sessions for those who have not its access key.
    UncheckedKey = "unchecked-key",
    /// A connected QP takes packets from other addresses than its peer's.
    UncheckedSource = "unchecked-source",
    /// DC takes packets from other ports than devices'.
    UncheckedPort = "unchecked-port",
    /// A DC target believes where an initiator is who repeats no token of it.
    UncheckedToken = "unchecked-token",
}

impl Plantable for Canary {
    fn percent(self) -> u32 {
        match self {
            // A run has few chances for these, or needs many strikes.
            Canary::SkippedCheck | Canary::EarlyDeregistration | Canary::GrowingPool => 50,
            Canary::PostedAgain | Canary::UnheardAnswer => 100,
            Canary::GuessedFate | Canary::SleepAsSilence => 100,
            Canary::UnboundedRepeat => 50,
            // A check that there is not never strikes.
            _ if self.forger().is_some() => 100,
            _ => 10,
        }
    }
}

impl Canary {
    /// Whether it shows where what was executed is forgotten.
    pub(crate) fn needs_lapses(self) -> bool {
        matches!(self, Canary::GuessedFate | Canary::UnboundedRepeat | Canary::SleepAsSilence)
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

/// Spoils completions that a client has taken. `others` are VQPs of the client's.
pub(crate) fn spoil(planter: &mut Planter<Canary>, taken: &mut Vec<Completion>, others: &[VqpId]) {
    if taken.is_empty() || planter.plants_nothing() {
        return;
    }
    let chosen = planter.rng().index(taken.len());
    if planter.strikes(Canary::LostCompletion) {
        taken.remove(chosen);
    } else if planter.strikes(Canary::RepeatedCompletion) {
        taken.push(taken[chosen]);
    } else if let Some(other) = others.iter().find(|other| **other != taken[chosen].vqp)
        && planter.strikes(Canary::StrayCompletion)
    {
        taken[chosen].vqp = *other;
    } else if let Some(at) = (1..taken.len()).find(|at| one_queue(&taken[at - 1], &taken[*at]))
        && planter.strikes(Canary::ReorderedCompletion)
    {
        taken.swap(at - 1, at);
    } else if let Some(source) = taken[chosen].source
        && let Some(other) = others.iter().find(|other| **other != source)
        && planter.strikes(Canary::WrongSource)
    {
        taken[chosen].source = Some(*other);
    }
}

/// Whether two completions are of the same queue of one VQP.
fn one_queue(a: &Completion, b: &Completion) -> bool {
    a.vqp == b.vqp && a.wc.wr_id & 1 == b.wc.wr_id & 1
}
