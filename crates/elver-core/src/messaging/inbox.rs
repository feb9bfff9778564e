//! Messages that arrive: to which VQP, into which receive, and what cannot be received
//! (sections 4.1 and 4.4).

use alloc::boxed::Box;
use alloc::vec::Vec;

use elver_control::Class;
use elver_verbs::{Device, Gid, Memory, Time, WcOpcode, WcStatus};

use crate::client::Client;
use crate::client::accept::{AcceptKey, Acceptance};
use crate::discovery::peer::Waiter;
use crate::keep_alive::Watched;
use crate::memory::mr::{LocalMrs, ScatterError};
use crate::messaging::backlog::Halted;
use crate::messaging::gather::PIECE_BYTES;
use crate::messaging::incoming::{Body, Incoming};
use crate::messaging::message::{HEADER_BYTES, Header, Kind, Refusal};
use crate::messaging::notes::Note;
use crate::vqp::Vqp;
use crate::vqp::recv_ring::RecvOutcome;
use crate::vqp::send_ring::NONE;
use crate::{ClientId, ConnectError, Core, CoreError, Policy, Via, VqpInit, VqpState};

/// All held messages of a node may take so many times what one VQP's may.
const HELD_VQPS: u64 = 16;

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
            Kind::Ask => self.asked(from, &header, now),
            Kind::Halt => self.halted(from, &header),
            Kind::Grant => self.granted(from, &header, now),
            Kind::CreditProbe => self.credit_probed(from, &header, now),
            Kind::Gone => self.parted(from, &header, now),
            Kind::Eager | Kind::Rendezvous | Kind::WriteImm => {
                let body = Body::Buffer(start + HEADER_BYTES as u64, body);
                if let Err(refusal) = self.deliver(from, &header, body, now) {
                    self.refuse((from, header.src_vqp), refusal, header.cookie, now);
                }
            }
        }
    }

    /// The node that a message came from; none if the device cannot tell, or as many are in use as
    /// may be. Nothing is believed of it: if the message was sent by another than the one that is
    /// known, that is looked up.
    #[inline]
    fn sender_of(&mut self, gid: Gid, tag: u16, now: Time) -> Option<u32> {
        let (last, peer) = self.sender_last;
        if gid == last
            && let Some(entry) = self.peers.get(peer)
            && (entry.tag == Some(tag) || entry.record.is_none())
        {
            return Some(peer);
        }
        self.find_sender(gid, tag, now)
    }

    #[inline(never)]
    fn find_sender(&mut self, gid: Gid, tag: u16, now: Time) -> Option<u32> {
        if gid == Gid::default() {
            return None;
        }
        let peer = self.peer_of(gid)?;
        self.sender_last = (gid, peer);
        let entry = self.peers.get(peer)?;
        if entry.tag != Some(tag) && entry.record.is_some() {
            self.sender_differs(peer, now);
        }
        Some(peer)
    }

    /// A message's sender is not what it is known as.
    #[cold]
    fn sender_differs(&mut self, peer: u32, now: Time) {
        if !self.is_meta_server(peer) && self.may_refresh(peer, now) {
            self.refresh_node(peer, now);
        }
    }

    /// Brings a message to its VQP.
    #[inline]
    fn deliver(
        &mut self,
        from: u32,
        header: &Header,
        body: Body<'_>,
        now: Time,
    ) -> Result<(), Refusal> {
        self.stats.messages_received += 1;
        let (target, source) = self.target_of_message(from, header)?;
        // In the error state it takes no receives.
        let vqp = self.vqps.get(target).filter(|vqp| vqp.state != VqpState::Error);
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
            until: self.may_read_until(),
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
    fn target_of_message(&mut self, from: u32, header: &Header) -> Result<(u32, u32), Refusal> {
        if header.dst_vqp == 0 {
            // Messages come in rows.
            let key = (header.dst_port, from, header.src_vqp);
            let binds = |vqp: &Vqp| vqp.bound == header.dst_port && !vqp.zombie;
            if let Some((target, source)) = self.accepts.last(key)
                && let accepted = Some((target, from, header.src_vqp))
                && self.vqps.get(target).is_some_and(|vqp| binds(vqp))
                && self.vqps.get(source).is_some_and(|vqp| vqp.takes_of(accepted))
            {
                return Ok((target, source));
            }
            let target = self.ports.bound_to(header.dst_port).ok_or(Refusal::Port)?;
            let source = self.source_of(target, from, header)?;
            self.accepts.set_last(key, target, source);
            return Ok((target, source));
        }
        let vqp = self.vqps.get(header.dst_vqp).filter(|vqp| !vqp.zombie);
        let vqp = vqp.filter(|vqp| vqp.state == VqpState::Connected).ok_or(Refusal::Gone)?;
        // Only what it is connected to may name a VQP: the node, and there the VQP, if it is known.
        if vqp.peer != from || (vqp.peer_vqp != 0 && vqp.peer_vqp != header.src_vqp) {
            self.stats.messages_strayed += 1;
            return Err(Refusal::Gone);
        }
        Ok((header.dst_vqp, 0))
    }

    /// A message finds no receive, others wait before it, or it cannot be read now: it waits.
    #[cold]
    fn hold_back(
        &mut self,
        target: u32,
        incoming: Incoming,
        body: Body<'_>,
        now: Time,
    ) -> Result<(), Refusal> {
        let waits = self.waits(&incoming, now);
        self.hold(target, incoming, body)?;
        self.halt_sender(target, incoming.from, incoming.cookie, now);
        if waits {
            self.serve_backlog(target, now);
        }
        Ok(())
    }

    /// Whether something is to be found out before a message is read.
    fn waits(&self, incoming: &Incoming, now: Time) -> bool {
        incoming.is_late(now) || !self.is_readable(incoming)
    }

    /// Whether a message can be read from its sender, if it is one that must be: what the sender is
    /// now is known, and it is what it was then.
    fn is_readable(&self, incoming: &Incoming) -> bool {
        incoming.kind != Kind::Rendezvous
            || self.peers.get(incoming.from.0).is_some_and(|peer| {
                let reachable = peer.record.is_some() || peer.rc != [None; 2];
                reachable && peer.tag == Some(incoming.tag)
            })
    }

    /// A message's sender is looked up before the message is read.
    fn want_sender(&mut self, id: u32, peer: u32, now: Time) {
        let waiter = Waiter::Reader(id);
        if !self.peers.get(peer).is_some_and(|peer| peer.waiting.contains(&waiter)) {
            self.want_node(peer, waiter, now);
        }
    }

    /// The look-up of the sender of messages that wait at a VQP has ended: those that cannot be read
    /// now, of one that is gone or was another then, never can. If nobody was there to ask, it is
    /// asked again, until the sender would have to vouch for them anew.
    pub(crate) fn sender_found(&mut self, id: u32, peer: u32, asked: bool, now: Time) {
        if !asked {
            return self.held.ask_later(Self::query_at(now), id);
        }
        let unread = |core: &Core<D>| {
            let backlog = core.vqps.get(id)?.backlog.as_ref()?;
            backlog
                .messages
                .iter()
                .position(|(incoming, _)| incoming.from.0 == peer && !core.is_readable(incoming))
        };
        while let Some(at) = unread(self) {
            let Some((incoming, _)) = self.take_held(id, at, now) else {
                bug!("a message that waits is gone");
                break;
            };
            self.refuse(incoming.from, Refusal::Unfit, incoming.cookie, now);
        }
        // Not on top of this one's stack.
        self.held.ask_now(now, id);
    }

    /// The VQP that is connected to the sender of a message to a port. The first message makes it
    /// (`qpop_msgs`, section 4.1). Where to reach the sender is looked up when it is needed, if it is
    /// not known.
    fn source_of(&mut self, bound: u32, peer: u32, header: &Header) -> Result<u32, Refusal> {
        let key = (bound, peer, header.src_vqp);
        let nonce = (header.cookie >> 32) as u32;
        let takes = |id: u32| self.vqps.get(id).is_some_and(|vqp| vqp.takes_of(Some(key)));
        if let Some(source) = self.accepts.hear(&key, nonce, takes) {
            return Ok(source);
        }
        let client = self.vqps.get(bound).map(|vqp| vqp.client).ok_or(Refusal::Port)?;
        let class = self.vqps.get(bound).map_or(Class::Low, |vqp| vqp.class);
        let init = VqpInit { class, ..VqpInit::default() };
        let source = self.create_accepted(ClientId(client), peer, init).ok_or(Refusal::Crowded)?;
        // Without DC the RC QP that the message came over may be usable in a moment only.
        let entry = self.peers.get(peer);
        let unknown = entry.is_some_and(|entry| entry.record.is_none());
        let unsure = !unknown && entry.is_some_and(|entry| entry.tag != Some(header.tag));
        let later =
            if (unknown || unsure) && !self.lacks_dc(peer) { Via::DcLookup } else { Via::Rc };
        let at_hand = self.at_hand(peer, class, Policy::Shared).filter(|_| !unsure);
        let via = at_hand.unwrap_or(later);
        let lane = unsure.then_some(NONE);
        let attached: Result<(), CoreError> = self.attach(source, peer, via, lane);
        if let Some(vqp) = self.vqps.get_mut(source) {
            vqp.peer_vqp = header.src_vqp;
            vqp.accepted = Some(Acceptance { key, peer_unsure: unsure });
            // What sent the message, whatever the peer is known as.
            (vqp.peer_tag, vqp.watched) = (header.tag, Watched::No);
        }
        let vqps = &self.vqps;
        let is_there = |id| vqps.get(id).is_some_and(|vqp| vqp.accepted.is_some());
        self.accepts.push(source, is_there);
        if let Some(client) = self.clients.get_mut(client) {
            client.accepted.push(source, peer, is_there);
        }
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.accepted += 1;
        }
        if attached.is_err() {
            self.destroy(source, Time::ZERO);
            return Err(Refusal::Crowded);
        }
        self.accepts.take_from(key, source, nonce);
        self.stats.accepts += 1;
        Ok(source)
    }

    /// Puts a message aside until a receive is posted.
    fn hold(&mut self, target: u32, incoming: Incoming, body: Body<'_>) -> Result<(), Refusal> {
        let (offset, len) = match body {
            Body::Buffer(offset, len) => (offset, len),
            Body::Held(_) => return Err(Refusal::Overrun),
        };
        let vqp = self.vqps.get_mut(target).ok_or(Refusal::Gone)?;
        let backlog = vqp.backlog.get_or_insert_with(Box::default);
        let bytes = backlog.bytes + u64::from(len);
        let held_max = self.config.backlog_bytes.saturating_mul(HELD_VQPS);
        let over = backlog.messages.len() >= self.config.backlog as usize
            || bytes > self.config.backlog_bytes
            || !self.held.has_room(len.into(), held_max);
        let mut copy = alloc::vec![0; if over { 0 } else { len as usize }];
        if over || self.pool.memory.read(offset, &mut copy).is_err() {
            if backlog.messages.is_empty() {
                vqp.backlog = None;
            }
            return Err(Refusal::Overrun);
        }
        backlog.bytes = bytes;
        backlog.messages.push_back((incoming, copy));
        self.held.add(len.into());
        self.stats.messages_held += 1;
        Ok(())
    }

    /// Gives messages that wait to receives that were posted.
    pub(crate) fn serve_backlog(&mut self, id: u32, now: Time) {
        while let Some(vqp) = self.vqps.get_mut(id).filter(|vqp| vqp.rq.has_next())
            && let Some(backlog) = &mut vqp.backlog
        {
            if let Some((incoming, _)) = backlog.messages.front_mut()
                && incoming.is_late(now)
            {
                return self.ask_leave(id, now);
            }
            if let Some(incoming) = backlog.messages.front().map(|(incoming, _)| *incoming)
                && !self.is_readable(&incoming)
            {
                return self.want_sender(id, incoming.from.0, now);
            }
            let Some((incoming, bytes)) = self.take_held(id, 0, now) else {
                return bug!("a message that waits is gone");
            };
            // It may have failed for what its senders were told meanwhile: then nothing takes the message.
            if !self.vqps.get(id).is_some_and(|vqp| vqp.rq.has_next()) {
                return self.refuse(incoming.from, Refusal::Gone, incoming.cookie, now);
            }
            self.receive(id, &incoming, &Body::Held(&bytes), now);
        }
    }

    /// Takes the message at a place out of those that wait at a VQP.
    pub(crate) fn take_held(
        &mut self,
        id: u32,
        at: usize,
        now: Time,
    ) -> Option<(Incoming, Vec<u8>)> {
        let Core { vqps, config, .. } = self;
        let vqp = vqps.get_mut(id)?;
        let backlog = vqp.backlog.as_mut()?;
        let taken = backlog.messages.remove(at);
        let bytes = taken.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64);
        backlog.bytes -= bytes;
        let low = backlog.is_low(config);
        let resumed = if low { core::mem::take(&mut backlog.halted) } else { Halted::new() };
        if backlog.messages.is_empty() {
            vqp.backlog = None;
        }
        self.held.remove(bytes);
        self.resume_senders(id, resumed, now);
        taken
    }

    /// Drops the messages that wait at a VQP in its error state.
    pub(crate) fn drop_backlog(&mut self, id: u32, now: Time) {
        let Some(backlog) = self.vqps.get_mut(id).and_then(|vqp| vqp.backlog.take()) else {
            return;
        };
        self.held.remove(backlog.bytes);
        for (incoming, _) in backlog.messages {
            self.refuse(incoming.from, Refusal::Gone, incoming.cookie, now);
        }
        // The next one that each sends is refused.
        self.resume_senders(id, backlog.halted, now);
    }

    /// Puts a message into the next receive of a VQP, which has one.
    #[inline]
    fn receive(&mut self, id: u32, incoming: &Incoming, body: &Body<'_>, now: Time) {
        let Core { vqps, clients, mrs, pool, stats, ready_clients, .. } = self;
        let Some(vqp) = vqps.get_mut(id) else { return bug!("a VQP that is gone receives") };
        let seq = vqp.rq.next;
        vqp.rq.next = seq.wrapping_add(1);
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
                Err(status) => return self.fail_receive(id, seq, incoming, status, now),
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
            return self.fail_receive(id, seq, incoming, status, now);
        }
        if vqp.rq.head != seq || vqp.zombie {
            return self.end_receive(id, seq, incoming, WcStatus::Success, opcode);
        }
        // Nothing is before it, and nothing behind.
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        vqp.rq.head = vqp.rq.next;
        let outcome = RecvOutcome::of(incoming, WcStatus::Success, opcode);
        client.completions.push_back(outcome.completion(vqp.id, vqp.rq.entry(seq).wr_id));
        stats.completions += 1;
        if !client.ready {
            client.ready = true;
            ready_clients.push_back(vqp.client);
        }
    }

    /// A message did not get into its receive: both ends are told.
    #[cold]
    pub(crate) fn fail_receive(
        &mut self,
        id: u32,
        seq: u32,
        incoming: &Incoming,
        status: WcStatus,
        now: Time,
    ) {
        self.refuse(incoming.from, Refusal::Unfit, incoming.cookie, now);
        self.end_receive(id, seq, incoming, status, WcOpcode::Recv);
    }

    /// A receive has ended; it is told when those before it were.
    #[inline(never)]
    pub(crate) fn end_receive(
        &mut self,
        id: u32,
        seq: u32,
        incoming: &Incoming,
        status: WcStatus,
        opcode: WcOpcode,
    ) {
        let Core { vqps, clients, stats, ready_clients, .. } = self;
        // To tell a sender that it was refused may have ended what a VQP waited for that is to go.
        let Some(vqp) = vqps.get_mut(id) else { return };
        let Some(client) = clients.get_mut(vqp.client) else { return bug!("a VQP has no client") };
        let told = vqp.end_receive(seq, RecvOutcome::of(incoming, status, opcode), client);
        stats.completions += told;
        if told > 0 && !client.ready {
            client.ready = true;
            ready_clients.push_back(vqp.client);
        }
    }

    /// Tells the sender of a message that it was refused.
    pub(crate) fn refuse(&mut self, to: (u32, u32), refusal: Refusal, cookie: u64, now: Time) {
        self.stats.messages_refused += 1;
        let note = Note::to_sender(Kind::Nack, to.1, cookie);
        self.tell(to.0, Note { detail: refusal as u16, ..note }, now);
    }

    /// A peer refused a message of a VQP's: the VQP fails.
    fn refused(&mut self, from: u32, header: &Header, now: Time) {
        let Some(refusal) = Refusal::from_code(header.detail) else {
            self.stats.messages_malformed += 1;
            return;
        };
        let gid = self.gid_of(from);
        let Some(vqp) = self.sender_named(from, header) else { return };
        let cause = match refusal {
            Refusal::Port => ConnectError::NoSuchPort { gid, port: vqp.peer_port },
            Refusal::Gone => ConnectError::PeerGone { gid },
            Refusal::Overrun => ConnectError::Overrun { gid },
            Refusal::Crowded => ConnectError::Crowded { gid },
            Refusal::Unfit => ConnectError::ReceiveUnfit { gid },
        };
        vqp.not_read(header.cookie as u32);
        self.fail_for(header.dst_vqp, cause, now);
    }
}

