//! Somebody who forges: what he knows, and his packets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use elver_sim::{Datagram, Rng};
use elver_wire::{
    DcConnect, DcEth, DcExtra, Flow, Headers, Message, Psn, Qpn, Route, UDP_PORT, icrc,
};

/// His own address.
pub(crate) const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 9, 1));
/// A QPN of his.
const QPN: u32 = 0x00_0777;
/// Datagrams that he remembers: any of those that he has heard.
const HEARD_MAX: usize = 256;
/// The code of a path MTU of 1,024 bytes.
const MTU_CODE: u8 = 3;

/// What he knows.
pub(crate) struct Forger {
    pub(crate) rng: Rng,
    heard: Vec<Datagram>,
}

impl Forger {
    pub(crate) fn new(rng: Rng) -> Forger {
        Forger { rng, heard: Vec::new() }
    }

    /// Hears what nodes say to each other.
    pub(crate) fn remember(&mut self, datagram: Datagram) {
        if self.heard.len() < HEARD_MAX {
            return self.heard.push(datagram);
        }
        let forgotten = self.rng.index(HEARD_MAX);
        self.heard[forgotten] = datagram;
    }

    /// Something that he has heard.
    pub(crate) fn recall(&mut self) -> Option<Datagram> {
        let chosen = self.rng.index(self.heard.len().max(1));
        self.heard.get(chosen).cloned()
    }

    /// What was heard, again; with some bits changed, and the checksum of before, in one case of three.
    pub(crate) fn again(&mut self, heard: &Datagram) -> Datagram {
        let mut again = sealed(heard.clone());
        if self.rng.percent(33) {
            for _ in 0..self.rng.between(1, 3) {
                let bit = self.rng.index(again.bytes.len() * 8);
                again.bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        again
    }

    /// One of some, if there is any.
    pub(crate) fn any<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| self.rng.pick(of))
    }
}

/// What he would have done, and with which bytes.
pub(crate) type Operation<'a> = (Message, &'a [u8]);

/// A DC session of his, that a target would begin for who has its key.
pub(crate) fn dc_route(access_key: u64, session: u32) -> Route {
    let connect = DcConnect { access_key, token: 0, mtu: MTU_CODE };
    let src_qpn = Qpn::from_wrapping(QPN);
    let eth = DcEth { src_qpn, stream: 0, session, fill: 0 };
    Route::Dc { eth, extra: DcExtra::Connect(connect) }
}

/// A queue pair of a node's, its peer, and the number that it expects next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) qpn: u32,
    pub(crate) peer: IpAddr,
    pub(crate) expects: u32,
}

/// With a good checksum.
fn sealed(mut datagram: Datagram) -> Datagram {
    icrc::seal(&datagram.flow, 0, &mut datagram.bytes);
    datagram
}

/// A request with this route; none if no packet is so.
pub(crate) fn packet(
    (from, to): (IpAddr, IpAddr),
    route: Route,
    (message, payload): Operation<'_>,
    qpn: u32,
    psn: u32,
) -> Option<Datagram> {
    let flow = Flow { src: SocketAddr::new(from, UDP_PORT), dst: SocketAddr::new(to, UDP_PORT) };
    let (qpn, psn) = (Qpn::from_wrapping(qpn), Psn::from_wrapping(psn));
    let mut headers = Headers::new(route, message, qpn, psn).ok()?;
    headers.ack_req = true;
    Some(Datagram::sealed(flow, &headers, payload))
}
