//! What sender and receiver tell each other of credit.

use elver_verbs::{Device, Time};

use crate::Core;
use crate::VqpId;
use crate::effects::Effect;
use crate::ids::PeerId;
use crate::messaging::backlog::{Halted, cost_of};
use crate::messaging::message::{Header, Kind};
use crate::messaging::notes::Note;
use crate::vqp::{Vqp, Wait};

/// The part of what a receiver may hold that its senders get credit for.
const GRANTED: u32 = 2;
/// The most that a sender gets at a time: enough to be on the way while it asks for more.
const GRANT_MAX: u16 = 256;

impl<D: Device> Core<D> {
    // The receiver's side.

    /// A message of this sender's was held.
    pub(crate) fn halt_sender(&mut self, id: VqpId, from: (PeerId, u32), cookie: u64) {
        if self.must_wait(id, from, cookie) {
            self.stats.senders_halted += 1;
            self.messaging.notes.tell(
                &mut self.stats,
                from.0,
                Note::to_sender(Kind::Halt, from.1, cookie),
            );
        }
    }

    /// A sender asks for credit.
    pub(crate) fn credit_probed(&mut self, peer: PeerId, header: &Header) {
        let (target, from) = (self.clients.target_of(header), (peer, header.src_vqp));
        let backlog = |target| self.vqps.get(target)?.backlog.as_ref();
        let is_filling = |target: &VqpId| {
            backlog(*target).is_some_and(|backlog| backlog.is_filling(&self.config))
        };
        match target.filter(is_filling) {
            Some(target) => {
                self.must_wait(target, from, header.cookie);
            }
            None => self.grant(target, from, header.cookie),
        }
    }

    /// Makes a note of a sender, if a VQP holds much and it is one of the VQP's: what is not could name any
    /// number of VQPs. Whether it was not known to wait before.
    fn must_wait(&mut self, id: VqpId, from: (PeerId, u32), cookie: u64) -> bool {
        let sends = self.has_sender(id, from);
        let Core { vqps, config, .. } = self;
        let backlog = vqps.get_mut(id).and_then(|vqp| vqp.backlog.as_mut());
        let backlog = backlog.filter(|backlog| sends && backlog.is_filling(config));
        backlog.is_some_and(|backlog| backlog.halt(from, cookie))
    }

    /// Whether a VQP takes a sender's messages: to its port, as far as any has come yet, or as what it is
    /// connected to.
    fn has_sender(&self, id: VqpId, (peer, from): (PeerId, u32)) -> bool {
        let is_other = |vqp: &Vqp| vqp.peer_vqp.get().is_some_and(|vqp| vqp.0 != from);
        self.clients.accepts.get(&(id, peer, from)).is_some()
            || self.vqps.get(id).is_some_and(|vqp| vqp.peer == Some(peer) && !is_other(vqp))
    }

    /// Lets senders go on that waited for a VQP.
    pub(crate) fn resume_senders(&mut self, id: VqpId, halted: Halted) {
        for (from, cookie) in halted {
            self.grant(Some(id), from, cookie);
        }
    }

    fn grant(&mut self, id: Option<VqpId>, (peer, vqp): (PeerId, u32), cookie: u64) {
        let messages = self.grant_of(id);
        let note = Note::to_sender(Kind::Grant, vqp, cookie);
        self.messaging.notes.tell(&mut self.stats, peer, Note { detail: messages, ..note });
    }

    /// How many messages each sender of a VQP's may send.
    fn grant_of(&self, id: Option<VqpId>) -> u16 {
        let client =
            id.and_then(|id| self.vqps.get(id)).and_then(|vqp| self.clients.all.get(vqp.client));
        let senders = client.map_or(1, |client| client.accepted.now().max(1));
        let bytes = self.config.backlog_bytes / cost_of(self.config.eager_bytes_max as usize);
        let room = u64::from(self.config.backlog).min(bytes) as u32 / GRANTED;
        (room / senders).clamp(1, GRANT_MAX.into()) as u16
    }

    // The sender's side.

    /// A receiver wants no more of a VQP's messages for now.
    pub(crate) fn halted(&mut self, from: PeerId, header: &Header) {
        let Some(vqp) = self.sender_named(from, header) else { return };
        if vqp.phase.is_connected() && vqp.credit.is_free() {
            vqp.credit.halt();
            self.stats.halts += 1;
        }
    }

    /// A receiver wants so many of a VQP's messages.
    pub(crate) fn granted(&mut self, from: PeerId, header: &Header) {
        let Some(vqp) = self.sender_named(from, header) else { return };
        let messages = header.detail.min(GRANT_MAX);
        if !vqp.phase.is_connected() || vqp.credit.is_free() || messages == 0 {
            return;
        }
        vqp.credit.grant(messages);
        if vqp.wait == Wait::Credit {
            vqp.wait = Wait::Nothing;
            self.effects.push(Effect::Pump(VqpId(header.dst_vqp)));
        }
    }

    /// A VQP's credit runs out: it asks for more.
    #[cold]
    pub(crate) fn ask_for_credit(&mut self, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone asks for credit");
        };
        self.messaging.credit_probes.asked(id, &mut vqp.credit, now);
        if let Some((peer, note)) = vqp.note(Kind::CreditProbe, vqp.sq.head) {
            self.messaging.notes.tell(&mut self.stats, peer, note);
        }
    }

    /// Asks again for VQPs that have waited for long.
    pub(crate) fn probe_credit_again(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(id) = self.messaging.credit_probes.pop_due(now) {
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
        self.phase.is_connected() && self.credit.asks
    }
}
