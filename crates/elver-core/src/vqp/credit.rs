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

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;

use elver_verbs::{Device, Time};

use crate::due::DueQueue;
use crate::messaging::inbox::Backlog;
use crate::messaging::message::{Header, Kind};
use crate::messaging::notes::Note;
use crate::vqp::{Vqp, Wait};
use crate::{Config, Core, VqpState};

/// After so long without a grant a sender probes again, in nanoseconds: its receiver may be gone, or
/// may have forgotten it.
const PROBE_NS: u64 = 50_000_000;
/// A backlog is filling from this part of what it may hold on, and low below half of that.
const FILLING: u64 = 8;
/// The part of what a receiver may hold that its senders get credit for.
const GRANTED: u32 = 2;
/// The most that a sender gets at a time: enough to be on the way while it asks for more.
const GRANT_MAX: u32 = 256;

/// How many messages a VQP may still send, and what it does about that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credit {
    /// [`Credit::FREE`] until its receiver says otherwise.
    left: u32,
    /// What the receiver granted last.
    granted: u32,
    /// It has asked for more.
    asks: bool,
    /// It stands among those that ask again.
    listed: bool,
}

/// VQPs that ask their receivers for credit, and when each does so again: once each.
#[derive(Debug, Default)]
pub(crate) struct CreditProbes {
    due: DueQueue<u32>,
}

impl CreditProbes {
    /// A VQP asks.
    fn asked(&mut self, id: u32, credit: &mut Credit, now: Time) {
        credit.asks = true;
        if !core::mem::replace(&mut credit.listed, true) {
            self.due.push(now.saturating_add_ns(PROBE_NS), id);
        }
    }

    /// The next VQP that is to ask again, if it still waits.
    fn pop_due(&mut self, now: Time) -> Option<u32> {
        self.due.pop_due(now)
    }

    /// When that is.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.due.next_due()
    }

    /// A VQP goes. Its id may come again.
    pub(crate) fn forget(&mut self, id: u32, credit: Credit) {
        if credit.listed {
            self.due.retain(|other| *other != id);
        }
    }

    /// Checks that a VQP stands here as often as its credit says; returns whether it does.
    pub(crate) fn audit(&self, id: u32, credit: Credit) -> Result<bool, String> {
        let places = self.due.iter().filter(|other| **other == id).count();
        if places != usize::from(credit.listed) {
            return Err(format!("VQP {id:#x} stands {places} times among those that ask"));
        }
        Ok(places > 0)
    }
}

/// Senders that wait for a VQP: their nodes and VQPs, and the last cookie of each.
pub(crate) type Halted = BTreeMap<(u32, u32), u64>;

impl Credit {
    /// As many as it likes.
    const FREE: u32 = u32::MAX;

    pub(crate) const NEW: Credit =
        Credit { left: Credit::FREE, granted: 0, asks: false, listed: false };

    /// A new connection begins without limits.
    pub(crate) fn reset(&mut self) {
        *self = Credit { listed: self.listed, ..Credit::NEW };
    }

    #[inline]
    pub(crate) fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// A message goes.
    #[inline]
    pub(crate) fn use_one(&mut self) {
        if self.left != Credit::FREE {
            self.left -= 1;
        }
    }

    /// Whether it is time to ask for more.
    #[inline]
    pub(crate) fn runs_out(&self) -> bool {
        self.left <= self.granted / 2 && !self.asks
    }
}

impl<D: Device> Core<D> {
    // The receiver's side.

    /// A message of this sender's was held.
    pub(crate) fn halt_sender(&mut self, id: u32, from: (u32, u32), cookie: u64, now: Time) {
        if self.must_wait(id, from, cookie) {
            self.stats.senders_halted += 1;
            self.tell(from.0, Note::to_sender(Kind::Halt, from.1, cookie), now);
        }
    }

    /// A sender asks for credit.
    pub(crate) fn credit_probed(&mut self, peer: u32, header: &Header, now: Time) {
        let (target, from) = (self.target_of(header), (peer, header.src_vqp));
        let backlog = self.vqps.get(target).and_then(|vqp| vqp.backlog.as_ref());
        if backlog.is_some_and(|backlog| backlog.is_filling(&self.config)) {
            self.must_wait(target, from, header.cookie);
        } else {
            self.grant(target, from, header.cookie, now);
        }
    }

    /// Makes a note of a sender, if a VQP holds much. Whether it was not known to wait before.
    fn must_wait(&mut self, id: u32, from: (u32, u32), cookie: u64) -> bool {
        let Core { vqps, config, .. } = self;
        let backlog = vqps.get_mut(id).and_then(|vqp| vqp.backlog.as_mut());
        let backlog = backlog.filter(|backlog| backlog.is_filling(config));
        backlog.is_some_and(|backlog| backlog.halted.insert(from, cookie).is_none())
    }

    /// Lets senders go on that waited for a VQP.
    pub(crate) fn resume_senders(&mut self, id: u32, halted: Halted, now: Time) {
        for (from, cookie) in halted {
            self.grant(id, from, cookie, now);
        }
    }

