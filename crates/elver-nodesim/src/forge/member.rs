//! A member gone bad: it has all records, with every DC access key, Q_Key and the key of the table of
//! regions, and speaks in its own name, which may do little harm. And somebody who has them and forges
//! the address of a victim, who must not be sent more than came in its name.

use std::net::IpAddr;

use elver_core::{Answer, CONTROL_BYTES_MAX, ControlBody, ControlMessage, RcEnd, Request};
use elver_sim::Datagram;
use elver_verbs::{AccessFlags, Gid, QpType};
use elver_wire::{
    AtomicEth, DcConnect, DcExtra, Deth, Message, PacketView, Qpn, Reth, Route, Tail, UDP_PORT,
};

use super::craft::{Note, Operation, any, flow, packet, with_token};
use super::state::{Forge, OWN, Prey, QPN, Session, VICTIM};
use crate::canary::Canary;
use crate::model::{Hold, Region, bytes};
use crate::world::World;

/// Messages to ports that it sends in a run, at most.
const MESSAGES_MAX: u32 = 12;
/// Sessions that it goes on with.
const SESSIONS_MAX: usize = 8;
/// Bytes of its messages.
const MESSAGE_BYTES: u64 = 64;
/// Bytes of READs that it asks for in a victim's name.
const MUCH: [u32; 4] = [0, 340, 65_536, 1 << 30];
/// The code of a path MTU of 1,024 bytes.
const MTU_CODE: u8 = 3;
/// Kind of a message whose bytes follow, of one that is to be read, and of one behind a WRITE.
const EAGER: u8 = 1;
const RENDEZVOUS: u8 = 2;
const WRITE_IMM: u8 = 3;
/// Bytes that say where a piece of a long message may be read.
const PIECE_BYTES: usize = 16;

impl Forge {
    pub(super) fn member(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let over_rc = self.record.is_some() && self.rng.percent(30);
        if over_rc && let Some(forged) = self.over_rc(world, prey) {
            return Some(forged);
        }
        if !world.plan.has_dc(prey.node) {
            return self.asks(world, prey);
        }
        match self.rng.below(10) {
            0..2 => self.asks(world, prey),
            2..4 => {
                let message = self.own_message(world, prey);
                self.over_dc(world, prey, OWN.into(), message?)
            }
            4..7 => {
                let message = self.forbidden(world, prey);
                self.over_dc(world, prey, OWN.into(), message)
            }
            7 => {
                let note = self.note(world, prey);
                let message = (Message::SendOnly(Tail::Plain), note.with(&[]));
                self.over_dc(world, prey, OWN.into(), message)
            }
            _ => {
                let message = self.much(world, prey);
                self.over_dc(world, prey, VICTIM.into(), message)
            }
        }
    }

    /// Has meta servers know it that do not yet, if it is registered.
    pub(super) fn enlist(&mut self, world: &mut World) {
        let Some(record) = self.record else { return };
        for place in world.registry.served_at() {
            let (node, boot) = place;
            if world.nodes[node].boot == boot
                && let Some(core) = world.nodes[node].engine.call()
                && !self.known_at.contains(&place)
                && core.meta_put(Gid::from(IpAddr::V4(OWN)), record).is_ok()
            {
                self.known_at.insert(place);
            }
        }
    }

    /// What it answers where a node asks it something: as to queue pairs that nobody needs, what has them
    /// go, and else anything.
    pub(super) fn reply(&mut self, world: &World, asked: &Datagram) -> Option<Datagram> {
        self.record?;
        let view = PacketView::parse(&asked.bytes).ok()?;
        let Route::Ud(_) = view.headers().route() else { return None };
        let ControlMessage { id, body } = ControlMessage::decode(view.payload()).ok()?;
        let ControlBody::Request(request) = body else { return None };
        let answer = match request {
            Request::RcClose { .. } => Answer::Closed,
            Request::RcFate { psn, .. } => {
                let psn = self.rng.pick(&[psn, psn + 1, self.serial]) & 0xff_ffff;
                Answer::Fate(self.rng.percent(70).then_some(psn))
            }
            Request::RcConnect { end, .. } => Answer::Accepted(RcEnd { qpn: QPN, ..end }),
            Request::Meta => Answer::Record(self.record?),
            Request::Alive { ports, .. } => {
                Answer::Alive { turns: self.rng.percent(90), bound: ports }
            }
        };
        let node = world.gids.iter().position(|gid| *gid == Gid::from(asked.flow.src.ip()))?;
        let record = world.nodes[node].engine.core()?.record();
        let prey = Prey { node, address: asked.flow.src.ip(), record };
        self.says(&prey, ControlMessage { id, body: ControlBody::Answer(answer) })
    }

