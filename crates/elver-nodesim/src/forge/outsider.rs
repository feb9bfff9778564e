//! Who has no secret: a host off the path, and a process of another user on a node's host, which has
//! them all and not the port.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;

use elver_core::{
    Answer, CONTROL_BYTES_MAX, Class, ControlBody, ControlMessage, NodeRecord, PORTS_ASKED, RcEnd,
    Request,
};
use elver_sim::Datagram;
use elver_verbs::{Mtu, QpType};
use elver_wire::{
    Aeth, Credits, DcConnect, DcExtra, Deth, Message, Msn, NakCode, PacketView, Qpn, RnrTimer,
    Route, Syndrome, Tail, UDP_PORT,
};

use super::craft::{any, flow, packet, redirected};
use super::state::{Forge, OWN, Prey};
use crate::canary::Canary;
use crate::plan::Plan;
use crate::world::World;

/// A port that an ordinary process gets.
const OTHER_PORT: u16 = 50_000;
/// A QPN of somebody's who has no device.
const QPN: u32 = 0x00_0777;
/// Addresses that nobody has.
const FLOOD: u32 = 0x0a63_0000;
/// Codes of IP's congestion bits.
const TRAFFIC_CLASSES: u64 = 4;
const MTU_CODES: u64 = 6;

impl Forge {
    /// What a host off the path sends that has no secret.
    pub(super) fn stranger(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let datagram = match self.rng.below(12) {
            0 => Some(self.nonsense(prey)),
            1..4 => self.control(world, prey),
            4..8 => self.dc_request(world, prey),
            8..10 => self.rc_request(world, prey),
            10 => self.answer(world, prey),
            _ => self.congestion(world, prey),
        };
        datagram.map(|datagram| {
            let traffic_class = self.rng.below(TRAFFIC_CLASSES) as u8;
            Datagram { traffic_class, ..datagram }
        })
    }

    /// What a process of another user on a node's host sends: all is right but the port.
    pub(super) fn process(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let port = if world.planter.strikes(Canary::UncheckedPort) { UDP_PORT } else { OTHER_PORT };
        let host = Plan::address(self.rng.index(world.plan.nodes));
        match self.rng.below(4) {
            0 => {
                let from = self.record_at(world, host).map_or(QPN, |record| record.control_qpn);
                let body = self.control_body(world, prey);
                let qkey = prey.record.control_qkey();
                self.control_datagram((host, port), prey, qkey, from, body)
            }
            1 | 2 => {
                let (message, payload) = self.operation(world, prey);
                let (from, session) = (self.rng.next_u64() as u32, self.rng.next_u64() as u32);
                let eth = self.dc_eth(from, session);
                let connect = DcConnect { access_key: prey.record.dc_key, token: 0, mtu: 3 };
                let route = Route::Dc { eth, extra: DcExtra::Connect(connect) };
                let flow = flow((host, port), prey.address);
                packet(flow, route, (message, &payload), prey.record.dctn, session)
            }
            _ => {
                // What its host's device has sent, or another's, of transports that mind the port.
                let heard = self.heard_of_ported()?;
                let mut flow = heard.flow;
                flow.src.set_port(OTHER_PORT);
                Some(redirected(heard, flow))
            }
        }
    }

    /// A datagram that he has heard, of DC or UD.
    fn heard_of_ported(&mut self) -> Option<Datagram> {
        let chosen = self.rng.index(self.heard.len().max(1));
        let heard = self.heard.get(chosen)?;
        let view = PacketView::parse(&heard.bytes).ok()?;
        let minds = matches!(view.headers().route(), Route::Dc { .. } | Route::Ud(_));
        minds.then(|| heard.clone())
    }

    /// Bytes that mean nothing, with a good checksum or without.
    fn nonsense(&mut self, prey: &Prey) -> Datagram {
        let flow = flow(self.stranger_at(), prey.address);
        let mut bytes = self.noise(200);
        let sealed = bytes.len() > 20 && self.rng.percent(70);
        let datagram = Datagram { flow, traffic_class: 0, bytes: bytes.clone() };
        if !sealed {
            return datagram;
        }
        let [.., high, middle, low] = prey.record.dctn.to_be_bytes();
        bytes[5..8].copy_from_slice(&[high, middle, low]);
        redirected(Datagram { bytes, ..datagram }, flow)
    }

    /// An address of his own, or one of very many.
    fn stranger_at(&mut self) -> (IpAddr, u16) {
        let address = match self.rng.percent(70) {
            true => OWN,
            false => Ipv4Addr::from(FLOOD | self.rng.below(1 << 16) as u32),
        };
        (IpAddr::V4(address), self.rng.pick(&[UDP_PORT, UDP_PORT, OTHER_PORT]))
    }

