//! Whoever has a UDP socket: makes any RoCEv2 packet that he likes and sends it from addresses that
//! he can bind, which on loopback are all. What he is given here an attacker would have to guess, or
//! to have heard.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use elver_core::{CONTROL_BYTES_MAX, ControlBody, ControlMessage};
use elver_wire::{Deth, Flow, Headers, Message, Psn, Qpn, Route, Tail, packet_len};

/// QPN that an attacker's datagrams say they come from.
pub const QPN: u32 = 0x00_0777;

pub struct Attacker {
    socket: UdpSocket,
    target: SocketAddr,
}

impl Attacker {
    /// Sends to `target` from an address, and from the port of devices unless one holds it there.
    pub fn new(address: IpAddr, target: SocketAddr) -> Attacker {
        let socket = UdpSocket::bind((address, target.port()));
        let socket = socket.or_else(|_| UdpSocket::bind((address, 0))).unwrap();
        socket.set_nonblocking(true).unwrap();
        Attacker { socket, target }
    }

    /// Sends a packet of these headers with this payload.
    pub fn send(&self, headers: &Headers, payload: &[u8]) {
        let mut packet = vec![0; packet_len(headers.header_len(), payload.len())];
        let flow = Flow { src: self.socket.local_addr().unwrap(), dst: self.target };
        // Where the identification that the kernel writes is not known, receivers solve for it.
        headers.write(&flow, 0, payload, &mut packet);
        self.socket.send_to(&packet, self.target).unwrap();
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

    /// Takes a packet that came to the address that it sends from, if there is one.
    pub fn heard(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 8192];
        let len = self.socket.recv(&mut bytes).ok()?;
        Some(bytes[..len].to_vec())
    }
}

fn qpn(number: u32) -> Qpn {
    Qpn::new(number).unwrap()
}
