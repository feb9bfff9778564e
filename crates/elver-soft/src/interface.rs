//! The network interface that owns an address, asked in the caller's network namespace.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::SoftError;

/// What the device needs to know of its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// In bytes, with the IP header.
    pub(crate) mtu: u32,
    /// Zeros where there is none.
    pub(crate) mac: [u8; 6],
}

impl Interface {
    /// Finds the interface of `address`; `socket` is any socket of the namespace.
    pub(crate) fn of(address: IpAddr, socket: BorrowedFd<'_>) -> Result<Interface, SoftError> {
        let name = name_of(address)
            .map_err(|reason| SoftError::System { call: "getifaddrs", reason })?
            .ok_or(SoftError::NoInterface { address })?;
        let system = |call| move |reason| SoftError::System { call, reason };
        let asked = query(socket, &name, libc::SIOCGIFMTU).map_err(system("SIOCGIFMTU"))?;
        // SAFETY: SIOCGIFMTU filled the union's integer.
        let mtu = unsafe { asked.ifr_ifru.ifru_mtu };
        let asked = query(socket, &name, libc::SIOCGIFHWADDR).map_err(system("SIOCGIFHWADDR"))?;
        // SAFETY: SIOCGIFHWADDR filled the union's hardware address.
        let hardware = unsafe { asked.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(hardware.sa_data) {
            *to = from as u8;
        }
        let asked = query(socket, &name, libc::SIOCGIFINDEX).map_err(system("SIOCGIFINDEX"))?;
        // SAFETY: SIOCGIFINDEX filled the union's integer.
        let index = unsafe { asked.ifr_ifru.ifru_ifindex };
        let index = u32::try_from(index).unwrap_or(0);
        Ok(Interface { name, index, mtu: u32::try_from(mtu).unwrap_or(0), mac })
    }

    /// The EUI-64 of the interface's MAC address; of `address` where it has none.
    pub(crate) fn eui64(&self, address: IpAddr) -> u64 {
        let mac = match (self.mac, address) {
            ([0, 0, 0, 0, 0, 0], IpAddr::V4(v4)) => {
                let [a, b, c, d] = v4.octets();
                [0, 0, a, b, c, d]
            }
            ([0, 0, 0, 0, 0, 0], IpAddr::V6(v6)) => {
                let o = v6.octets();
                [0, o[11], o[12], o[13], o[14], o[15]]
            }
            (mac, _) => mac,
        };
        let [a, b, c, d, e, f] = mac;
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }
}

/// Whether an interface of the caller's network namespace has an address.
pub fn has_address(address: IpAddr) -> bool {
    name_of(address).is_ok_and(|name| name.is_some())
}

/// Whether two interfaces of the caller's network namespace have these addresses: not if one is on none, as those that
/// are only routed here.
pub fn are_on_two_interfaces(one: IpAddr, other: IpAddr) -> bool {
    // Behind a colon stands an address's label.
    let name = |address| name_of(address).ok().flatten()?.split(':').next().map(str::to_string);
    name(one).zip(name(other)).is_some_and(|(one, other)| one != other)
}

/// Name of the interface that has `address`; of any address of 127.0.0.0/8 the loopback.
pub(crate) fn name_of(address: IpAddr) -> io::Result<Option<String>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is a valid place for the result.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = None;
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: `entry` is a node of the list, which lives until it is freed below.
        let node = unsafe { &*entry };
        // SAFETY: a node's address is null or a socket address of its family.
        let ip = unsafe { ip_of(node.ifa_addr) };
        let loopback = ip.is_some_and(|ip| ip.is_loopback() && ip.is_ipv4() == address.is_ipv4());
        if ip == Some(address) || (loopback && address.is_loopback()) {
            // SAFETY: a node's name is a C string.
            let name = unsafe { CStr::from_ptr(node.ifa_name) };
            found = Some(name.to_string_lossy().into_owned());
            break;
        }
        entry = node.ifa_next;
    }
    // SAFETY: `list` came from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address of the family that it names.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: by the caller's contract; an IPv4 family means a sockaddr_in behind it.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = &*address.cast::<libc::sockaddr_in>();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = &*address.cast::<libc::sockaddr_in6>();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

fn query(socket: BorrowedFd<'_>, name: &str, request: libc::Ioctl) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a valid ifreq.
    let mut ask: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in ask.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: `ask` is a valid ifreq with a terminated name.
    if unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut ask) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn loopback_is_found_and_strangers_are_not() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let lo = Interface::of("127.0.0.1".parse().unwrap(), socket.as_fd()).unwrap();
        assert_eq!(lo.name, "lo");
        assert!(lo.mtu >= 1500);
        assert!(has_address("127.0.0.1".parse().unwrap()));
        let stranger = "203.0.113.77".parse().unwrap();
        assert!(matches!(
            Interface::of(stranger, socket.as_fd()),
            Err(SoftError::NoInterface { .. })
        ));
        assert!(!has_address(stranger));
    }
}
