//! Whose turn it is: deficit round robin among accounts, then among the sessions of each.
//!
//! A round looks at every account that has active sessions. Each gets the same credit, in WRs, and
//! its sessions are looked at until that is spent, beginning where the last round stopped. So a user
//! with five hundred busy sessions gets as many of its WRs taken as one with a single session, as long
//! as both have some. While one account alone is active nothing is held back.

use super::account::Account;

/// WRs of an account that a round takes while others are active.
const CREDIT: i64 = 64;
/// WRs that a round takes, whoever is active.
const ROUND: u32 = 1_024;

/// The active sessions, by place.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lines: Vec<Line>,
    round: Round,
}

/// The active sessions of an account.
#[derive(Debug)]
struct Line {
    account: Account,
    slots: Vec<u32>,
    /// Where the next round begins.
    next: usize,
    /// WRs that it may still have taken; below zero if one turn took more.
    credit: i64,
}

/// A round.
#[derive(Debug, Default)]
struct Round {
    line: usize,
    /// Sessions of the line that were not looked at; none if it was not begun.
    left: Option<usize>,
    /// WRs that it may still take.
    room: u32,
    /// A session had its turn.
    served: bool,
}

impl Turns {
    pub(super) fn insert(&mut self, account: Account, slot: u32) {
        match self.lines.iter_mut().find(|line| line.account == account) {
            Some(line) => line.slots.push(slot),
            None => self.lines.push(Line { account, slots: vec![slot], next: 0, credit: 0 }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.lines.iter().flat_map(|line| line.slots.iter().copied())
    }

    /// Keeps those for which `keep` says so.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        for line in &mut self.lines {
            let mut before = 0;
            let mut at = 0;
            line.slots.retain(|&slot| {
                let stays = keep(slot);
                before += usize::from(!stays && at < line.next);
                at += 1;
                stays
            });
            line.next -= before;
        }
        let (mut at, Round { line, left, .. }) = (0, &mut self.round);
        let mut before = 0;
        self.lines.retain(|one| {
            let stays = !one.slots.is_empty();
            if !stays && at == *line {
                *left = None;
            }
            before += usize::from(!stays && at < *line);
            at += 1;
            stays
        });
        *line -= before;
    }

