//! Gives messages to receives, also those that have waited.

use elver_verbs::{Device, Time, WcOpcode, WcStatus};

use crate::Core;
use crate::VqpId;
use crate::client::all::Clients;
use crate::discovery::peer::Waiter;
use crate::ids::PeerId;
use crate::memory::Regions;
use crate::memory::mr::ScatterError;
use crate::messaging::incoming::{Body, Incoming};
use crate::messaging::message::{Header, Kind};
use crate::vqp::phase::Phase;
use crate::vqp::recv_ring::RecvOutcome;

impl<D: Device> Core<D> {
    /// Puts a message into the next receive of a VQP, which has one.
    #[inline]
    pub(crate) fn receive(&mut self, id: VqpId, incoming: &Incoming, body: &Body<'_>, now: Time) {
        let Core {
            vqps,
            pool,
            clients: Clients { all: clients, told, .. },
            regions: Regions { local: mrs, .. },
            ..
        } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP that is gone receives") };
        let seq = vqp.rq.next;
        vqp.rq.next = seq.after(1);
        let opcode = match incoming.kind {
            Kind::WriteImm => WcOpcode::RecvRdmaWithImm,
            _ => WcOpcode::Recv,
        };
        let ended = match incoming.kind {
            Kind::WriteImm => Ok(()),
            _ if u64::from(incoming.length) > vqp.rq.entry(seq).capacity => {
                Err(WcStatus::LocLenErr)
            }
            Kind::Rendezvous => match self.begin_gather(id, seq, incoming, body, now) {
                Ok(()) => return,
                Err(status) => return self.fail_receive(id, seq, incoming, status),
            },
            _ => match vqp.copy_to_receive(seq, incoming.length, mrs, &pool.memory, body) {
                Ok(()) => Ok(()),
                Err(ScatterError::Later) => {
                    return self.begin_landing(id, seq, incoming, body, now);
                }
                Err(ScatterError::Refused) => Err(WcStatus::LocProtErr),
            },
        };
        if let Err(status) = ended {
            return self.fail_receive(id, seq, incoming, status);
        }
        if vqp.rq.head != seq || vqp.phase == Phase::Destroyed {
            return self.end_receive(id, seq, incoming, WcStatus::Success, opcode);
        }
        // Nothing is before it, and nothing behind.
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        vqp.rq.head = vqp.rq.next;
        let outcome = RecvOutcome::of(incoming, WcStatus::Success, opcode);
        let completion = outcome.completion(vqp.id, vqp.rq.entry(seq).wr_id);
        client.tell(vqp.client, completion, told);
    }

    /// Gives messages that wait to receives that were posted.
    pub(crate) fn serve_backlog(&mut self, id: VqpId, now: Time) {
        while let Some(vqp) = self.vqps.get_mut(id).filter(|vqp| vqp.rq.has_next())
            && let Some(backlog) = &vqp.backlog
        {
            let Some((incoming, _)) = backlog.messages.front() else {
                return bug!("nothing waits at a VQP that has a backlog");
            };
            let (incoming, peer) = (*incoming, incoming.from.0);
            // Nothing is connected to who sent it: its sender asks after it, and hears that nobody has it.
            if incoming.kind == Kind::Rendezvous && self.peers.get(peer).is_none() {
                self.take_held(id, 0);
                self.stats.messages_refused += 1;
                continue;
            }
            if incoming.is_late(now) {
                return self.ask_leave(id, now);
            }
            if !self.peers.is_readable(&incoming) {
                return self.want_sender(id, peer, now);
            }
            let Some((incoming, bytes)) = self.take_held(id, 0) else {
                return bug!("a message that waits is gone");
            };
            self.receive(id, &incoming, &Body::Held(&bytes), now);
        }
    }

    /// A message's sender is looked up before the message is read.
    fn want_sender(&mut self, id: VqpId, peer: PeerId, now: Time) {
        let waiter = Waiter::Reader(id);
        if !self.peers.get(peer).is_some_and(|peer| peer.waiting.contains(&waiter)) {
            self.want_node(peer, waiter, now);
        }
    }

    /// Looks at messages again that wait for receives, or to be read. Whether there were any.
    pub(crate) fn attend_held(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(id) = self.messaging.held.pop_due(now) {
            self.serve_backlog(id, now);
            busy = true;
        }
        busy
    }

    /// A sender asks after a message, and vouches for it.
    pub(crate) fn queried(&mut self, from: PeerId, header: &Header, now: Time) {
        let until = self.arrivals.may_read_until();
        let Some(held) = self.whereabouts(from, header) else { return };
        match held {
            Some((id, at)) => {
                let backlog = self.vqps.get_mut(id).and_then(|vqp| vqp.backlog.as_mut());
                if let Some((incoming, _)) = backlog.and_then(|held| held.messages.get_mut(at)) {
                    incoming.until = incoming.until.max(until);
                }
                self.serve_backlog(id, now);
            }
            None => self.deny(from, header),
        }
    }

    /// A sender takes a message back.
    pub(crate) fn revoked(&mut self, from: PeerId, header: &Header, now: Time) {
        let Some(held) = self.whereabouts(from, header) else { return };
        self.deny(from, header);
        if let Some((id, at)) = held {
            self.take_held(id, at);
            self.serve_backlog(id, now);
        }
    }
}
