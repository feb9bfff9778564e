//! A wire that loses nothing. As in a driver, a side takes in all that arrived, hands out all that it
//! wants to send and seals it.

use elver_rnic::{MAX_PACKET, Rnic, RxMeta, Time};
use elver_soft::SoftMemory;
use elver_wire::{Flow, IpId, icrc};

/// Packets on the wire at once: more than a congestion window.
const PACKETS: usize = 512;

/// Packets on their way to one side.
pub(crate) struct Pipe {
    buffers: Vec<u8>,
    packets: Vec<(Flow, usize)>,
}

impl Pipe {
    pub(crate) fn new() -> Pipe {
        Pipe { buffers: vec![0; PACKETS * MAX_PACKET], packets: Vec::with_capacity(PACKETS) }
    }

    pub(crate) fn fill(&mut self, from: &mut Rnic<SoftMemory>, now: Time) {
        for buffer in self.buffers.chunks_exact_mut(MAX_PACKET) {
            let Some(sent) = from.poll_transmit(now, buffer) else { return };
            icrc::seal(&sent.flow, 0, &mut buffer[..sent.len]);
            self.packets.push((sent.flow, sent.len));
        }
    }

    pub(crate) fn drain(&mut self, to: &mut Rnic<SoftMemory>, now: Time) {
        let buffers = self.buffers.chunks_exact(MAX_PACKET);
        for ((flow, len), buffer) in self.packets.drain(..).zip(buffers) {
            let ip_id = IpId::Likely(0);
            let meta = RxMeta { flow, traffic_class: 0, hop_limit: 64, ip_id };
            to.handle_datagram(now, &meta, &buffer[..len]);
        }
    }
}