    fn grant(&mut self, id: u32, (peer, vqp): (u32, u32), cookie: u64, now: Time) {
        let messages = self.grant_of(id) as u16;
        let note = Note::to_sender(Kind::Grant, vqp, cookie);
        self.tell(peer, Note { detail: messages, ..note }, now);
    }

    /// How many messages each sender of a VQP's may send.
    fn grant_of(&self, id: u32) -> u32 {
        let client = self.vqps.get(id).and_then(|vqp| self.clients.get(vqp.client));
        let senders = client.map_or(1, |client| client.accepted.now().max(1));
        let bytes = self.config.backlog_bytes / u64::from(self.config.eager_bytes_max.max(1));
        let room = u64::from(self.config.backlog).min(bytes) as u32 / GRANTED;
        (room / senders).clamp(1, GRANT_MAX)
    }

    // The sender's side.

    /// A receiver wants no more of a VQP's messages for now.
    pub(crate) fn halted(&mut self, from: u32, header: &Header) {
        let Some(vqp) = self.sender_named(from, header) else { return };
        if vqp.state == VqpState::Connected && vqp.credit.left == Credit::FREE {
            (vqp.credit.left, vqp.credit.granted) = (0, 0);
            self.stats.halts += 1;
        }
    }

    /// A receiver wants so many of a VQP's messages.
    pub(crate) fn granted(&mut self, from: u32, header: &Header, now: Time) {
        let Some(vqp) = self.sender_named(from, header) else { return };
        let messages = u32::from(header.detail).min(GRANT_MAX);
        if vqp.state != VqpState::Connected || vqp.credit.left == Credit::FREE || messages == 0 {
            return;
        }
        let listed = vqp.credit.listed;
        vqp.credit = Credit { left: messages, granted: messages, asks: false, listed };
        if vqp.wait == Wait::Credit {
            vqp.wait = Wait::Nothing;
            self.pump(header.dst_vqp, now);
        }
    }

    /// A VQP's credit runs out: it asks for more. Returns whether it is still connected.
    #[cold]
    pub(crate) fn ask_for_credit(&mut self, id: u32, now: Time) -> bool {
        let Some(vqp) = self.vqps.get_mut(id) else {
            bug!("a VQP that is gone asks for credit");
            return false;
        };
        self.credit_probes.asked(id, &mut vqp.credit, now);
        let (peer, note) = (vqp.peer, vqp.note(Kind::CreditProbe, vqp.sq.head));
        self.tell(peer, note, now);
        self.vqps.get(id).is_some_and(|vqp| vqp.state == VqpState::Connected)
    }

    /// Asks again for VQPs that have waited for long.
    pub(crate) fn probe_credit_again(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(id) = self.credit_probes.pop_due(now) {
            let Some(vqp) = self.vqps.get_mut(id) else {
                bug!("a VQP that asks for credit is gone");
                continue;
            };
            vqp.credit.listed = false;
            if vqp.asks_for_credit() {
                self.ask_for_credit(id, now);
            }
            busy = true;
        }
        busy
    }
}

impl Vqp {
    /// Whether it has asked its receiver for credit, and waits for the answer.
    pub(crate) fn asks_for_credit(&self) -> bool {
        self.state == VqpState::Connected && self.credit.asks
    }
}

impl Backlog {
    fn is_filling(&self, config: &Config) -> bool {
        self.has_part(FILLING, config)
    }

    /// Whether senders that wait may go on.
    pub(crate) fn is_low(&self, config: &Config) -> bool {
        !self.has_part(2 * FILLING, config)
    }

    /// Whether it has at least the `parts`th part of what it may hold.
    fn has_part(&self, parts: u64, config: &Config) -> bool {
        let messages = (self.messages.len() as u64).saturating_mul(parts);
        messages >= u64::from(config.backlog).max(1)
            || self.bytes.saturating_mul(parts) >= config.backlog_bytes.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vqp_is_listed_once_however_often_it_asks() {
        let (mut probes, mut credit) = (CreditProbes::default(), Credit::NEW);
        probes.asked(7, &mut credit, Time(0));
        probes.asked(7, &mut credit, Time(10));
        assert_eq!(probes.audit(7, credit), Ok(true));
        assert_eq!(
            (probes.pop_due(Time(PROBE_NS - 1)), probes.next_due()),
            (None, Some(Time(PROBE_NS)))
        );
        assert_eq!((probes.pop_due(Time(PROBE_NS)), probes.next_due()), (Some(7), None));
        assert!(probes.audit(7, credit).is_err(), "who was taken out must say so");
    }

    /// An id that comes again would have had the probes of the VQP that had it before.
    #[test]
    fn who_goes_is_not_asked_for_again() {
        let (mut probes, mut credits) = (CreditProbes::default(), [Credit::NEW; 2]);
        for (id, credit) in (1..).zip(&mut credits) {
            probes.asked(id, credit, Time(0));
        }
        probes.forget(1, credits[0]);
        assert_eq!((probes.pop_due(Time(PROBE_NS)), probes.next_due()), (Some(2), None));
    }
}
