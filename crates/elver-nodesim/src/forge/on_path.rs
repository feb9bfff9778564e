//! Who hears all that nodes send each other, and can send in their names. What he might do with that
//! has no bound; here he says again what was said, at any later time, and says what loses time or a
//! connection: a model that believes the network to have failed there must find nothing else wrong.

use elver_sim::Datagram;
use elver_wire::{Aeth, DcExtra, Headers, Message, NakCode, PacketView, RnrTimer, Route, Syndrome};

use super::craft::redirected;
use super::state::Forge;
use crate::plan::Plan;
use crate::world::World;

impl Forge {
    pub(super) fn on_path(&mut self, world: &mut World) -> Option<Datagram> {
        let chosen = self.rng.index(self.heard.len().max(1));
        let heard = self.heard.get(chosen)?.clone();
        let forged = match self.rng.below(10) {
            0..5 => Some(redirected(heard.clone(), heard.flow)),
            5 => Some(self.damaged(heard.clone())),
            6 => self.complaint(&heard),
            7 => self.with_another_token(&heard),
            _ => self.slower(&heard),
        }?;
        for node in 0..world.plan.nodes {
            let address = Plan::address(node);
            if address == heard.flow.src.ip() || address == heard.flow.dst.ip() {
                world.net.disturb(node);
            }
        }
        Some(forged)
    }

    /// The same with some bits changed, and the checksum of before.
    fn damaged(&mut self, heard: Datagram) -> Datagram {
        let mut damaged = redirected(heard.clone(), heard.flow);
        for _ in 0..self.rng.between(1, 3) {
            let bit = self.rng.index(damaged.bytes.len() * 8);
            damaged.bytes[bit / 8] ^= 1 << (bit % 8);
        }
        damaged
    }

    /// In place of an acknowledgement: that what follows it is missing, or has no receive. What it
    /// acknowledged stays so.
    fn complaint(&mut self, heard: &Datagram) -> Option<Datagram> {
        let view = PacketView::parse(&heard.bytes).ok()?;
        let Message::Ack(Aeth { syndrome: Syndrome::Ack(_), msn }) = view.headers().message()
        else {
            return None;
        };
        let syndrome = match self.rng.percent(50) {
            true => Syndrome::Nak(NakCode::PsnSequence),
            false => Syndrome::RnrNak(RnrTimer::at_least_ns(20_000)),
        };
        let (headers, nak) = (view.headers(), Message::Ack(Aeth { syndrome, msn }));
        let nak = Headers::new(headers.route(), nak, headers.dest_qpn, headers.psn.next()).ok()?;
        Some(Forge::like(heard, &nak, &[]))
    }

    /// A DC answer or request with another token.
    fn with_another_token(&mut self, heard: &Datagram) -> Option<Datagram> {
        let view = PacketView::parse(&heard.bytes).ok()?;
        let headers = view.headers();
        let Route::Dc { eth, .. } = headers.route() else { return None };
        if !headers.message().is_response() {
            return None;
        }
        let token = self.rng.next_u64();
        let route = Route::Dc { eth, extra: DcExtra::Token(token) };
        let forged = Headers::new(route, headers.message(), headers.dest_qpn, headers.psn).ok()?;
        Some(Forge::like(heard, &forged, view.payload()))
    }

    /// That there is congestion on a packet's way.
    fn slower(&mut self, heard: &Datagram) -> Option<Datagram> {
        let view = PacketView::parse(&heard.bytes).ok()?;
        let headers = view.headers();
        let cnp = Headers::new(Route::Rc, Message::Cnp, headers.dest_qpn, headers.psn).ok()?;
        Some(Forge::like(heard, &cnp, &[]))
    }
}
