//! Look-ups of regions at their owners: who waits for each, which have their turn, and which have waited for
//! too long.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use elver_verbs::Time;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::turns::{Region, Turns};
use crate::VqpId;
use crate::ids::{OpId, PeerId};

/// Whether an owner gets on with its look-ups is looked at so long after each began.
pub(crate) const LOOK_UP_NS: u64 = 8_000_000_000;
/// A core that looks so much later was asleep, and what it waits for may lie before it.
const LATE_NS: u64 = 500_000_000;
/// A READ of an owner that gets on ends with so many of these.
const LOOKS_MAX: u32 = 4;
/// VQPs that may wait no longer, and are in the lists all the same, beyond as many as wait.
const GONE_MAX: usize = 1_024;

/// Look-ups of regions.
#[derive(Debug)]
pub(crate) struct MrLookups {
    under_way: HashMap<Region, MrLookup, FxBuildHasher>,
    pub(crate) turns: Turns,
    /// When each is looked at, in order; entries of look-ups that ended mean nothing.
    deadlines: VecDeque<(Time, Region)>,
    /// When owners last answered of which any are under way.
    answered: HashMap<PeerId, Time, FxBuildHasher>,
    /// VQPs in all lists, and how many of them waited when these were looked through last.
    listed: usize,
    waited: usize,
}

/// Where a look-up stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for its turn.
    Queued,
    /// Its owner is looked up first.
    Node,
    /// An operation does it.
    Running(OpId),
    /// It cannot be, and who waits is told next.
    Over,
}

/// The look-up of a region.
#[derive(Debug)]
pub(crate) struct MrLookup {
    /// For whom it is.
    pub(crate) account: u64,
    /// The region was there when it was looked up last, so that this is no guess.
    was_there: bool,
    /// The VQPs that wait.
    pub(crate) waiting: Vec<VqpId>,
    pub(crate) stage: Stage,
    /// For whose accounts it waits for its turn.
    turns_of: Vec<u64>,
    deadline: Time,
    looks: u32,
}

impl MrLookups {
    /// At most `limit` READs at once.
    pub(crate) fn new(limit: u32) -> MrLookups {
        MrLookups {
            under_way: HashMap::default(),
            turns: Turns::new(limit),
            deadlines: VecDeque::new(),
            answered: HashMap::default(),
            listed: 0,
            waited: 0,
        }
    }

    /// A VQP of an account's waits for a region, which is looked up.
    pub(crate) fn want(
        &mut self,
        region: Region,
        (account, was_there): (u64, bool),
        vqp: VqpId,
        now: Time,
    ) {
        self.listed += 1;
        if let Some(mr) = self.under_way.get_mut(&region) {
            mr.waiting.push(vqp);
            // It waits for nobody else's turn.
            if mr.stage == Stage::Queued && !mr.turns_of.contains(&account) {
                mr.turns_of.push(account);
                self.turns.push(account, region);
            }
            return;
        }
        let deadline = now.saturating_add_ns(LOOK_UP_NS);
        let (waiting, turns_of) = (alloc::vec![vqp], alloc::vec![account]);
        let stage = Stage::Queued;
        let mr = MrLookup { account, was_there, waiting, stage, turns_of, deadline, looks: 0 };
        self.under_way.insert(region, mr);
        self.turns.push(account, region);
        self.deadlines.push_back((deadline, region));
    }

    /// The look-up of a region waits for its turn anew.
    pub(crate) fn enqueue(&mut self, region: Region) {
        let Some(mr) = self.under_way.get_mut(&region) else {
            return bug!("a look-up that has ended waits anew");
        };
        mr.stage = Stage::Queued;
        mr.turns_of = alloc::vec![mr.account];
        self.turns.push(mr.account, region);
    }

    /// The region whose turn is next, for which account, and whether that may guess.
    pub(crate) fn next(&mut self) -> Option<(Region, u64, bool)> {
        while let Some((account, region)) = self.turns.next() {
            // It may have had another's turn.
            let Some(mr) = self.under_way.get_mut(&region) else { continue };
            if mr.stage == Stage::Queued {
                mr.account = account;
                return Some((region, account, !mr.was_there));
            }
        }
        None
    }

    /// It cannot go on, and ends.
    pub(crate) fn give_up(&mut self, region: Region) {
        if let Some(mr) = self.under_way.get_mut(&region) {
            mr.stage = Stage::Over;
        }
    }

