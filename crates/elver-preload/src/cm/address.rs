//! Addresses as the kernel writes them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use libc::{AF_INET, AF_INET6, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::cm::abi::Plain;

/// An address of the first bytes of a structure; none if it is of another family than IP's.
pub(crate) fn read(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match family {
        AF_INET => {
            let octets: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddr::new(Ipv4Addr::from(octets).into(), port))
        }
        AF_INET6 => {
            let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into())
        }
        _ => None,
    }
}

/// An address of a structure.
pub(crate) fn of<T: Plain>(value: &T) -> Option<SocketAddr> {
    // SAFETY: numbers, all of whose bytes are there.
    read(unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) })
}

/// The family of a structure's address.
pub(crate) fn family<T: Plain>(value: &T) -> i32 {
    // SAFETY: as above; each begins with its family.
    i32::from(unsafe { (&raw const *value).cast::<u16>().read() })
}

/// An address in the structure of IPv6, which IPv4's is shorter than; and its length.
pub(crate) fn written(address: Option<SocketAddr>) -> (sockaddr_in6, usize) {
    let mut to = sockaddr_in6::zero();
    match address {
        None => (to, 0),
        Some(SocketAddr::V4(v4)) => {
            let to_v4: *mut sockaddr_in = (&raw mut to).cast();
            // SAFETY: it has room, and alignment.
            unsafe {
                (*to_v4).sin_family = AF_INET as u16;
                (*to_v4).sin_port = v4.port().to_be();
                (*to_v4).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            (to, size_of::<sockaddr_in>())
        }
        Some(SocketAddr::V6(v6)) => {
            to.sin6_family = AF_INET6 as u16;
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_scope_id = v6.scope_id();
            (to, size_of::<sockaddr_in6>())
        }
    }
}

/// The same, in the larger structure.
pub(crate) fn stored(address: Option<SocketAddr>) -> (sockaddr_storage, usize) {
    let (small, len) = written(address);
    let mut to = sockaddr_storage::zero();
    // SAFETY: it is larger, and aligned more.
    unsafe { (&raw mut to).cast::<sockaddr_in6>().write(small) };
    (to, len)
}

/// Whether an address is one of this host's, in this network namespace.
pub(crate) fn is_local(address: IpAddr) -> bool {
    // A socket can be bound to a group's address, which nobody has.
    !address.is_multicast() && (address.is_loopback() || leads_here(address) || is_had(address))
}

/// Where packets to an address of the host are from, as the kernel's routes say: an interface's first address for its further ones.
pub(crate) fn source(to: IpAddr) -> IpAddr {
    // Loopback has it though its interface is down.
    let is_loopback = to.is_ipv4() && to.is_loopback();
    if is_loopback { Ipv4Addr::LOCALHOST.into() } else { routed(to).unwrap_or(to) }
}

/// An address in the form of another one: IPv4's as IPv6's where that one is written so.
pub(crate) fn written_as(other: IpAddr, address: IpAddr) -> IpAddr {
    match (other, address) {
        (IpAddr::V6(other), IpAddr::V4(v4)) if other.to_ipv4_mapped().is_some() => {
            v4.to_ipv6_mapped().into()
        }
        _ => address,
    }
}

/// Whether packets to an address leave with it as their source, as those of a host to itself.
fn leads_here(address: IpAddr) -> bool {
    routed(address).is_ok_and(|source| source == address)
}

/// The source that the kernel's routes have for an address.
fn routed(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Nothing is sent: whether anybody has the port is all the same.
    socket.connect((to, 1))?;
    Ok(socket.local_addr()?.ip())
}

/// Whether an interface has it: to an interface's further addresses the first one is the source. Where hosts have sockets bound
/// to addresses that they will have (`net.ipv4.ip_nonlocal_bind`), all can be bound to.
fn is_had(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok() && elver_soft::has_address(address)
}
