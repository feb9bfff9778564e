//! Any bytes as a packet: never a panic, and what parses means the same when it is written again.

use elver_wire::{Flow, IpId, PacketView, icrc, packet_len};

/// Runs an input.
pub fn run(bytes: &[u8]) {
    let Ok(view) = PacketView::parse(bytes) else { return };
    let headers = *view.headers();
    let mut buf = [0; elver_wire::PACKET_MAX];
    let at = headers.emit(&mut buf, view.payload().len());
    buf[at..at + view.payload().len()].copy_from_slice(view.payload());
    let packet = &mut buf[..packet_len(at, view.payload().len())];
    let again = PacketView::parse(packet).expect("what was written parses");
    assert_eq!(*again.headers(), headers);
    assert_eq!(again.payload(), view.payload());

    let flow = Flow {
        src: "10.0.0.1:4791".parse().expect("an address"),
        dst: "10.0.0.2:4791".parse().expect("an address"),
    };
    let id = u16::from_be_bytes([bytes[8], bytes[9]]);
    icrc::seal(&flow, id, packet);
    assert_eq!(icrc::verify(&flow, IpId::Exact(id), packet), Ok(id));
    assert_eq!(icrc::verify(&flow, IpId::Likely(0), packet), Ok(id));
}