    /// It goes on at its owner, or its owner is looked up.
    pub(crate) fn begin(&mut self, region: Region, stage: Stage, now: Time) {
        let Some(mr) = self.under_way.get_mut(&region) else {
            return bug!("a region is looked up for nobody");
        };
        mr.stage = stage;
        mr.turns_of.clear();
        self.turns.began(mr.account, region.0);
        self.answered.entry(region.0).or_insert(now);
    }

    /// What was begun for an account at an owner has ended, which has answered or not.
    pub(crate) fn ended(&mut self, account: u64, peer: PeerId, answered: bool, now: Time) {
        self.turns.ended(account, peer);
        if !self.turns.has_any(peer) {
            self.answered.remove(&peer);
        } else if answered {
            self.answered.insert(peer, now);
        }
    }

    /// The look-up of a region has ended.
    pub(crate) fn end(&mut self, region: Region) -> Option<MrLookup> {
        let mr = self.under_way.remove(&region)?;
        count_off!(self.listed, mr.waiting.len());
        Some(mr)
    }

    /// Where a look-up stands, if there is one.
    pub(crate) fn stage(&self, region: Region) -> Option<Stage> {
        self.under_way.get(&region).map(|mr| mr.stage)
    }

    /// The next that is to end by now, since its owner does not get on.
    pub(crate) fn next_late(&mut self, now: Time) -> Option<(Region, Stage)> {
        while let Some(&(due, region)) = self.deadlines.front() {
            let Some(mr) = self.under_way.get_mut(&region).filter(|mr| mr.deadline == due) else {
                self.deadlines.pop_front();
                continue;
            };
            if due > now {
                return None;
            }
            self.deadlines.pop_front();
            let answered = self.answered.get(&region.0);
            let silent = answered.is_some_and(|at| now.ns_since(*at) >= LOOK_UP_NS);
            mr.looks += u32::from(matches!(mr.stage, Stage::Running(_)));
            if now.ns_since(due) <= LATE_NS && (silent || mr.looks >= LOOKS_MAX) {
                return Some((region, mr.stage));
            }
            mr.deadline = now.saturating_add_ns(LOOK_UP_NS);
            self.deadlines.push_back((mr.deadline, region));
        }
        None
    }

