//! Packets without a device: built and sealed on one side, checked and parsed on the other.

use std::hint::black_box;

use anyhow::{Context, Result};
use elver_wire::{Flow, Headers, IpId, Message, PacketView, Psn, Qpn, Reth, Route};
use elver_wire::{icrc, packet_len};

use crate::sides::{initiator_side, target_side};
use crate::step::Step;

/// A WRITE_ONLY of RC with `len` bytes of payload. The receiver is told `ip_id`, and 0 was sent.
pub(crate) fn write_only(len: usize, ip_id: IpId) -> Result<Step> {
    let flow = Flow { src: "10.0.0.1:4791".parse()?, dst: "10.0.0.2:4791".parse()? };
    let payload = vec![0x5a; len];
    let mut packet = vec![0; elver_wire::PACKET_MAX];
    let qpn = Qpn::new(0x1234).context("a QPN has 24 bits")?;
    let mut psn = Psn::from_wrapping(0);
    Ok(Box::new(move || {
        psn = psn.next();
        let sent = initiator_side(|| {
            let reth = Reth { va: 0x7000, rkey: 0x55, len: payload.len() as u32 };
            let message = Message::WriteOnly(black_box(reth), None);
            let headers = Headers::new(black_box(Route::Rc), message, black_box(qpn), psn)
                .expect("RC has WRITE_ONLY");
            let at = headers.emit(&mut packet, payload.len());
            packet[at..at + payload.len()].copy_from_slice(&payload);
            let sent = packet_len(at, payload.len());
            icrc::seal(&flow, 0, &mut packet[..sent]);
            sent
        });
        let bytes = black_box(&packet[..sent]);
        let taken = target_side(|| {
            let view = PacketView::parse(bytes).expect("it was just built");
            icrc::verify(&flow, ip_id, bytes).expect("it was just sealed");
            *black_box(view.headers())
        });
        assert_eq!(taken.psn, psn);
    }))
}
