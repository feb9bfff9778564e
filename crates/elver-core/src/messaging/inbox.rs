//! Messages that arrive: to which VQP, into which receive, and what cannot be received
//! (sections 4.1 and 4.4).

use core::num::NonZeroU16;

use elver_verbs::{Class, Device, Gid, Memory, Policy, Time, Via};

use crate::VqpId;
use crate::client::Client;
use crate::client::accept::{AcceptKey, Acceptance};
use crate::client::tell::Told;
use crate::connect::attach::Onto;
use crate::ids::PeerId;
use crate::keep_alive::Watched;
use crate::memory::mr::{LocalMrs, ScatterError};
use crate::messaging::gather::PIECE_BYTES;
use crate::messaging::incoming::{Body, Incoming};
use crate::messaging::message::{HEADER_BYTES, Header, Kind, Refusal};
use crate::vqp::Vqp;
use crate::vqp::phase::Phase;
use crate::vqp::recv_ring::RecvOutcome;
use crate::vqp::seq::{RecvSeq, SendSeq};
use crate::{ConnectError, Core, CoreError, VqpInit};

impl<D: Device> Core<D> {
    /// A message of a node's stands in a receive buffer.
    pub(crate) fn received(&mut self, buffer: u32, length: u32, from: Gid, now: Time) {
        let start = self.pool.recvs.offset(buffer);
        let mut bytes = [0; HEADER_BYTES];
        let whole = length as usize >= HEADER_BYTES
            && u64::from(length) <= self.pool.recvs.bytes
            && self.pool.memory.read(start, &mut bytes).is_ok();
        let header = if whole { Header::decode(&bytes).ok() } else { None };
        let Some(header) = header else {
            self.stats.messages_malformed += 1;
            return;
        };
        let body = length - HEADER_BYTES as u32;
        let fits = match header.kind {
            Kind::Eager => body == header.length,
            Kind::Rendezvous => u64::from(body) == u64::from(header.detail) * PIECE_BYTES as u64,
            _ => body == 0,
        };
        if !fits {
            self.stats.messages_malformed += 1;
            return;
        }
        let Some(from) = self.sender_of(from, header.tag, now) else {
            self.stats.messages_refused += 1;
            return;
        };
        match header.kind {
            Kind::Fin => self.message_read(from, &header, now),
            Kind::Nack => self.refused(from, &header, now),
            Kind::Query => self.queried(from, &header, now),
            Kind::Revoke => self.revoked(from, &header, now),
            Kind::Unknown => self.not_known(from, &header, now),
            Kind::Ask => self.asked(from, &header),
            Kind::Halt => self.halted(from, &header),
            Kind::Grant => self.granted(from, &header),
            Kind::CreditProbe => self.credit_probed(from, &header),
            Kind::Gone => self.parted(from, &header, now),
            Kind::Eager | Kind::Rendezvous | Kind::WriteImm => {
                let body = Body::Buffer(start + HEADER_BYTES as u64, body);
                if let Err(refusal) = self.deliver(from, &header, body, now) {
                    self.refuse((from, header.src_vqp), refusal, header.cookie);
                }
            }
        }
    }

    /// The node that a message came from; none if the device cannot tell, or as many are in use as
    /// may be. Nothing is believed of it: if the message was sent by another than the one that is
    /// known, that is looked up.
    #[inline]
    fn sender_of(&mut self, gid: Gid, tag: u16, now: Time) -> Option<PeerId> {
        if let Some((last, peer)) = self.messaging.sender_last
            && gid == last
            && let Some(entry) = self.peers.get(peer)
            && (entry.tag == Some(tag) || entry.record.is_none())
        {
            return Some(peer);
        }
        self.find_sender(gid, tag, now)
    }

    #[inline(never)]
    fn find_sender(&mut self, gid: Gid, tag: u16, now: Time) -> Option<PeerId> {
        if gid == Gid::default() {
            return None;
        }
        let peer = self.peer_that_sends(gid)?;
        self.messaging.sender_last = Some((gid, peer));
        let entry = self.peers.get(peer)?;
        if entry.tag != Some(tag) && entry.record.is_some() {
            self.sender_differs(peer, now);
        }
        Some(peer)
    }

    /// A message's sender is not what it is known as.
    #[cold]
    fn sender_differs(&mut self, peer: PeerId, now: Time) {
        if !self.discovery.is_meta_server(peer) && self.peers.may_refresh(peer, now) {
            self.refresh_node(peer, now);
        }
    }

