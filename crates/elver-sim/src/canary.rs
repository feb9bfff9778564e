//! Bugs to plant: a model that does not catch them is worth nothing.
//!
//! They are planted between the device and the world, so that no product code knows of them.

use elver_verbs::Wc;
use elver_wire::{
    Aeth, BTH_LEN, Credits, ICRC_LEN, IpId, Message, NakCode, PacketView, Route, Syndrome, icrc,
};

use crate::network::Packet;
use crate::planting::{Plantable, Planter};

canaries! {
    "rnic";
    /// A responder takes a duplicate of a request for a new one.
    Duplicate = "duplicate",
    /// A payload changes under a valid ICRC.
    Corrupt = "corrupt",
    /// A WRITE goes to a wrong address.
    Misplace = "misplace",
    /// A completion is lost.
    LostCompletion = "lost-completion",
    /// A completion is given twice.
    RepeatedCompletion = "repeated-completion",
    /// Two completions change places.
    ReorderedCompletion = "reordered-completion",
    /// A copy to memory that is not at hand is said to be made before it is.
    EarlyCopy = "early-copy",
    /// That memory is gone is not told to who reads or writes it.
    UntoldLoss = "untold-loss",
    /// What comes from anywhere is taken for a peer's.
    UncheckedSource = "unchecked-source",
}

impl Plantable for Canary {
    fn percent(self) -> u32 {
        match self {
            // Few WRs meet it.
            Canary::UntoldLoss => 100,
            _ => 10,
        }
    }
}

/// Where the PSN stands in a BTH.
const PSN_AT: usize = 9;
/// Where the virtual address stands in the RETH of an RC or UC WRITE.
const VA_AT: usize = BTH_LEN;
/// How far a misplaced WRITE goes astray, in bytes.
const ASTRAY: u64 = 8;

impl Planter<Canary> {
    /// Spoils a packet that a host is about to take. What it returns comes right behind it.
    pub(crate) fn packet(&mut self, packet: &mut Packet) -> Option<Packet> {
        if self.plants_nothing() {
            return None;
        }
        let Ok(view) = PacketView::parse(&packet.bytes) else { return None };
        // A damaged packet stays one: it must not become valid by being sealed anew.
        let id = icrc::verify(&packet.meta.flow, packet.meta.ip_id, &packet.bytes).ok()?;
        let (headers, payload_len) = (*view.headers(), view.payload().len());
        match headers.message() {
            Message::SendOnly(_) | Message::FetchAdd(_)
                if matches!(headers.route(), Route::Rc | Route::Dc { .. })
                    && self.strikes(Canary::Duplicate) =>
            {
                let mut again = packet.clone();
                let psn = headers.psn.next().get().to_be_bytes();
                again.bytes[PSN_AT..PSN_AT + 3].copy_from_slice(&psn[1..]);
                seal(&mut again, id);
                Some(again)
            }
            Message::Ack(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteOperation), .. })
                if self.strikes(Canary::UntoldLoss) =>
            {
                // It stands last, whatever the transport.
                let at = packet.bytes.len() - ICRC_LEN - Aeth::LEN;
                packet.bytes[at] = Syndrome::Ack(Credits::UNCOUNTED).to_byte();
                seal(packet, id);
                None
            }
            _ if payload_len > 0 && self.strikes(Canary::Corrupt) => {
                let padded = payload_len.next_multiple_of(4);
                let start = packet.bytes.len() - ICRC_LEN - padded;
                let at = start + self.rng().index(payload_len);
                packet.bytes[at] ^= 1 << self.rng().below(8);
                seal(packet, id);
                None
            }
            Message::WriteOnly(reth, _) | Message::WriteFirst(reth)
                if reth.len > 0
                    && matches!(headers.route(), Route::Rc | Route::Uc)
                    && self.strikes(Canary::Misplace) =>
            {
                let astray = (reth.va + ASTRAY).to_be_bytes();
                packet.bytes[VA_AT..VA_AT + astray.len()].copy_from_slice(&astray);
                seal(packet, id);
                None
            }
            _ => None,
        }
    }

    /// Whether the end of a copy is told too early.
    pub(crate) fn hurries(&mut self) -> bool {
        self.strikes(Canary::EarlyCopy)
    }

    /// Spoils completions that a host has polled.
    pub(crate) fn completions(&mut self, wcs: &mut Vec<Wc>) {
        if wcs.is_empty() {
            return;
        }
        if self.strikes(Canary::LostCompletion) {
            let lost = self.rng().index(wcs.len());
            wcs.remove(lost);
        } else if self.strikes(Canary::RepeatedCompletion) {
            let again = wcs[self.rng().index(wcs.len())];
            wcs.push(again);
        } else if self.plants(Canary::ReorderedCompletion)
            && let Some(first) = (1..wcs.len()).find(|at| one_queue(&wcs[at - 1], &wcs[*at]))
            && self.strikes(Canary::ReorderedCompletion)
        {
            wcs.swap(first - 1, first);
        }
    }
}

/// Whether two completions are of the same queue of one QP.
fn one_queue(a: &Wc, b: &Wc) -> bool {
    a.qp_num == b.qp_num && a.wr_id & 1 == b.wr_id & 1
}

fn seal(packet: &mut Packet, id: u16) {
    icrc::seal(&packet.meta.flow, id, &mut packet.bytes);
    if let IpId::Exact(known) = &mut packet.meta.ip_id {
        *known = id;
    }
}
