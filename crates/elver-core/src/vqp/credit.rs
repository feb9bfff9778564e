//! Senders that are faster than their receivers wait for them.
//!
//! A message that finds no receive is held, and has completed at its sender all the same. On an RC
//! queue pair of its own a sender would get RNR NAKs; on one that many share these would stop all.
//! So it is the sending VQP alone that waits, before its next message, and from then on sends on
//! credit:
//!
//! ```text
//!   sender                                          receiver
//!     messages, as fast as it likes ──────▶           holds an eighth of what it may
//!     has no credit               ◀────────── Halt
//!     would send a message:  Probe ───────▶           still holds so much: makes a note of it
//!                                                     receives are posted, and half of that is taken
//!     has credit for some         ◀──────── Grant
//!     has half of it left:   Probe ───────▶           holds little
//!                                 ◀──────── Grant
//! ```
//!
//! All senders together have credit for half of what the receiver may hold, or for one message each;
//! the rest is for what is on its way when they are halted. What goes beyond that is refused.

mod exchange;

use alloc::format;
use alloc::string::String;

use elver_verbs::Time;

use crate::VqpId;
use crate::due::DueQueue;

/// After so long without a grant a sender probes again, in nanoseconds: its receiver may be gone, or
/// may have forgotten it.
const PROBE_NS: u64 = 50_000_000;
/// How many messages a VQP may still send, and what it does about that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credit {
    /// As many as it likes until its receiver says otherwise.
    left: Left,
    /// It has asked for more.
    asks: bool,
    /// It stands among those that ask again.
    listed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    All,
    /// So many, of as many as the receiver granted last.
    Counted {
        left: u16,
        granted: u16,
    },
}

/// VQPs that ask their receivers for credit, and when each does so again: once each.
#[derive(Debug, Default)]
pub(crate) struct CreditProbes {
    due: DueQueue<VqpId>,
}

impl CreditProbes {
    /// A VQP asks.
    fn asked(&mut self, id: VqpId, credit: &mut Credit, now: Time) {
        credit.asks = true;
        if !core::mem::replace(&mut credit.listed, true) {
            self.due.push(now.saturating_add_ns(PROBE_NS), id);
        }
    }

    /// The next VQP that is to ask again, if it still waits.
    fn pop_due(&mut self, now: Time) -> Option<VqpId> {
        self.due.pop_due(now)
    }

    /// When that is.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.due.next_due()
    }

    /// A VQP goes. Its id may come again.
    pub(crate) fn forget(&mut self, id: VqpId, credit: Credit) {
        if credit.listed {
            self.due.retain(|other| *other != id);
        }
    }

    /// Checks that a VQP stands here as often as its credit says; returns whether it does.
    pub(crate) fn audit(&self, id: VqpId, credit: Credit) -> Result<bool, String> {
        let places = self.due.iter().filter(|other| **other == id).count();
        if places != usize::from(credit.listed) {
            return Err(format!("VQP {id:#x} stands {places} times among those that ask"));
        }
        Ok(places > 0)
    }
}

impl Credit {
    pub(crate) const NEW: Credit = Credit { left: Left::All, asks: false, listed: false };

    /// A new connection begins without limits.
    pub(crate) fn reset(&mut self) {
        *self = Credit { listed: self.listed, ..Credit::NEW };
    }

    /// Whether messages are not counted.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.left == Left::All
    }

    #[inline]
    pub(crate) fn is_used_up(&self) -> bool {
        matches!(self.left, Left::Counted { left: 0, .. })
    }

    /// The receiver wants no more for now.
    fn halt(&mut self) {
        self.left = Left::Counted { left: 0, granted: 0 };
    }

    /// The receiver wants so many.
    fn grant(&mut self, messages: u16) {
        self.left = Left::Counted { left: messages, granted: messages };
        self.asks = false;
    }

    /// A message goes.
    #[inline]
    pub(crate) fn use_one(&mut self) {
        if let Left::Counted { left, .. } = &mut self.left {
            count_off!(*left, 1);
        }
    }

    /// Whether it is time to ask for more.
    #[inline]
    pub(crate) fn runs_out(&self) -> bool {
        matches!(self.left, Left::Counted { left, granted } if left <= granted / 2) && !self.asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vqp_is_listed_once_however_often_it_asks() {
        let (mut probes, mut credit) = (CreditProbes::default(), Credit::NEW);
        probes.asked(VqpId(7), &mut credit, Time(0));
        probes.asked(VqpId(7), &mut credit, Time(10));
        assert_eq!(probes.audit(VqpId(7), credit), Ok(true));
        assert_eq!(
            (probes.pop_due(Time(PROBE_NS - 1)), probes.next_due()),
            (None, Some(Time(PROBE_NS)))
        );
        assert_eq!((probes.pop_due(Time(PROBE_NS)), probes.next_due()), (Some(VqpId(7)), None));
        assert!(probes.audit(VqpId(7), credit).is_err(), "who was taken out must say so");
    }

    /// An id that comes again would have had the probes of the VQP that had it before.
    #[test]
    fn who_goes_is_not_asked_for_again() {
        let (mut probes, mut credits) = (CreditProbes::default(), [Credit::NEW; 2]);
        for (id, credit) in (1..).map(VqpId).zip(&mut credits) {
            probes.asked(id, credit, Time(0));
        }
        probes.forget(VqpId(1), credits[0]);
        assert_eq!((probes.pop_due(Time(PROBE_NS)), probes.next_due()), (Some(VqpId(2)), None));
    }
}
