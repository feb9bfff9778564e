//! Messages of the communication manager's, each in a packet from QP 1 to QP 1 (IBTA vol. 1, 13.5.1.3 and annex A17).

use std::net::{IpAddr, SocketAddr};

use elver_wire::cm::QKEY;
use elver_wire::{Deth, Flow, Headers, Message, PACKET_MAX, Psn, Qpn, Route, Tail, UDP_PORT};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, getsockname, sendto, socket_with,
};

use crate::record::Farewell;

/// The QP of the communication manager (IBTA vol. 1, 13.5.1).
const QP1: Qpn = Qpn::from_wrapping(1);

/// Sends messages from an address, from a port of its own: RoCEv2's port at that address may be another's by now.
///
/// # Errors
/// Of the system: the address is not this host's any more, or a packet cannot leave. The rest is sent all the same.
pub(crate) fn say(own: IpAddr, farewells: &[Farewell]) -> Result<(), Errno> {
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    // So that the identification is 0, which the ICRC covers.
    match own {
        IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?,
        IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?,
    }
    bind(&socket, &SocketAddr::new(own, 0))?;
    let src = SocketAddr::try_from(getsockname(&socket)?)?;
    let mut said = Ok(());
    for (peer, mad) in farewells {
        let dst = SocketAddr::new(*peer, UDP_PORT);
        let route = Route::Ud(Deth { qkey: QKEY, src_qpn: QP1 });
        let message = Message::SendOnly(Tail::Plain);
        let headers = Headers::new(route, message, QP1, Psn::from_wrapping(0))
            .expect("UD has SENDs of one packet");
        let mut packet = [0; PACKET_MAX];
        let len = headers.write(&Flow { src, dst }, 0, mad, &mut packet);
        if let Err(error) = sendto(&socket, &packet[..len], SendFlags::empty(), &dst) {
            said = Err(error);
        }
    }
    said
}