    /// Brings a message to its VQP.
    #[inline]
    fn deliver(
        &mut self,
        from: PeerId,
        header: &Header,
        body: Body<'_>,
        now: Time,
    ) -> Result<(), Refusal> {
        self.stats.messages_received += 1;
        if let Some(refusal) = self.messaging.refusals.of((from, header.src_vqp), header.cookie) {
            return Err(refusal);
        }
        let (target, source) = self.target_of_message(from, header)?;
        if header.kind == Kind::Eager
            && let Body::Buffer(start, _) = body
            && self.receive_at_once(target, source, header, start)
        {
            return Ok(());
        }
        // In the error state it takes no receives.
        let vqp = self.vqps.get(target).filter(|vqp| !vqp.phase.is_over());
        let vqp = vqp.ok_or(Refusal::Gone)?;
        let receives = vqp.rq.has_next() && vqp.backlog.is_none();
        let incoming = Incoming {
            kind: header.kind,
            imm: header.imm,
            length: header.length,
            cookie: header.cookie,
            source,
            from: (from, header.src_vqp),
            tag: header.tag,
            until: self.arrivals.may_read_until(),
            ask_at: Time::ZERO,
        };
        if receives && (header.kind != Kind::Rendezvous || !self.waits(&incoming, now)) {
            self.receive(target, &incoming, &body, now);
            return Ok(());
        }
        self.hold_back(target, incoming, body, now)
    }

    /// The VQP that a message goes to, and the one that is connected to its sender, if it goes to a
    /// port.
    #[inline]
    fn target_of_message(
        &mut self,
        from: PeerId,
        header: &Header,
    ) -> Result<(VqpId, Option<VqpId>), Refusal> {
        if header.dst_vqp == 0 {
            // Messages come in rows.
            let nonce = (header.cookie >> 32) as u32;
            let key = (header.dst_port, header.tag, from, header.src_vqp, nonce);
            let port = NonZeroU16::new(header.dst_port);
            let binds = |vqp: &Vqp| vqp.bound == port && vqp.phase != Phase::Destroyed;
            if let Some((target, source)) = self.clients.accepts.last(key)
                && let accepted = Some((target, from, header.src_vqp))
                && self.vqps.get(target).is_some_and(|vqp| binds(vqp))
                && self.vqps.get(source).is_some_and(|vqp| vqp.takes_of(accepted))
            {
                return Ok((target, Some(source)));
            }
            let target = self.clients.ports.bound_to(header.dst_port).ok_or(Refusal::Port)?;
            let source = self.source_of(target, from, header)?;
            self.clients.accepts.set_last(key, target, source);
            return Ok((target, Some(source)));
        }
        let vqp = self.vqps.get(VqpId(header.dst_vqp));
        let vqp = vqp.filter(|vqp| vqp.phase.is_connected()).ok_or(Refusal::Gone)?;
        // Only what it is connected to may name a VQP: the node, and there the VQP, if it is known.
        if vqp.peer != Some(from) || vqp.peer_vqp.get().is_some_and(|vqp| vqp.0 != header.src_vqp) {
            self.stats.messages_strayed += 1;
            return Err(Refusal::Gone);
        }
        Ok((VqpId(header.dst_vqp), None))
    }

    /// A message finds no receive, others wait before it, or it cannot be read now: it waits.
    #[cold]
    fn hold_back(
        &mut self,
        target: VqpId,
        incoming: Incoming,
        body: Body<'_>,
        now: Time,
    ) -> Result<(), Refusal> {
        let waits = self.waits(&incoming, now);
        self.hold(target, incoming, body)?;
        self.halt_sender(target, incoming.from, incoming.cookie);
        if waits {
            self.serve_backlog(target, now);
        }
        Ok(())
    }

    /// Whether something is to be found out before a message is read.
    fn waits(&self, incoming: &Incoming, now: Time) -> bool {
        incoming.is_late(now) || !self.peers.is_readable(incoming)
    }

