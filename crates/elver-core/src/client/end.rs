//! The end of VQPs: what they hold is flushed, those that they talked to are told, and they go.

use elver_verbs::{Device, Time};

use crate::client::accept::Acceptance;
use crate::ids::{MaybeVqp, PeerId};
use crate::messaging::message::Kind;
use crate::messaging::notes::Note;
use crate::rc::link::{Purpose, RcLink};
use crate::vqp::phase::Phase;
use crate::vqp::{Vqp, Wait};
use crate::{ConnectError, Core, Event, VqpId};

impl<D: Device> Core<D> {
    /// The client is done with a VQP. It goes at once, or when nothing of its is in flight.
    pub(crate) fn destroy(&mut self, id: VqpId, now: Time) {
        self.cancel_connect(id);
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone is destroyed");
        };
        if core::mem::replace(&mut vqp.phase, Phase::Destroyed) == Phase::Destroyed {
            return;
        }
        vqp.wait = Wait::Nothing;
        if let Some(port) = vqp.bound {
            self.clients.ports.release(port.get());
        }
        if let Some(client) = self.clients.all.get_mut(vqp.client) {
            let at = vqp.client_at as usize;
            client.vqps.swap_remove(at);
            client.zombies += 1;
            if let Some(&moved) = client.vqps.get(at)
                && let Some(moved) = self.vqps.get_mut(moved)
            {
                moved.client_at = at as u32;
            }
        }
        self.settle(id, now);
    }

    /// To be called for a VQP in its error state whenever nothing of its may be left on a lane, or with
    /// a receiver: what it still holds is flushed, and a zombie goes.
    pub(crate) fn settle(&mut self, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone settles") };
        if vqp.inflight > 0 || vqp.reads > 0 {
            return;
        }
        self.flush(id, now);
        self.drop_backlog(id);
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that settles is gone") };
        if vqp.sq.len() > 0 {
            // Its client gets its messages back when no receiver reads them any longer.
            return self.revoke(id, now);
        }
        if vqp.phase != Phase::Destroyed {
            return;
        }
        let (client, credit, newcomer) = (vqp.client, vqp.credit, vqp.newcomer);
        self.part(id);
        self.detach(id);
        self.messaging.credit_probes.forget(id, credit);
        self.vqps.remove(id);
        if newcomer {
            self.keep_alive.newcomer_goes();
        }
        if let Some(client) = self.clients.all.get_mut(client) {
            count_off!(client.zombies, 1);
        }
        self.clients.forget_client(client);
    }

    /// Tells who has exchanged messages with a VQP that it ends for them: it goes, or is taken off its peer to be
    /// connected anew, by another secret, which nobody knows yet. Nothing of its is in flight.
    #[inline(never)]
    pub(crate) fn part(&mut self, id: VqpId) {
        if let Some((peer, note)) = self.farewell(id) {
            self.messaging.notes.tell(&mut self.stats, peer, note);
        }
    }

    /// What is told of a VQP that parts from its peer: to where it sent messages, that no more come; to who sends to a
    /// port, whose messages it stood for, that nobody takes them any longer.
    fn farewell(&self, id: VqpId) -> Option<(PeerId, Note)> {
        let vqp = self.vqps.get(id)?;
        if let Some(Acceptance { key, .. }) = vqp.accepted {
            let (_, nonce) =
                self.clients.accepts.get(&key).filter(|(accepted, _)| *accepted == id)?;
            let is_open = self.vqps.get(key.0).is_some_and(|bound| bound.phase != Phase::Destroyed);
            let note = Note::to_sender(Kind::Gone, key.2, u64::from(nonce) << 32);
            return (!is_open).then_some((key.1, note));
        }
        let sends = vqp.peer_vqp.get().is_none() && vqp.sq.has_sent_messages();
        vqp.note(Kind::Gone, vqp.sq.tail).filter(|_| sends)
    }

    /// A `qconnect` that is pending ends without a result.
    pub(crate) fn cancel_connect(&mut self, id: VqpId) {
        let Some(vqp) = self.vqps.get_mut(id) else { return bug!("a VQP that is gone connects") };
        if vqp.phase != Phase::Connecting {
            return;
        }
        vqp.phase = Phase::Idle;
        count_off!(self.discovery.lookups.waiting, 1);
        let (client, vqp, token) = (vqp.client, id, vqp.token);
        let result = Err(ConnectError::Cancelled);
        self.events.push_back(Event::Connected { client, token, vqp, result });
    }

    /// Takes a VQP off its peer and its lane. Nothing of its is in flight.
    pub(crate) fn detach(&mut self, id: VqpId) {
        self.leave_lane(id);
        self.leave_peer(id);
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone is detached");
        };
        // Its link may have gone before, and the number be another's by now.
        let lease = vqp.lease.take();
        let is_its = |link: &RcLink| link.purpose == Purpose::Leased(Some(id));
        let lease = lease.filter(|lease| self.links.rc.get(*lease).is_some_and(is_its));
        self.links.ended_leases.extend(lease);
        if let Some(Acceptance { key, .. }) = vqp.accepted.take() {
            self.clients.accepts.remove(&key, id);
            if let Some(entry) = self.peers.get_mut(key.1) {
                count_off!(entry.accepted, 1);
            }
            if let Some(client) = self.clients.all.get_mut(vqp.client) {
                client.accepted.remove(key.1);
            }
        }
        (vqp.lane, vqp.dest, vqp.via) = (None, None, None);
        vqp.peer_vqp = MaybeVqp::default();
        (vqp.remote_key, vqp.remote) = Vqp::NO_REMOTE;
    }
}
