//! Whoever has a UDP socket: makes any RoCEv2 packet that he likes and sends it from addresses that
//! he can bind, which on loopback are all. What he is given here an attacker would have to guess, or
//! to have heard.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use elver_core::{CONTROL_BYTES_MAX, ControlBody, ControlMessage};
use elver_verbs::RemoteAddr;
use elver_wire::{
    DcConnect, DcEth, DcExtra, Deth, Flow, Headers, Message, Psn, Qpn, Reth, Route, Tail,
    packet_len,
};

/// QPN that an attacker's datagrams say they come from.
pub const QPN: u32 = 0x00_0777;

/// What an attacker writes.
pub const FORGED: [u8; 8] = [0xee; 8];

/// What an attacker wants with memory: 8 bytes of it.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    Read,
    Write,
}

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

    /// Sends to `target` from a port of its own.
    pub fn from_another_port(address: IpAddr, target: SocketAddr) -> Attacker {
        let socket = UdpSocket::bind((address, 0)).unwrap();
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

    /// Opens a session with a DCT by a WRITE of these bytes, or by a READ of as many.
    pub fn dc(&self, dctn: u32, access_key: u64, access: Access, remote: RemoteAddr, session: u32) {
        let connect = DcConnect { access_key, token: 0, mtu: 3 };
        let eth = DcEth { src_qpn: qpn(QPN), stream: 0, session, fill: 0 };
        let route = Route::Dc { eth, extra: DcExtra::Connect(connect) };
        self.access(route, dctn, session, access, remote);
    }

    /// Sends what an RC QP that is connected to one with this QPN might send.
    pub fn rc(&self, dest_qpn: u32, psn: u32, access: Access, remote: RemoteAddr) {
        self.access(Route::Rc, dest_qpn, psn, access, remote);
    }

    fn access(&self, route: Route, dest_qpn: u32, psn: u32, access: Access, remote: RemoteAddr) {
        let RemoteAddr { addr: va, rkey } = remote;
        let reth = Reth { va, rkey, len: 8 };
        let (message, payload) = match access {
            Access::Read => (Message::ReadRequest(reth), [].as_slice()),
            Access::Write => (Message::WriteOnly(reth, None), FORGED.as_slice()),
        };
        let headers = Headers::new(route, message, qpn(dest_qpn), Psn::from_wrapping(psn));
        let mut headers = headers.unwrap();
        headers.ack_req = true;
        self.send(&headers, payload);
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