    /// A request over an RC QP that a node has made for it.
    fn over_rc(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let mut ends = world.qps_of(prey.node, QpType::Rc);
        ends.retain(|end| self.is(end.peer));
        let end = any(&mut self.rng, &ends)?;
        let (message, payload) = match self.rng.below(3) {
            0 => self.forbidden(world, prey),
            1 => self.own_message(world, prey)?,
            _ => (Message::SendOnly(Tail::Plain), self.note(world, prey).with(&[])),
        };
        let flow = flow((OWN.into(), UDP_PORT), prey.address);
        packet(flow, Route::Rc, (message, &payload), end.qpn, end.expects)
    }

    /// A control message with the Q_Key.
    fn asks(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let body = self.control_body(world, prey);
        let id = self.rng.next_u64();
        self.says(prey, ControlMessage { id, body })
    }

    fn says(&self, prey: &Prey, message: ControlMessage) -> Option<Datagram> {
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let len = message.encode(&mut bytes);
        let src_qpn = Qpn::from_wrapping(QPN);
        let route = Route::Ud(Deth { qkey: prey.record.control_qkey(), src_qpn });
        let send = (Message::SendOnly(Tail::Plain), &bytes[..len]);
        let flow = flow((OWN.into(), UDP_PORT), prey.address);
        packet(flow, route, send, prey.record.control_qpn, 0)
    }

    /// A request in a session of its own, or in the name of another address.
    fn over_dc(
        &mut self,
        world: &mut World,
        prey: &Prey,
        from: IpAddr,
        (message, payload): Operation,
    ) -> Option<Datagram> {
        let place = world.nodes[prey.node].place(prey.node);
        let (src_qpn, number) = (self.rng.next_u64() as u32, self.rng.next_u64() as u32);
        let new = Session { place, from, eth: self.dc_eth(src_qpn, number), next: number };
        let open = |session: &Session| session.place == place && session.from == from;
        let open = self.sessions.iter().position(open).filter(|_| self.rng.percent(50));
        let at = open.unwrap_or_else(|| {
            if self.sessions.len() == SESSIONS_MAX {
                self.sessions.remove(0);
            }
            self.sessions.push(new);
            self.sessions.len() - 1
        });
        let session = &mut self.sessions[at];
        let (eth, psn) = (session.eth, session.next);
        let packets = match message {
            Message::ReadRequest(reth) => reth.len.div_ceil(1_024).max(1),
            _ => 1,
        };
        session.next = psn.wrapping_add(packets);
        let known = self.tokens.get(&(from, prey.address)).copied();
        let knows = from == IpAddr::V4(OWN) || world.planter.strikes(Canary::UncheckedToken);
        let token = known.filter(|_| knows).unwrap_or_else(|| self.rng.pick(&[0, 7]));
        if known == Some(token) && from == IpAddr::V4(OWN) {
            self.proved.insert(from);
        }
        let access_key = prey.record.dc_key;
        let connect = DcConnect { access_key, token: 0, mtu: MTU_CODE };
        let extra = match self.rng.below(8) {
            0 => DcExtra::None,
            1 | 2 => DcExtra::Token(0),
            _ => DcExtra::Connect(connect),
        };
        let route = Route::Dc { eth, extra: with_token(extra, token) };
        let flow = flow((from, UDP_PORT), prey.address);
        packet(flow, route, (message, &payload), prey.record.dctn, psn)
    }

