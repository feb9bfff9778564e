//! Messages that wait at VQPs: kept, taken, refused, and how receives end.

use alloc::boxed::Box;
use alloc::vec::Vec;

use elver_verbs::{Device, Memory, Time, WcOpcode, WcStatus};

use crate::Core;
use crate::VqpId;
use crate::client::all::Clients;
use crate::discovery::peer::Peers;
use crate::ids::PeerId;
use crate::messaging::backlog::{Backlog, Halted, cost_of};
use crate::messaging::incoming::{Body, Incoming};
use crate::messaging::message::{Kind, Refusal};
use crate::vqp::recv_ring::RecvOutcome;
use crate::vqp::seq::RecvSeq;

/// All held messages of a node may cost so many times what one VQP's may, and those of an account half of what the others'
/// leave of that.
const HELD_VQPS: u64 = 16;

impl Peers {
    /// Whether a message can be read from its sender, if it is one that must be: what the sender is
    /// now is known, and it is what it was then.
    pub(crate) fn is_readable(&self, incoming: &Incoming) -> bool {
        incoming.kind != Kind::Rendezvous
            || self.get(incoming.from.0).is_some_and(|peer| {
                let reachable = peer.record.is_some() || peer.rc != [None; 2];
                reachable && peer.tag == Some(incoming.tag)
            })
    }
}

impl<D: Device> Core<D> {
    /// Puts a message aside until a receive is posted.
    pub(crate) fn hold(
        &mut self,
        target: VqpId,
        incoming: Incoming,
        body: Body<'_>,
    ) -> Result<(), Refusal> {
        let (offset, len) = match body {
            Body::Buffer(offset, len) => (offset, len),
            Body::Held(_) => return Err(Refusal::Overrun),
        };
        let vqp = self.vqps.get_mut(target).ok_or(Refusal::Gone)?;
        let account = self.clients.all.get(vqp.client).map_or(0, |client| client.limits.account);
        let backlog =
            vqp.backlog.get_or_insert_with(|| Box::new(Backlog { account, ..Backlog::default() }));
        let account = backlog.account;
        let cost = cost_of(len as usize);
        let bytes = backlog.bytes + cost;
        let held_max = self.config.backlog_bytes.saturating_mul(HELD_VQPS);
        let over = backlog.messages.len() >= self.config.backlog as usize
            || bytes > self.config.backlog_bytes
            || !self.messaging.held.has_room(account, cost, held_max);
        let mut copy = alloc::vec![0; if over { 0 } else { len as usize }];
        if over || self.pool.memory.read(offset, &mut copy).is_err() {
            if backlog.messages.is_empty() {
                vqp.backlog = None;
            }
            return Err(Refusal::Overrun);
        }
        backlog.bytes = bytes;
        backlog.messages.push_back((incoming, copy));
        self.messaging.held.add(account, cost);
        self.stats.messages_held += 1;
        Ok(())
    }

    /// Takes the message at a place out of those that wait at a VQP.
    pub(crate) fn take_held(&mut self, id: VqpId, at: usize) -> Option<(Incoming, Vec<u8>)> {
        let Core { vqps, config, .. } = self;
        let vqp = vqps.get_mut(id)?;
        let backlog = vqp.backlog.as_mut()?;
        let taken = backlog.take(at);
        let bytes = taken.as_ref().map_or(0, |(_, bytes)| cost_of(bytes.len()));
        backlog.bytes -= bytes;
        let account = backlog.account;
        let low = backlog.is_low(config);
        let resumed = if low { core::mem::take(&mut backlog.halted) } else { Halted::new() };
        if backlog.messages.is_empty() {
            vqp.backlog = None;
        }
        self.messaging.held.remove(account, bytes);
        self.resume_senders(id, resumed);
        taken
    }

    /// Drops the messages that wait at a VQP in its error state.
    pub(crate) fn drop_backlog(&mut self, id: VqpId) {
        let Some(backlog) = self.vqps.get_mut(id).and_then(|vqp| vqp.backlog.take()) else {
            return;
        };
        self.messaging.held.remove(backlog.account, backlog.bytes);
        for (incoming, _) in backlog.messages {
            self.refuse(incoming.from, Refusal::Gone, incoming.cookie);
        }
        // The next one that each sends is refused.
        self.resume_senders(id, backlog.halted);
    }

    /// The look-up of the sender of messages that wait at a VQP has ended: those that cannot be read
    /// now, of one that is gone or was another then, never can. If nobody was there to ask, it is
    /// asked again, until the sender would have to vouch for them anew.
    pub(crate) fn sender_found(&mut self, id: VqpId, peer: PeerId, asked: bool, now: Time) {
        if !asked {
            return self.messaging.held.ask_later(Self::query_at(now), id);
        }
        let unread = |core: &Core<D>| {
            let backlog = core.vqps.get(id)?.backlog.as_ref()?;
            backlog.messages.iter().position(|(incoming, _)| {
                incoming.from.0 == peer && !core.peers.is_readable(incoming)
            })
        };
        while let Some(at) = unread(self) {
            let Some((incoming, _)) = self.take_held(id, at) else {
                bug!("a message that waits is gone");
                break;
            };
            self.refuse(incoming.from, Refusal::Unfit, incoming.cookie);
        }
        // Not on top of this one's stack.
        self.messaging.held.ask_now(now, id);
    }

    /// A message did not get into its receive: both ends are told.
    #[cold]
    pub(crate) fn fail_receive(
        &mut self,
        id: VqpId,
        seq: RecvSeq,
        incoming: &Incoming,
        status: WcStatus,
    ) {
        self.refuse(incoming.from, Refusal::Unfit, incoming.cookie);
        self.end_receive(id, seq, incoming, status, WcOpcode::Recv);
    }

    /// A receive has ended; it is told when those before it were.
    #[inline(never)]
    pub(crate) fn end_receive(
        &mut self,
        id: VqpId,
        seq: RecvSeq,
        incoming: &Incoming,
        status: WcStatus,
        opcode: WcOpcode,
    ) {
        let Core { vqps, clients: Clients { all: clients, told, .. }, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP whose receive ends is gone") };
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        vqp.end_receive(seq, RecvOutcome::of(incoming, status, opcode), client, told);
    }
}