impl Vqp {
    /// Whether it is the VQP that is connected to a sender to a port, and still takes its messages.
    #[inline]
    fn takes_of(&self, accepted: Option<AcceptKey>) -> bool {
        self.state == VqpState::Connected && self.accepted.map(|own| own.key) == accepted
    }

    /// Copies a message's bytes into a receive.
    #[inline]
    fn copy_to_receive<M: Memory>(
        &mut self,
        seq: u32,
        length: u32,
        mrs: &LocalMrs<M>,
        memory: &M,
        body: &Body<'_>,
    ) -> Result<(), ScatterError> {
        let (client, len) = (ClientId(self.client), u64::from(length));
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
    /// were. Returns how many were.
    #[inline]
    fn end_receive(&mut self, seq: u32, mut outcome: RecvOutcome, client: &mut Client) -> u64 {
        if self.rq.head != seq {
            self.rq.entry_mut(seq).outcome = Some(outcome);
            return 0;
        }
        let mut told = 0;
        loop {
            let wr_id = self.rq.entry(self.rq.head).wr_id;
            self.rq.head = self.rq.head.wrapping_add(1);
            if self.zombie {
                count_off!(client.pending, 1);
            } else {
                client.completions.push_back(outcome.completion(self.id, wr_id));
                told += 1;
            }
            if self.rq.head == self.rq.next {
                return told;
            }
            match self.rq.entry(self.rq.head).outcome {
                Some(ended) => outcome = ended,
                None => return told,
            }
        }
    }
}