    /// An address of his own, or of a node.
    fn anybody_at(&mut self, world: &World) -> (IpAddr, u16) {
        if self.rng.percent(50) {
            return self.stranger_at();
        }
        let node = self.rng.index(world.plan.nodes);
        (Plan::address(node), self.rng.pick(&[UDP_PORT, OTHER_PORT]))
    }

    fn record_at(&self, world: &World, address: IpAddr) -> Option<NodeRecord> {
        let node = (0..world.plan.nodes).find(|node| Plan::address(*node) == address)?;
        Some(world.nodes[node].engine.core()?.record())
    }

    /// A control message without the Q_Key.
    fn control(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let src = self.anybody_at(world);
        let body = self.control_body(world, prey);
        let right = prey.record.control_qkey();
        let wrong = self.other_than(right.into()) as u32;
        let known = world.planter.strikes(Canary::UncheckedQkey);
        let qkey = if known || wrong == right { right ^ u32::from(!known) } else { wrong };
        let from = self.record_at(world, src.0).map_or(QPN, |record| record.control_qpn);
        self.control_datagram(src, prey, qkey, from, body)
    }

    fn control_datagram(
        &mut self,
        src: (IpAddr, u16),
        prey: &Prey,
        qkey: u32,
        from: u32,
        body: ControlBody,
    ) -> Option<Datagram> {
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let id = self.rng.next_u64();
        let len = ControlMessage { id, body }.encode(&mut bytes);
        if self.rng.percent(10) {
            // Not as its kind is.
            let at = self.rng.index(len);
            bytes[at] ^= 1 << self.rng.below(8);
        }
        let route = Route::Ud(Deth { qkey, src_qpn: Qpn::from_wrapping(from) });
        let send = (Message::SendOnly(Tail::Plain), &bytes[..len]);
        packet(flow(src, prey.address), route, send, prey.record.control_qpn, 0)
    }

    /// Any request, and any answer, of queue pairs that there are.
    pub(super) fn control_body(&mut self, world: &mut World, prey: &Prey) -> ControlBody {
        let end = any(&mut self.rng, &world.qps_of(prey.node, QpType::Rc));
        let (qpn, psn) = end.map_or((QPN, 0), |end| (end.qpn, end.expects));
        let peer_qpn = self.rng.next_u64() as u32 & 0xff_ffff | 2;
        let own = RcEnd { qpn: QPN, psn: 1, mtu: Mtu::Mtu1024, rd_atomic: 16 };
        let class = self.rng.pick(&[Class::Low, Class::High]);
        let leased = self.rng.percent(30);
        match self.rng.below(11) {
            0 => ControlBody::Request(Request::Meta),
            1 => ControlBody::Request(Request::RcConnect { end: own, class, leased }),
            2 => ControlBody::Request(Request::RcClose { qpn, peer_qpn }),
            3 => ControlBody::Request(Request::RcFate { qpn, peer_qpn, psn }),
            4 => ControlBody::Answer(Answer::Accepted(own)),
            5 => ControlBody::Answer(Answer::Closed),
            6 => ControlBody::Answer(Answer::Fate(Some(psn))),
            7 => ControlBody::Answer(Answer::Record(prey.record)),
            // That a node is there, and that nobody has any of its ports.
            8 => ControlBody::Answer(Answer::Alive { turns: false, bound: [None; PORTS_ASKED] }),
            9 => {
                let qkey = prey.record.control_qkey() ^ self.rng.next_u64() as u32 & 1;
                ControlBody::Request(Request::Alive {
                    qkey,
                    ports: [Some(NonZeroU16::MIN); PORTS_ASKED],
                })
            }
            _ => ControlBody::Answer(Answer::Busy { retry_after_us: u32::MAX }),
        }
    }

    /// A DC request without the access key.
    fn dc_request(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let src = self.anybody_at(world);
        let (message, payload) = self.operation(world, prey);
        let initiators = self.dcis_of(world, src.0);
        let (from, session) = (any(&mut self.rng, &initiators), self.rng.next_u64() as u32);
        let eth = self.dc_eth(from.unwrap_or(QPN), session);
        let right = prey.record.dc_key;
        let known = world.planter.strikes(Canary::UncheckedKey);
        let access_key = if known { right } else { self.other_than(right) };
        let token = self.tokens.get(&(src.0, prey.address)).copied();
        let token = token.unwrap_or_else(|| self.rng.pick(&[0, 7]));
        let connect = DcConnect { access_key, token, mtu: self.rng.below(MTU_CODES) as u8 };
        let extra = match self.rng.below(8) {
            0 => DcExtra::None,
            1 => DcExtra::Token(token),
            _ => DcExtra::Connect(connect),
        };
        let late = u32::from(self.rng.percent(20));
        let route = Route::Dc { eth, extra };
        let flow = flow(src, prey.address);
        let psn = session.wrapping_add(late);
        packet(flow, route, (message, &payload), prey.record.dctn, psn)
    }