    /// A message to a port, in its own name; to be read from where there is nothing, now and then.
    fn own_message(&mut self, world: &mut World, prey: &Prey) -> Option<Operation> {
        let place = world.nodes[prey.node].place(prey.node);
        let ports = world.model.ports.range((place, 0)..=(place, u16::MAX));
        let bound = ports.filter(|(_, by)| by.is_some()).map(|((_, port), _)| *port);
        let port = any(&mut self.rng, &bound.collect::<Vec<_>>())?;
        if self.messages == MESSAGES_MAX {
            return None;
        }
        self.messages += 1;
        world.model.crowd();
        let id = self.writing();
        let kind = self.rng.pick(&[EAGER, EAGER, EAGER, RENDEZVOUS, WRITE_IMM]);
        self.sends_long |= kind == RENDEZVOUS;
        let len = 8 + self.rng.below(MESSAGE_BYTES) as u32;
        let body = match kind {
            EAGER => bytes(id, len),
            RENDEZVOUS => vec![1; PIECE_BYTES],
            _ => Vec::new(),
        };
        let imm = kind == WRITE_IMM || self.rng.percent(30);
        let note = Note {
            kind,
            to_port: true,
            to: port.into(),
            from: self.rng.between(1, 3) as u32,
            detail: u16::from(kind == RENDEZVOUS),
            imm: imm.then_some(id as u32),
            length: len,
            cookie: id,
            ..Note::default()
        };
        Some((Message::SendOnly(Tail::Plain), note.with(&body)))
    }

    /// What a region does not permit, which some other region might, or which was permitted once.
    fn forbidden(&mut self, world: &mut World, prey: &Prey) -> Operation {
        let place = world.nodes[prey.node].place(prey.node);
        let here = |region: &&Region| region.place == place && region.hold != Hold::Dropping;
        let regions: Vec<&Region> = world.model.regions.iter().filter(here).collect();
        let id = self.writing();
        let payload = bytes(id, 8);
        if regions.is_empty() {
            let reth = Reth { va: 0, rkey: prey.record.mrs_rkey, len: 8 };
            return (Message::WriteOnly(reth, None), payload);
        }
        let region = regions[self.rng.index(regions.len())];
        let (mut va, mut rkey) = (region.addr, region.rkey);
        let writable = region.access.contains(AccessFlags::REMOTE_WRITE);
        let gone = region.hold == Hold::Back;
        if !gone {
            match self.rng.below(4) {
                // The table of regions is for READs.
                0 => (va, rkey) = (0, prey.record.mrs_rkey),
                1 => va = region.addr + region.memory.view().len() as u64 - 7,
                2 if !writable => {}
                _ => rkey ^= 1 << self.rng.below(32),
            }
        }
        let words = AtomicEth { va: va & !7, rkey, swap_or_add: id, compare: 0 };
        let atomic = gone || (rkey != region.rkey && rkey != prey.record.mrs_rkey);
        let message = match self.rng.below(3) {
            0 if atomic => Message::FetchAdd(words),
            1 if atomic => Message::CmpSwp(words),
            _ => return (Message::WriteOnly(Reth { va, rkey, len: 8 }, None), payload),
        };
        (message, Vec::new())
    }

    /// A READ that is permitted, as long as it likes.
    fn much(&mut self, world: &mut World, prey: &Prey) -> Operation {
        let place = world.nodes[prey.node].place(prey.node);
        let here = |region: &&Region| {
            let reads = region.access.contains(AccessFlags::REMOTE_READ);
            region.place == place && region.hold == Hold::Open && reads && !region.vanished
        };
        let regions: Vec<&Region> = world.model.regions.iter().filter(here).collect();
        let len = self.rng.pick(&MUCH);
        let (va, rkey, most) = match regions.is_empty() {
            true => (0, prey.record.mrs_rkey, 64),
            false => {
                let region = regions[self.rng.index(regions.len())];
                (region.addr, region.rkey, region.memory.view().len() as u32)
            }
        };
        let len = if self.rng.percent(80) { len.min(most) } else { len };
        (Message::ReadRequest(Reth { va, rkey, len }), Vec::new())
    }
}
