//! Somebody off the path who forges: he knows every packet that was sent, and with it all QPNs, sessions and
//! regions' keys; he has no DC access key and no Q_Key, hears nothing that goes to others' addresses, and where he
//! takes one he guesses the PSN. The devices go on as if he was not there.
//!
//! The model tells: his payloads are no WR's, so that what is taken of him shows in memory, in a receive or in a
//! WR that ends wrongly. Nor is his address sent more than came from there.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use elver_wire::{DcExtra, Deth, Flow, Headers, Message, PacketView, Psn, Route};

use crate::canary::Canary;
use crate::model::Violation;
use crate::network::Datagram;
use crate::planting::Planter;
use crate::rng::Rng;

/// Packets that he chooses from.
const HEARD_MAX: usize = 256;
/// What he sends arrives so much later, at most, in nanoseconds.
const LATE_NS: u64 = 20_000;
/// A source port that any process gets: DC comes from a device's own alone.
const OTHER_PORT: u16 = 50_000;
/// A PSN that is guessed is off by so much at least, and by less than twice that: no window is as wide.
const PSNS_OFF: u64 = 1 << 22;

#[derive(Debug)]
pub(crate) struct Forge {
    rng: Rng,
    /// In how many of a hundred chances he forges.
    percent: u32,
    heard: VecDeque<Datagram>,
    /// QPNs that he has tried keys at.
    tried: BTreeSet<u32>,
    /// Bytes that came from his address, and that were sent there.
    given: u64,
    taken: u64,
}

/// What he sends.
pub(crate) struct Forged {
    pub(crate) datagram: Datagram,
    /// It comes from his own address.
    own: bool,
    /// It may have a device send again what is under way: what is sent in a peer's name may be out of sequence.
    pub(crate) disturbs: bool,
}

impl Forge {
    pub(crate) fn new(rng: Rng, percent: u32) -> Forge {
        Forge { rng, percent, heard: VecDeque::new(), tried: BTreeSet::new(), given: 0, taken: 0 }
    }

    /// Whether he has tried keys at a QP.
    pub(crate) fn tried(&self, qpn: u32) -> bool {
        self.tried.contains(&qpn)
    }

    /// What was sent of late, between hosts and to his address.
    pub(crate) fn hear(
        &mut self,
        heard: Vec<Datagram>,
        strays: &[Datagram],
    ) -> Result<(), Violation> {
        self.heard.extend(heard);
        self.heard.drain(..self.heard.len().saturating_sub(HEARD_MAX));
        self.taken += strays.iter().map(|stray| stray.bytes.len() as u64).sum::<u64>();
        if self.taken > self.given {
            return Err(Violation::new(format!(
                "{} bytes were sent to where no host is, and {} came from there",
                self.taken, self.given
            )));
        }
        Ok(())
    }

    /// What he sends now, if anything, and how much later it arrives, in nanoseconds.
    pub(crate) fn next(&mut self, planter: &mut Planter<Canary>) -> Option<(Forged, u64)> {
        let forged =
            if self.rng.percent(self.percent) { self.make(planter)? } else { return None };
        if forged.own {
            self.given += forged.datagram.bytes.len() as u64;
        }
        Some((forged, self.rng.between(1, LATE_NS)))
    }

    /// Something like a packet that he has heard, if he can make anything of it.
    fn make(&mut self, planter: &mut Planter<Canary>) -> Option<Forged> {
        let chosen = self.rng.index(self.heard.len().max(1));
        let heard = self.heard.get(chosen)?.clone();
        let view = PacketView::parse(&heard.bytes).ok()?;
        let headers = *view.headers();
        let payload: Vec<u8> = view.payload().iter().map(|_| self.rng.next_u64() as u8).collect();
        let response = headers.message().is_response();
        let congestion = headers.message() == Message::Cnp;
        match headers.route() {
            Route::Rc | Route::Xrc(_) if !congestion && self.rng.percent(30) => {
                Some(self.guessed(&heard, headers, &payload))
            }
            Route::Dc { .. } if self.rng.percent(25) => {
                let mut flow = heard.flow;
                flow.src.set_port(OTHER_PORT);
                let datagram = Datagram::sealed(flow, &headers, &payload);
                Some(Forged { datagram, own: false, disturbs: false })
            }
            Route::Dc { .. } if !response => self.without_key(&heard, headers, &payload),
            Route::Ud(_) => self.without_key(&heard, headers, &payload),
            Route::Rc | Route::Uc | Route::Xrc(_) | Route::Dc { .. } => {
                let believed = !congestion && planter.strikes(Canary::UncheckedSource);
                let flow = if believed { heard.flow } else { of_his(heard.flow) };
                let datagram = Datagram::sealed(flow, &headers, &payload);
                Some(Forged { datagram, own: !believed, disturbs: false })
            }
        }
    }

    /// In its sender's name, with a PSN that is far off.
    fn guessed(&mut self, heard: &Datagram, mut headers: Headers, payload: &[u8]) -> Forged {
        let off = self.rng.between(PSNS_OFF, 2 * PSNS_OFF - 1) as u32;
        let off = if self.rng.percent(50) { off } else { off.wrapping_neg() };
        headers.psn = Psn::from_wrapping(headers.psn.get().wrapping_add(off));
        let datagram = Datagram::sealed(heard.flow, &headers, payload);
        Forged { datagram, own: false, disturbs: true }
    }

    /// From anywhere, without the key that lets it in.
    fn without_key(
        &mut self,
        heard: &Datagram,
        headers: Headers,
        payload: &[u8],
    ) -> Option<Forged> {
        let own = self.rng.percent(50);
        let wrong = self.rng.next_u64() | 1;
        self.tried.insert(headers.dest_qpn.get());
        let route = match headers.route() {
            Route::Dc { mut eth, extra } => {
                if !own {
                    // In the name of one whose session he does not know.
                    eth.session = self.rng.next_u64() as u32;
                }
                let extra = match extra {
                    DcExtra::Connect(mut connect) => {
                        connect.access_key ^= wrong;
                        DcExtra::Connect(connect)
                    }
                    other => other,
                };
                Route::Dc { eth, extra }
            }
            Route::Ud(deth) => Route::Ud(Deth { qkey: deth.qkey ^ wrong as u32, ..deth }),
            other => other,
        };
        let mut forged =
            Headers::new(route, headers.message(), headers.dest_qpn, headers.psn).ok()?;
        forged.ack_req = headers.ack_req;
        let flow = if own { of_his(heard.flow) } else { heard.flow };
        let datagram = Datagram::sealed(flow, &forged, payload);
        Some(Forged { datagram, own, disturbs: false })
    }
}

/// The way of a packet that goes to the same host, from his own address.
fn of_his(flow: Flow) -> Flow {
    let address = match flow.dst.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(10, 0, 9, 1)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 9, 1)),
    };
    Flow { src: SocketAddr::new(address, flow.src.port()), ..flow }
}