    fn dcis_of(&self, world: &mut World, address: IpAddr) -> Vec<u32> {
        let node = (0..world.plan.nodes).find(|node| Plan::address(*node) == address);
        let ends = node.map(|node| world.qps_of(node, QpType::Dci)).unwrap_or_default();
        ends.into_iter().map(|end| end.qpn).collect()
    }

    /// An RC request: from his own address, with everything right, or from the peer's, with a number
    /// that he guesses.
    fn rc_request(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let end = any(&mut self.rng, &world.qps_of(prey.node, QpType::Rc))?;
        let peer = world.gids.iter().position(|gid| *gid == end.peer).map(Plan::address)?;
        let (message, payload) = self.operation(world, prey);
        let (src, qpn) = match self.rng.percent(70) {
            true if world.planter.strikes(Canary::UncheckedSource) => ((peer, UDP_PORT), end.qpn),
            true => (self.stranger_at(), end.qpn),
            false => ((peer, UDP_PORT), self.guess(world, prey, end.qpn)),
        };
        let flow = flow(src, prey.address);
        packet(flow, Route::Rc, (message, &payload), qpn, end.expects)
    }

    /// A QPN of nobody's: one in 2^24 would be right, and none shall be.
    fn guess(&mut self, world: &mut World, prey: &Prey, near: u32) -> u32 {
        let of = [QpType::Rc, QpType::Dci, QpType::Dct, QpType::Ud];
        let taken: Vec<u32> =
            of.into_iter().flat_map(|of| world.qps_of(prey.node, of)).map(|end| end.qpn).collect();
        let mut qpn = match self.rng.percent(50) {
            true => near.wrapping_add(self.rng.between(1, 64) as u32) & 0xff_ffff,
            false => self.rng.next_u64() as u32 & 0xff_ffff,
        };
        while taken.contains(&qpn) {
            qpn = qpn.wrapping_add(1) & 0xff_ffff;
        }
        qpn
    }

    /// What answers a request that somebody else has sent: from his own address, with a number that is
    /// right, or from the target's, with one that he guesses.
    fn answer(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let dci = any(&mut self.rng, &world.qps_of(prey.node, QpType::Dci));
        let rc = any(&mut self.rng, &world.qps_of(prey.node, QpType::Rc));
        let syndrome = match self.rng.below(5) {
            0 => Syndrome::Ack(Credits::UNCOUNTED),
            1 => Syndrome::Nak(NakCode::PsnSequence),
            2 => Syndrome::Nak(NakCode::RemoteAccess),
            3 => Syndrome::RnrNak(RnrTimer::at_least_ns(1_000_000)),
            _ => Syndrome::Nak(NakCode::DcNoContext),
        };
        let aeth = Aeth { syndrome, msn: Msn::from_wrapping(1) };
        let message = match self.rng.below(3) {
            0 => Message::AtomicAck(aeth, self.writing()),
            1 => Message::ReadResponseOnly(aeth),
            _ => Message::Ack(aeth),
        };
        if let Some(end) = rc.filter(|_| self.rng.percent(50)) {
            let flow = flow(self.stranger_at(), prey.address);
            return packet(flow, Route::Rc, (message, &[]), end.qpn, end.expects);
        }
        let heard = self.heard_session(prey);
        let (src, session) = match heard {
            Some(session) => (self.stranger_at(), session),
            None => (self.anybody_at(world), self.rng.next_u64() as u32),
        };
        let mut eth = self.dc_eth(QPN, session);
        eth.fill = 0;
        let extra = if self.rng.percent(50) { DcExtra::Token(9) } else { DcExtra::None };
        let route = Route::Dc { eth, extra };
        packet(flow(src, prey.address), route, (message, &[]), dci?.qpn, session)
    }

    /// The session of some DC request of a node's, which he may have been told.
    fn heard_session(&mut self, prey: &Prey) -> Option<u32> {
        let chosen = self.rng.index(self.heard.len().max(1));
        let heard = self.heard.get(chosen)?;
        let view = PacketView::parse(&heard.bytes).ok()?;
        match view.headers().route() {
            Route::Dc { eth, .. } if heard.flow.src.ip() == prey.address => Some(eth.session),
            _ => None,
        }
    }

    /// That there is congestion: he slows down whose address he takes, and nothing else.
    pub(super) fn congestion(&mut self, world: &mut World, prey: &Prey) -> Option<Datagram> {
        let src = self.anybody_at(world);
        let of = self.rng.pick(&[QpType::Rc, QpType::Dci, QpType::Dct, QpType::Ud]);
        let end = any(&mut self.rng, &world.qps_of(prey.node, of))?;
        packet(flow(src, prey.address), Route::Rc, (Message::Cnp, &[0; 0]), end.qpn, 0)
    }

    /// A datagram of these headers from where another one came.
    pub(super) fn like(
        heard: &Datagram,
        headers: &elver_wire::Headers,
        payload: &[u8],
    ) -> Datagram {
        Datagram::sealed(heard.flow, headers, payload)
    }
}
