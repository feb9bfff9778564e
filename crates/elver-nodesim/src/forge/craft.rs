//! Packets of any content.

use std::net::{IpAddr, SocketAddr};

use elver_sim::{Datagram, Rng};
use elver_verbs::{Device, Gid, QpType};
use elver_wire::{
    AtomicEth, DcEth, DcExtra, Flow, Headers, Message, Psn, Qpn, Reth, Route, Tail, UDP_PORT, icrc,
};

use super::state::{Forge, Prey, WRITING};
use crate::model::{Hold, Region, bytes};
use crate::world::World;

/// Bytes that a READ may ask for: nothing, little, about a packet, much, more than there is.
const READ_BYTES: [u32; 7] = [0, 8, 340, 1_024, 65_536, 1 << 20, u32::MAX];
/// Bytes of a WRITE.
const WRITE_BYTES: [u64; 3] = [8, 64, 200];
/// Kinds of messages between nodes, with one that there is not.
const KINDS: u64 = 13;
/// Bytes of such a message's header, with the user's behind it.
const MESSAGE_BYTES: u64 = 64;
/// Fill of a DC request.
const FILLS: [u16; 4] = [0, 4, 312, 4_096];

/// Where a datagram says that it comes from, and where it goes.
pub(super) fn flow(src: (IpAddr, u16), dst: IpAddr) -> Flow {
    Flow { src: SocketAddr::from(src), dst: SocketAddr::new(dst, UDP_PORT) }
}

/// The same bytes from elsewhere.
pub(super) fn redirected(mut datagram: Datagram, flow: Flow) -> Datagram {
    datagram.flow = flow;
    icrc::seal(&flow, 0, &mut datagram.bytes);
    datagram
}

/// A packet with this route and message, asking to be acknowledged; none if no packet is so.
pub(super) fn packet(
    flow: Flow,
    route: Route,
    (message, payload): (Message, &[u8]),
    to: u32,
    psn: u32,
) -> Option<Datagram> {
    let (to, psn) = (Qpn::from_wrapping(to), Psn::from_wrapping(psn));
    let mut headers = Headers::new(route, message, to, psn).ok()?;
    headers.ack_req = !message.is_response();
    Some(Datagram::sealed(flow, &headers, payload))
}

/// What a message between nodes is to say, as `docs/wire.md` has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Note {
    pub(super) kind: u8,
    pub(super) to_port: bool,
    pub(super) to: u32,
    pub(super) from: u32,
    pub(super) detail: u16,
    pub(super) tag: u16,
    pub(super) imm: Option<u32>,
    pub(super) length: u32,
    pub(super) cookie: u64,
}

impl Note {
    pub(super) fn with(self, body: &[u8]) -> Vec<u8> {
        let top = |flag: bool| u8::from(flag) << 7;
        let mut bytes =
            vec![b'E', b'M', 4 | top(self.to_port), self.kind | top(self.imm.is_some())];
        bytes.extend(self.detail.to_le_bytes());
        bytes.extend(self.tag.to_le_bytes());
        for word in [self.to, self.from, self.imm.unwrap_or(0), self.length] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.cookie.to_le_bytes());
        bytes.extend(body);
        bytes
    }
}

/// What a request does at a node, with its payload.
pub(super) type Operation = (Message, Vec<u8>);

impl Forge {
    /// A request that would do something, if it were taken.
    pub(super) fn operation(&mut self, world: &World, prey: &Prey) -> Operation {
        let place = world.nodes[prey.node].place(prey.node);
        let here = |region: &&Region| region.place == place && region.hold == Hold::Open;
        let regions: Vec<&Region> = world.model.regions.iter().filter(here).collect();
        if regions.is_empty() {
            return self.send(world, prey);
        }
        let region = regions[self.rng.index(regions.len())];
        let (va, rkey, data) = (region.addr, region.rkey, region.data_len());
        let id = self.writing();
        let words = AtomicEth { va: va + data, rkey, swap_or_add: id, compare: 0 };
        match self.rng.below(8) {
            0..3 => {
                let len = self.rng.pick(&WRITE_BYTES).min(data);
                let va = va + self.rng.below(data - len + 1);
                let reth = Reth { va, rkey, len: len as u32 };
                (Message::WriteOnly(reth, None), bytes(id, len as u32))
            }
            3 => (Message::FetchAdd(words), Vec::new()),
            4 => (Message::CmpSwp(words), Vec::new()),
            5 => {
                let len = self.rng.pick(&READ_BYTES);
                (Message::ReadRequest(Reth { va, rkey, len }), Vec::new())
            }
            _ => self.send(world, prey),
        }
    }