    /// The VQP that is connected to the sender of a message to a port. The first message makes it
    /// (`qpop_msgs`, section 4.1). Where to reach the sender is looked up when it is needed, if it is
    /// not known.
    fn source_of(&mut self, bound: VqpId, peer: PeerId, header: &Header) -> Result<VqpId, Refusal> {
        let key = (bound, peer, header.src_vqp);
        let nonce = (header.cookie >> 32) as u32;
        // A node that has started anew may have a VQP of the same number: it is another sender.
        let takes = |id: VqpId, same: bool| {
            let vqp = self.vqps.get(id).filter(|vqp| vqp.takes_of(Some(key)));
            vqp.is_some_and(|vqp| same || vqp.peer_tag == header.tag)
        };
        if let Some(source) = self.clients.accepts.hear(&key, nonce, takes) {
            return Ok(source);
        }
        if self.peers.is_spare(peer) && !self.takes_place(peer) {
            return Err(Refusal::Crowded);
        }
        let client = self.vqps.get(bound).map(|vqp| vqp.client).ok_or(Refusal::Port)?;
        let class = self.vqps.get(bound).map_or(Class::Low, |vqp| vqp.class);
        let init = VqpInit { class, ..VqpInit::default() };
        let source = self.create_accepted(client, peer, init).ok_or(Refusal::Crowded)?;
        // Without DC the RC QP that the message came over may be usable in a moment only.
        let entry = self.peers.get(peer);
        let unknown = entry.is_some_and(|entry| entry.record.is_none());
        let unsure = !unknown && entry.is_some_and(|entry| entry.tag != Some(header.tag));
        let later =
            if (unknown || unsure) && !self.lacks_dc(peer) { Via::DcLookup } else { Via::Rc };
        let at_hand = self.at_hand(peer, class, Policy::Shared).filter(|_| !unsure);
        let via = at_hand.unwrap_or(later);
        let onto = if unsure { Onto::Nothing } else { Onto::Shared };
        let attached: Result<(), CoreError> = self.attach(source, peer, via, onto);
        if let Some(vqp) = self.vqps.get_mut(source) {
            vqp.peer_vqp = VqpId(header.src_vqp).into();
            vqp.accepted = Some(Acceptance { key, peer_unsure: unsure });
            // What sent the message, whatever the peer is known as.
            (vqp.peer_tag, vqp.watched) = (header.tag, Watched::No);
        }
        let vqps = &self.vqps;
        let is_there = |id| vqps.get(id).is_some_and(|vqp| vqp.accepted.is_some());
        self.clients.accepts.push(source, is_there);
        if let Some(client) = self.clients.all.get_mut(client) {
            client.accepted.push(source, peer, is_there);
        }
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.accepted += 1;
        }
        if attached.is_err() {
            self.destroy(source, Time::ZERO);
            return Err(Refusal::Crowded);
        }
        self.clients.accepts.take_from(key, source, nonce);
        self.stats.accepts += 1;
        Ok(source)
    }

    /// A peer refused a message of a VQP's: the VQP fails.
    fn refused(&mut self, from: PeerId, header: &Header, now: Time) {
        let Some(refusal) = Refusal::from_code(header.detail) else {
            self.stats.messages_malformed += 1;
            return;
        };
        let gid = self.peers.gid_of(from);
        let Some(vqp) = self.sender_named(from, header) else { return };
        let cause = match refusal {
            Refusal::Port => ConnectError::NoSuchPort { gid, port: vqp.peer_port() },
            Refusal::Gone => ConnectError::PeerGone { gid },
            Refusal::Overrun => ConnectError::Overrun { gid },
            Refusal::Crowded => ConnectError::Crowded { gid },
            Refusal::Unfit => ConnectError::ReceiveUnfit { gid },
        };
        vqp.not_read(SendSeq::of_cookie(header.cookie));
        self.fail_for(VqpId(header.dst_vqp), cause, now);
    }
}

impl Vqp {
    /// Whether it is the VQP that is connected to a sender to a port, and still takes its messages.
    #[inline]
    fn takes_of(&self, accepted: Option<AcceptKey>) -> bool {
        self.phase.is_connected() && self.accepted.map(|own| own.key) == accepted
    }

    /// Copies a message's bytes into a receive.
    #[inline]
    pub(crate) fn copy_to_receive<M: Memory>(
        &mut self,
        seq: RecvSeq,
        length: u32,
        mrs: &LocalMrs<M>,
        memory: &M,
        body: &Body<'_>,
    ) -> Result<(), ScatterError> {
        let (client, len) = (self.client, u64::from(length));
        let (sges, hit) = (self.rq.sges(seq), &mut self.local);
        match *body {
            Body::Buffer(start, _) => mrs.scatter(client, hit, sges, len, |to, at, from, len| {
                to.copy_from(at, memory, start + from, len)
            }),
            Body::Held(bytes) => mrs.scatter(client, hit, sges, len, |to, at, from, len| {
                let from = from as usize;
                to.write(at, &bytes[from..from + len as usize])
            }),
        }
    }

    /// A receive has ended: it and those behind it that ended before are told, once those before it
    /// were.
    #[inline]
    pub(crate) fn end_receive(
        &mut self,
        seq: RecvSeq,
        mut outcome: RecvOutcome,
        client: &mut Client,
        told: &mut Told,
    ) {
        if self.rq.head != seq {
            self.rq.entry_mut(seq).outcome = Some(outcome);
            return;
        }
        loop {
            let wr_id = self.rq.entry(self.rq.head).wr_id;
            self.rq.head = self.rq.head.after(1);
            if self.phase == Phase::Destroyed {
                client.tell_nothing(1);
            } else {
                client.tell(self.client, outcome.completion(self.id, wr_id), told);
            }
            if self.rq.head == self.rq.next {
                return;
            }
            match self.rq.entry(self.rq.head).outcome {
                Some(ended) => outcome = ended,
                None => return,
            }
        }
    }
}
