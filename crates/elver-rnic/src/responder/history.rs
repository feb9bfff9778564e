//! READs and atomics that were executed, for the duplicates that may come of them (IBTA vol. 1, 9.7.5.1.4).

use alloc::collections::VecDeque;

use elver_wire::{Psn, Reth};

/// Those executed last, the oldest first; as many as the peer may have under way.
#[derive(Debug)]
pub(super) struct History {
    executed: VecDeque<Executed>,
    /// The expected PSN when it was looked for distant ones last.
    looked: Psn,
}

/// PSNs between two looks: few of the half that lies between too distant and come round again.
const LOOK_PSNS: u32 = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) enum Executed {
    Read { first: Psn, packets: u32, va: u64, length: u32 },
    Atomic { psn: Psn, original: u64 },
}

// What a stranger can make a responder hold is bounded by this and by the agreed READs.
const _: () = assert!(size_of::<Executed>() <= 24);

impl Executed {
    fn first(&self) -> Psn {
        match *self {
            Executed::Read { first, .. } => first,
            Executed::Atomic { psn, .. } => psn,
        }
    }

    fn last(&self) -> Psn {
        match *self {
            Executed::Read { first, packets, .. } => first.wrapping_add(packets - 1),
            Executed::Atomic { psn, .. } => psn,
        }
    }
}

impl History {
    pub(super) fn new(expected: Psn) -> History {
        History { executed: VecDeque::new(), looked: expected }
    }

    /// One was executed; no more than `most` are kept.
    pub(super) fn remember(&mut self, executed: Executed, most: usize) {
        if self.executed.len() >= most {
            self.executed.pop_front();
        }
        self.executed.push_back(executed);
    }

    /// Forgets what lies half of all PSNs before the expected one, of which no duplicate comes any
    /// more: where little is read, its PSN is another request's by and by, and that one's acknowledgement
    /// would be withheld.
    #[inline(always)] // With each acknowledgement.
    pub(super) fn forget_distant(&mut self, expected: Psn) {
        if expected.wrapping_sub(self.looked.get()).get() >= LOOK_PSNS {
            self.look(expected);
        }
    }

    #[cold]
    fn look(&mut self, expected: Psn) {
        self.looked = expected;
        while self.executed.front().is_some_and(|one| expected.distance(one.last()) <= 0) {
            self.executed.pop_front();
        }
    }

    /// Whether a READ of this PSN is one that was executed, or the rest of one.
    pub(super) fn has_read(&self, psn: Psn, reth: &Reth, mtu: u32) -> bool {
        self.executed.iter().any(|executed| match *executed {
            Executed::Read { first, packets, va, length } => {
                let at = psn.distance(first);
                let offset = (at.max(0) as u32).saturating_mul(mtu);
                at >= 0
                    && (at as u32) < packets
                    && reth.va == va.wrapping_add(u64::from(offset))
                    && reth.len <= length - offset
            }
            Executed::Atomic { .. } => false,
        })
    }

    /// What the atomic of this PSN found.
    pub(super) fn original(&self, psn: Psn) -> Option<u64> {
        // The newest: PSNs come round again, where little is read.
        self.executed.iter().rev().find_map(|executed| match *executed {
            Executed::Atomic { psn: at, original } if at == psn => Some(original),
            _ => None,
        })
    }

    /// The newest PSN before the expected one that an acknowledgement may name: not that of a READ or an
    /// atomic, whose response may be lost and which only its data acknowledges.
    pub(super) fn newest_without_data(&self, expected: Psn) -> Psn {
        let mut newest = expected.wrapping_sub(1);
        for executed in self.executed.iter().rev() {
            if executed.last() != newest {
                break;
            }
            newest = executed.first().wrapping_sub(1);
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A SEND whose PSN an atomic had had, all PSNs before, was acknowledged once; its sender, who had not
    /// heard that, asked in vain until it gave the queue pair up.
    #[test]
    fn a_request_is_not_taken_for_one_that_had_its_psn_a_round_before() {
        for begins in [0, 5, 0xff_fff0].map(Psn::from_wrapping) {
            let mut history = History::new(begins);
            history.remember(Executed::Read { first: begins, packets: 3, va: 0, length: 700 }, 4);
            let atomic = begins.wrapping_add(3);
            history.remember(Executed::Atomic { psn: atomic, original: 7 }, 4);
            let mut expected = atomic.next();
            history.forget_distant(expected);
            assert_eq!(history.newest_without_data(expected), begins.wrapping_sub(1));
            // Its duplicate may come until half of all PSNs lie between.
            for round in 0..16 {
                assert_eq!(history.original(atomic).is_some(), round < 8, "{round}");
                expected = expected.wrapping_add(LOOK_PSNS);
                history.forget_distant(expected);
            }
            // The request that has the same number then is acknowledged as itself.
            assert_eq!(expected, atomic.next());
            assert_eq!(history.newest_without_data(expected), atomic);
        }
    }

    /// A message of all the PSNs that there may be has its end acknowledged alone.
    #[test]
    fn what_is_distant_is_forgotten_also_by_one_long_step() {
        let first = Psn::from_wrapping(77);
        let mut history = History::new(first);
        history.remember(Executed::Atomic { psn: first, original: 7 }, 4);
        history.forget_distant(first.wrapping_add(1 << 23));
        assert_eq!(history.original(first), None);
    }

    #[test]
    fn a_read_of_all_the_psns_there_may_be_is_remembered() {
        let first = Psn::from_wrapping(9);
        let mut history = History::new(first);
        let (packets, length) = (1 << 23, 1 << 31);
        history.remember(Executed::Read { first, packets, va: 64, length }, 1);
        history.forget_distant(first.wrapping_add(packets));
        let rest = Reth { va: 64 + 256, rkey: 1, len: length - 256 };
        assert!(history.has_read(first.next(), &rest, 256));
    }
}
