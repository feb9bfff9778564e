//! Whoever has a UDP socket: makes any RoCEv2 packet that he likes and sends it from any address and
//! port. What he is given here an attacker would have to guess, or to have heard.

use std::net::{IpAddr, SocketAddr};

use elver_core::{CONTROL_BYTES_MAX, ControlBody, ControlMessage};
use elver_sim::{Datagram, SimNet};
use elver_wire::{Deth, Flow, Headers, Message, Psn, Qpn, Route, Tail, UDP_PORT, packet_len};

/// QPN that an attacker's datagrams say they come from.
pub const QPN: u32 = 0x00_0777;

pub struct Attacker {
    net: SimNet,
    flow: Flow,
}

impl Attacker {
    /// Sends to `target` from this address and port.
    pub fn new(net: &SimNet, src: SocketAddr, target: IpAddr) -> Attacker {
        let dst = SocketAddr::new(target, UDP_PORT);
        Attacker { net: net.clone(), flow: Flow { src, dst } }
    }

    /// Sends a packet of these headers with this payload.
    pub fn send(&self, headers: &Headers, payload: &[u8]) {
        let mut bytes = vec![0; packet_len(headers.header_len(), payload.len())];
        headers.write(&self.flow, 0, payload, &mut bytes);
        let datagram = Datagram { flow: self.flow, traffic_class: 0, bytes };
        self.net.inject(self.net.now(), datagram);
    }

    /// Sends a UD datagram.
    pub fn datagram(&self, dest_qpn: u32, qkey: u32, src_qpn: u32, payload: &[u8]) {
        let route = Route::Ud(Deth { qkey, src_qpn: qpn(src_qpn) });
        let message = Message::SendOnly(Tail::Plain);
        let headers = Headers::new(route, message, qpn(dest_qpn), Psn::from_wrapping(0)).unwrap();
        self.send(&headers, payload);
    }

    /// Sends a control message to the UD QP of a node's.
    pub fn control(&self, dest_qpn: u32, qkey: u32, src_qpn: u32, id: u64, body: ControlBody) {
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let len = ControlMessage { id, body }.encode(&mut bytes);
        self.datagram(dest_qpn, qkey, src_qpn, &bytes[..len]);
    }
}

fn qpn(number: u32) -> Qpn {
    Qpn::new(number).unwrap()
}