    /// A message between nodes, or of bytes that are none, and parts of longer ones.
    fn send(&mut self, world: &World, prey: &Prey) -> Operation {
        match self.rng.below(8) {
            0 => (Message::SendFirst, vec![0; 1_024]),
            1 => (Message::SendMiddle, vec![0; 1_024]),
            2 => {
                let noise = self.noise(MESSAGE_BYTES);
                (Message::SendOnly(Tail::Plain), noise)
            }
            _ => {
                let note = self.note(world, prey);
                let len = self.rng.below(MESSAGE_BYTES);
                let body = if note.kind == 1 { bytes(self.writing(), len as u32) } else { vec![] };
                let note = Note { length: body.len() as u32, ..note };
                (Message::SendOnly(Tail::Plain), note.with(&body))
            }
        }
    }

    /// What is said of the VQP of somebody, by one who knows all but the connection's secret.
    pub(super) fn note(&mut self, world: &World, prey: &Prey) -> Note {
        let (vqp, from) = self.pair(world, prey);
        Note {
            kind: self.rng.below(KINDS) as u8 + 1,
            to_port: false,
            to: vqp,
            from,
            detail: self.rng.pick(&[0, 1, 2, 4, 1_000]),
            tag: self.rng.next_u64() as u16,
            imm: self.rng.percent(20).then_some(WRITING_IMM),
            length: self.rng.pick(&[0, 8, 600]),
            cookie: self.rng.next_u64() << 32 | self.rng.below(8),
        }
    }

    /// A VQP of a node's, and the one that it is connected to, where that is known.
    fn pair(&mut self, world: &World, prey: &Prey) -> (u32, u32) {
        let place = world.nodes[prey.node].place(prey.node);
        let here = world.model.by_vqp.range((place, elver_core::VqpId(0))..);
        let here: Vec<_> = here.take_while(|((at, _), _)| *at == place).collect();
        if here.is_empty() {
            return (1, 1);
        }
        let ((_, id), vqp) = here[self.rng.index(here.len())];
        let known = &world.model.vqps[*vqp];
        let peer = known.origin.map(|peer| world.model.vqps[peer].id.0);
        (id.0, peer.unwrap_or_else(|| self.rng.next_u64() as u32))
    }

    /// A DC request of a session.
    pub(super) fn dc_eth(&mut self, src_qpn: u32, session: u32) -> DcEth {
        let fill = self.rng.pick(&FILLS);
        let stream = self.rng.below(3) as u16;
        DcEth { src_qpn: Qpn::from_wrapping(src_qpn), stream, session, fill }
    }

    pub(super) fn noise(&mut self, most: u64) -> Vec<u8> {
        let len = self.rng.below(most);
        (0..len).map(|_| self.rng.next_u64() as u8).collect()
    }

    /// Something for an address that it does not have.
    pub(super) fn other_than(&mut self, key: u64) -> u64 {
        match self.rng.below(3) {
            0 => 0,
            1 => key ^ 1,
            _ => self.rng.next_u64() | u64::from(key == 0),
        }
    }
}

const WRITING_IMM: u32 = WRITING | 1;

/// A token with which a packet of a DC session comes, if it says that it connects or has one.
pub(super) fn with_token(extra: DcExtra, token: u64) -> DcExtra {
    match extra {
        DcExtra::Connect(connect) => DcExtra::Connect(elver_wire::DcConnect { token, ..connect }),
        DcExtra::Token(_) => DcExtra::Token(token),
        DcExtra::None => DcExtra::None,
    }
}

/// One end of an RC connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct RcEnd {
    pub(super) qpn: u32,
    pub(super) peer: Gid,
    /// PSN that it expects next.
    pub(super) expects: u32,
}

impl World {
    /// Queue pairs of a node's, of one type.
    pub(super) fn qps_of(&mut self, node: usize, of: QpType) -> Vec<RcEnd> {
        let Some(core) = self.nodes[node].engine.inspect() else { return Vec::new() };
        let device = core.device();
        let all = device.qps().filter_map(|qp| {
            let (attr, init) = device.query_qp(qp).ok()?;
            let (peer, expects) = (attr.ah_attr.dgid, attr.rq_psn);
            (init.qp_type == of).then_some(RcEnd { qpn: qp.0, peer, expects })
        });
        // In the same order in each run of a seed.
        let mut all: Vec<RcEnd> = all.collect();
        all.sort_by_key(|end| end.qpn);
        all
    }
}

/// One of some, if there is any.
pub(super) fn any<T: Copy>(rng: &mut Rng, of: &[T]) -> Option<T> {
    (!of.is_empty()).then(|| rng.pick(of))
}
