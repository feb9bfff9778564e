//! The sockets of multicast groups. Each group has its own, bound to the group's address, which many devices of
//! one host may be bound to at once: the kernel gives each of them a copy, and the sender's as well.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use elver_rnic::{DropReason, MAX_PACKET, RxMeta};
use elver_wire::{Flow, IpId};
use rustix::event::epoll;
use rustix::time::Timespec;

use crate::SoftError;
use crate::capture::Direction;
use crate::inlet::Inlet;
use crate::udp::{
    Control, HOP_LIMIT_HIDDEN, UDP_NO_CHECK6_RX, address_of, put_address, read_control, set,
};

/// Datagrams of one group that a look takes at most.
const DATAGRAMS: usize = 16;
/// Groups that a look finds at most; others have their turn in the next.
const READY: usize = 8;
/// Receives only what this socket joined itself (linux/in.h, linux/in6.h).
const IP_MULTICAST_ALL: libc::c_int = 49;
const IPV6_MULTICAST_ALL: libc::c_int = 29;

/// The groups that a UDP device has joined.
pub(crate) struct Groups {
    /// Readable as long as one of the sockets is.
    ready: OwnedFd,
    sockets: Vec<(IpAddr, UdpSocket)>,
    /// Room for a packet, and a byte more, which tells that it was longer.
    buffer: Box<[u8; MAX_PACKET + 1]>,
}

impl Groups {
    pub(crate) fn new() -> Result<Groups, SoftError> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| SoftError::System { call: "epoll_create1", reason: error.into() })?;
        Ok(Groups { ready, sockets: Vec::new(), buffer: Box::new([0; MAX_PACKET + 1]) })
    }

    /// What becomes readable when a datagram is there.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Joins a group on an interface.
    pub(crate) fn join(&mut self, group: SocketAddr, interface: u32) -> Result<(), SoftError> {
        let socket = bind(group)?;
        let fd = socket.as_raw_fd();
        let joined = match group.ip() {
            IpAddr::V4(v4) => {
                let request = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.octets()) },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: interface.try_into().unwrap_or(0),
                };
                let (level, name) = (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP);
                set(fd, level, libc::IP_RECVTOS, 1, "IP_RECVTOS")?;
                set(fd, level, IP_MULTICAST_ALL, 0, "IP_MULTICAST_ALL")?;
                set(fd, level, name, request, "IP_ADD_MEMBERSHIP")
            }
            IpAddr::V6(v6) => {
                let request = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: v6.octets() },
                    ipv6mr_interface: interface,
                };
                let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP);
                set(fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX")?;
                set(fd, level, libc::IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS")?;
                set(fd, level, IPV6_MULTICAST_ALL, 0, "IPV6_MULTICAST_ALL")?;
                set(fd, level, name, request, "IPV6_JOIN_GROUP")
            }
        };
        joined?;
        let data = epoll::EventData::new_u64(fd as u64);
        epoll::add(&self.ready, &socket, data, epoll::EventFlags::IN)
            .map_err(|error| SoftError::System { call: "epoll_ctl", reason: error.into() })?;
        self.sockets.push((group.ip(), socket));
        Ok(())
    }

    /// Leaves a group, if it was joined.
    pub(crate) fn leave(&mut self, group: IpAddr) {
        // A socket that is closed leaves its groups, and the set that it is waited for in.
        self.sockets.retain(|(joined, _)| *joined != group);
    }

    /// Gives what arrived to the RNIC, a bounded part of it; true if there was something.
    pub(crate) fn take(&mut self, inlet: &mut Inlet<'_>) -> bool {
        let mut events = Vec::with_capacity(READY);
        let at_once = Timespec::default();
        let buffer = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.ready, buffer, Some(&at_once)).is_err() {
            return false;
        }
        let mut any = false;
        for event in &events {
            let found =
                |(_, socket): &&(IpAddr, UdpSocket)| socket.as_raw_fd() as u64 == event.data.u64();
            let Some((group, socket)) = self.sockets.iter().find(found) else { continue };
            for _ in 0..DATAGRAMS {
                let Some(datagram) = receive(socket, &mut self.buffer[..]) else { break };
                any = true;
                give(*group, &datagram, &self.buffer[..], inlet);
            }
        }
        any
    }
}

/// A socket of a group's address, which others have as well.
fn bind(group: SocketAddr) -> Result<UdpSocket, SoftError> {
    let refused = |reason| SoftError::Bind { address: group, reason };
    let family = if group.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: it takes numbers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(refused(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1, "SO_REUSEADDR")?;
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let len = put_address(&mut name, group);
    // SAFETY: the address is of the length that is named, and the kernel only reads it.
    if unsafe { libc::bind(fd, ptr::from_ref(&name).cast(), len) } != 0 {
        return Err(refused(io::Error::last_os_error()));
    }
    Ok(socket)
}

struct Datagram {
    len: usize,
    from: SocketAddr,
    traffic_class: u8,
}

/// Receives a datagram, if there is one.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Option<Datagram> {
    let mut control = Control::default();
    // SAFETY: all zeros is a valid sockaddr_storage, and a valid msghdr.
    let (mut name, mut header): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    header.msg_name = ptr::from_mut(&mut name).cast();
    header.msg_namelen = mem::size_of_val(&name) as libc::socklen_t;
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len();
    // SAFETY: the header points to buffers of the lengths that it names, which outlive the call.
    let len = unsafe {
        // As in `udp.rs`, no cancellation point.
        libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &mut header, libc::MSG_DONTWAIT)
    };
    let len = usize::try_from(len).ok()?;
    // SAFETY: the kernel filled the header, and its buffers are still there.
    let control = unsafe { read_control(&header) };
    Some(Datagram { len, from: address_of(&name)?, traffic_class: control.traffic_class })
}

fn give(group: IpAddr, datagram: &Datagram, buffer: &[u8], inlet: &mut Inlet<'_>) {
    if inlet.loses() {
        return;
    }
    if datagram.len > MAX_PACKET {
        return inlet.rnic.count_drop(DropReason::Oversized);
    }
    let packet = &buffer[..datagram.len];
    let port = inlet.rnic.config().udp_port;
    let flow = Flow { src: datagram.from, dst: SocketAddr::new(group, port) };
    if let Some(capture) = inlet.capture {
        capture.packet(Direction::In, &flow, datagram.traffic_class, 0, packet);
    }
    let meta = RxMeta {
        flow,
        traffic_class: datagram.traffic_class,
        hop_limit: HOP_LIMIT_HIDDEN,
        ip_id: IpId::Likely(0),
    };
    inlet.give(&meta, packet);
}