    /// A round begins, where the last one stopped.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.round.room = ROUND;
        self.round.served = false;
    }

    /// The next session of a round, and the WRs that it may have taken; none when the round is over.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(u32, u32)> {
        let contended = self.lines.len() > 1;
        let round = &mut self.round;
        if round.room == 0 {
            return None;
        }
        loop {
            let Some(line) = self.lines.get_mut(round.line) else {
                (round.line, round.left) = (0, None);
                // The last one stopped behind all of them: this one has them all.
                if self.lines.is_empty() || std::mem::replace(&mut round.served, true) {
                    return None;
                }
                continue;
            };
            let left = match round.left {
                Some(left) => left.min(line.slots.len()),
                None => {
                    line.credit = (line.credit + CREDIT).min(CREDIT);
                    line.slots.len()
                }
            };
            let spent = contended && line.credit <= 0;
            if left == 0 || spent {
                round.left = None;
                round.line += 1;
                continue;
            }
            if line.next >= line.slots.len() {
                line.next = 0;
            }
            let slot = line.slots[line.next];
            line.next += 1;
            round.left = Some(left - 1);
            round.served = true;
            let most = if contended { line.credit as u32 } else { u32::MAX };
            return Some((slot, most.min(round.room)));
        }
    }

    /// The session that came last in a round had so many WRs taken.
    #[inline]
    pub(super) fn took(&mut self, wrs: u32) {
        let round = &mut self.round;
        round.room = round.room.saturating_sub(wrs);
        // While it is alone it owes nobody anything.
        if self.lines.len() > 1
            && let Some(line) = self.lines.get_mut(round.line)
        {
            line.credit = line.credit.saturating_sub(i64::from(wrs)).max(-(1 << 20));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn account(uid: u32) -> Account {
        Account { uid, space: 0, is_root: false }
    }

    /// Rounds in which every session has `busy` WRs whenever it is looked at, of which it has at most
    /// `turn` taken at once; how many each got.
    fn rounds(
        turns: &mut Turns,
        count: usize,
        turn: u32,
        busy: impl Fn(u32) -> u32,
    ) -> BTreeMap<u32, u32> {
        let mut got = BTreeMap::new();
        for _ in 0..count {
            turns.begin();
            while let Some((slot, most)) = turns.next() {
                let taken = busy(slot).min(most).min(turn);
                turns.took(taken);
                *got.entry(slot).or_default() += taken;
            }
        }
        got
    }

    /// Each session had a turn in each round: one with five hundred took 500 of 501.
    #[test]
    fn a_user_with_five_hundred_sessions_has_the_share_of_one_with_one() {
        let mut turns = Turns::default();
        for slot in 0..500 {
            turns.insert(account(1), slot);
        }
        turns.insert(account(2), 500);
        for turn in [1, 64, 4_096] {
            let got = rounds(&mut turns, 2_000, turn, |_| 4_096);
            let single = got[&500];
            let others: u32 = got.range(..500).map(|(_, wrs)| wrs).sum();
            let share = f64::from(single) / f64::from(single + others);
            assert!((0.45..0.55).contains(&share) || turn == 1, "{turn}: {single} of {others}");
            // One that has a WR at a look gets one whenever it is looked at.
            assert!(turn != 1 || single == 2_000, "{single}");
            // Nor is any of the five hundred forgotten.
            let (least, most) = (got.range(..500).map(|(_, wrs)| wrs).min(), got.values().max());
            assert!(*least.unwrap() > 0, "{turn}: {most:?}");
        }
    }

    #[test]
    fn one_account_alone_is_held_back_by_the_bound_of_a_round_alone() {
        let mut turns = Turns::default();
        turns.insert(account(1), 1);
        turns.insert(account(1), 2);
        let got = rounds(&mut turns, 10, u32::MAX, |_| 4_096);
        assert_eq!(got, BTreeMap::from([(1, 5 * ROUND), (2, 5 * ROUND)]));
        // Nor by others that ask for nothing, beyond the credit of a round.
        turns.insert(account(2), 3);
        let got = rounds(&mut turns, 1_000, u32::MAX, |slot| if slot == 3 { 0 } else { 4_096 });
        assert!(got[&1] + got[&2] >= 900 * CREDIT as u32, "{got:?}");
    }

    /// A thousand busy sessions were all served before the core had its turn.
    #[test]
    fn a_round_has_a_bound_and_the_next_goes_on_where_it_stopped() {
        for accounts in [1, 10, 100] {
            let mut turns = Turns::default();
            for slot in 0..1_000 {
                turns.insert(account(slot % accounts), slot);
            }
            let mut got = BTreeMap::new();
            for _ in 0..1_000 {
                let mut all = 0;
                for (slot, wrs) in rounds(&mut turns, 1, 32, |_| 4_096) {
                    all += wrs;
                    *got.entry(slot).or_insert(0) += wrs;
                }
                assert!(all <= ROUND, "{accounts}: {all}");
            }
            let (least, most) = (got.values().min().unwrap(), got.values().max().unwrap());
            assert!(got.len() == 1_000 && 10 * least > 9 * most, "{accounts}: {least}, {most}");
        }
    }

    #[test]
    fn a_session_that_goes_in_the_midst_keeps_nobody_from_its_turn() {
        let mut turns = Turns::default();
        for slot in 0..6 {
            turns.insert(account(slot % 2), slot);
        }
        turns.begin();
        let mut seen = Vec::new();
        while let Some((slot, _)) = turns.next() {
            seen.push(slot);
            turns.retain(|other| other != slot || slot % 3 != 0);
            turns.took(1);
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
        turns.retain(|_| false);
        assert!(turns.is_empty() && turns.next().is_none());
    }
}