    /// When one may have to end.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.front().map(|(due, _)| *due)
    }

    /// Whether lists are to be looked through for VQPs that wait no longer.
    pub(crate) fn is_crowded(&self) -> bool {
        self.listed > 2 * self.waited + GONE_MAX
    }

    /// Drops VQPs that do not wait any longer, and what was to be looked up for these alone.
    pub(crate) fn purge(&mut self, waits: impl Fn(Region, VqpId) -> bool) {
        self.listed = 0;
        for (region, mr) in &mut self.under_way {
            mr.waiting.retain(|vqp| waits(*region, *vqp));
            self.listed += mr.waiting.len();
        }
        self.waited = self.listed;
        let stays = |mr: &MrLookup| mr.stage != Stage::Queued || !mr.waiting.is_empty();
        self.under_way.retain(|_, mr| stays(mr));
        let under_way = &self.under_way;
        let is_queued = |mr: &MrLookup| mr.stage == Stage::Queued;
        self.turns.retain(|region| under_way.get(&region).is_some_and(is_queued));
        self.deadlines
            .retain(|(due, region)| under_way.get(region).is_some_and(|mr| mr.deadline == *due));
    }

    /// Those at an owner that an operation does.
    pub(crate) fn running_at(&self, peer: PeerId) -> Vec<Region> {
        let runs = |mr: &MrLookup| matches!(mr.stage, Stage::Running(_));
        let at = self.under_way.iter().filter(|((at, _), mr)| *at == peer && runs(mr));
        let mut regions: Vec<Region> = at.map(|(region, _)| *region).collect();
        regions.sort_unstable();
        regions
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Whether one of a peer's regions brings a VQP back.
    pub(crate) fn awaits(&self, peer: PeerId, vqp: VqpId) -> bool {
        self.under_way.iter().any(|((at, _), mr)| *at == peer && mr.waiting.contains(&vqp))
    }

    /// Checks what is counted, and that something brings each on. `runs` tells whether an operation does it, and
    /// `looked_up` whether its owner is looked up for it.
    pub(crate) fn audit(
        &self,
        runs: impl Fn(Region, OpId) -> bool,
        looked_up: impl Fn(Region) -> bool,
    ) -> Result<(), String> {
        let listed: usize = self.under_way.values().map(|mr| mr.waiting.len()).sum();
        if listed != self.listed || listed > 2 * self.waited + GONE_MAX + 1 {
            return Err(format!("{listed} VQPs wait for regions, counted as {}", self.listed));
        }
        for (region, mr) in &self.under_way {
            let comes = match mr.stage {
                Stage::Queued => self.turns.waits(*region),
                Stage::Node => looked_up(*region),
                Stage::Running(op) => runs(*region, op),
                Stage::Over => false,
            };
            if !comes || !self.deadlines.contains(&(mr.deadline, *region)) {
                return Err(format!("nothing brings the look-up of {region:?} on: {mr:?}"));
            }
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        let entries = self.under_way.capacity() * (size_of::<(Region, MrLookup)>() + 1);
        entries + self.deadlines.capacity() * size_of::<(Time, Region)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId::numbered(1);
    const START: Time = Time(1_000);

    fn running(bits: u32) -> Stage {
        use crate::ids::Id;
        Stage::Running(OpId::of(core::num::NonZeroU32::new(bits).unwrap()))
    }

    #[test]
    fn who_waits_for_one_region_waits_together_and_each_account_has_its_turn() {
        let region = (PEER, 7);
        let mut mrs = MrLookups::new(64);
        mrs.want(region, (5, false), VqpId(1), START);
        mrs.want(region, (6, false), VqpId(2), START);
        mrs.want(region, (6, false), VqpId(3), START);
        assert_eq!(mrs.next(), Some((region, 5, true)));
        mrs.begin(region, running(1), START);
        assert_eq!((mrs.next(), mrs.len()), (None, 1), "it has had its turn");
        assert!(mrs.awaits(PEER, VqpId(2)) && !mrs.awaits(PeerId::numbered(2), VqpId(2)));
        let ended = mrs.end(region).unwrap();
        assert_eq!((ended.account, ended.waiting), (5, [1, 2, 3].map(VqpId).to_vec()));
        mrs.ended(5, PEER, true, START);
        mrs.want(region, (5, true), VqpId(3), START);
        assert_eq!(mrs.next(), Some((region, 5, false)), "it was there before");
    }

    #[test]
    fn what_an_owner_does_not_get_on_with_ends_and_what_waits_for_room_does_not() {
        let mut mrs = MrLookups::new(64);
        let after = |looks: u64| Time(START.0 + looks * LOOK_UP_NS);
        for rkey in 0..3 {
            mrs.want((PEER, rkey), (5, false), VqpId(rkey), START);
        }
        assert_eq!(mrs.next_late(after(1)), None, "its owner was not asked");
        mrs.next();
        mrs.begin((PEER, 0), running(1), after(1));
        mrs.next();
        mrs.begin((PEER, 1), running(2), after(1));
        mrs.end((PEER, 0)).unwrap();
        mrs.ended(5, PEER, true, Time(after(1).0 + 5));
        assert_eq!(mrs.next_late(after(2)), None, "it has answered since");
        assert_eq!(mrs.next_late(Time(after(3).0 + LATE_NS + 1)), None, "who looks now has slept");
        let again = Time(after(4).0 + LATE_NS + 1);
        assert_eq!(mrs.next_deadline(), Some(again));
        assert_eq!(mrs.next_late(again), Some(((PEER, 1), running(2))));
        mrs.end((PEER, 1)).unwrap();
        assert_eq!(mrs.next_late(again), Some(((PEER, 2), Stage::Queued)));
        mrs.end((PEER, 2)).unwrap();
        assert_eq!((mrs.next_late(again), mrs.next_deadline()), (None, None));
    }

    /// WRs that were posted and VQPs that were destroyed made the lists grow without end.
    #[test]
    fn what_vqps_waited_for_that_are_gone_is_dropped() {
        let mut mrs = MrLookups::new(64);
        for n in 0..100_000 {
            mrs.want((PEER, n), (5, false), VqpId(n), START);
            if mrs.is_crowded() {
                mrs.purge(|_, vqp| vqp.0 % 10_000 == 0);
            }
            assert!(mrs.len() <= 2 * 10 + GONE_MAX + 1);
        }
        assert!(mrs.deadlines.len() <= mrs.len());
        let mut count = 0;
        while mrs.next().is_some() {
            count += 1;
        }
        assert_eq!(count, mrs.len());
    }
}
