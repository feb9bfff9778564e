//! A UDP socket that moves packets in trains: one system call, one pass through the kernel's stack
//! for up to 64 packets (GSO and GRO), and several trains a call (sendmmsg, recvmmsg).
//!
//! IPv4's identification is covered by the ICRC and hidden from sockets. On an unconnected socket
//! with `IP_PMTUDISC_DO` the kernel sends ID 0 with DF, and where it cuts a train in software, ID i
//! on the i-th segment. Senders seal accordingly; receivers take these as likely and solve for
//! others. `tests/all/wire_capture.rs` checks what really leaves.

use std::io;
use std::mem;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use crate::SoftError;
use crate::intake::{DATAGRAM_BYTES, Look};

/// Most packets in a train: the kernel's UDP_MAX_SEGMENTS in all versions that have GSO.
pub(crate) const TRAIN_PACKETS: usize = 64;
/// Most bytes in a train: what one IPv4 datagram holds, less the headers.
pub(crate) const TRAIN_BYTES: usize = 65_000;
/// Trains that one sendmmsg takes.
pub(crate) const TRAINS: usize = 8;
/// Buffers that one recvmmsg fills.
const RECV_BUFFERS: usize = 8;
/// A GRO train or any datagram fits.
const RECV_BYTES: usize = 65_536;
/// Receives in a row that find something before many buffers are offered at once, and before the
/// kernel is asked to join packets.
const HITS_OF_A_STREAM: u32 = 3;
/// Packets in a row that came alone before the kernel is asked to join no more.
const ALONE_MAX: u32 = 1024;
/// Room for the control messages that we send or receive.
const CONTROL_BYTES: usize = 128;
/// Hop limit that a UDP socket does not tell: what a UD receive shows in its GRH.
pub(crate) const HOP_LIMIT_HIDDEN: u8 = 64;
/// Takes UDP over IPv6 without a checksum (linux/udp.h).
pub(crate) const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// A run of packets of one size (the last may be shorter) to one peer, in the caller's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Train {
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Bytes of each packet but the last.
    pub(crate) packet: usize,
    pub(crate) to: SocketAddr,
    pub(crate) traffic_class: u8,
}

/// A received train, in the socket's buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) buffer: usize,
    pub(crate) len: usize,
    /// Bytes of each packet but the last; 0 when the datagram is one packet.
    pub(crate) packet: usize,
    pub(crate) from: SocketAddr,
    pub(crate) traffic_class: u8,
    /// The datagram was longer than the buffer.
    pub(crate) cut: bool,
}

/// What became of a send.
#[derive(Debug)]
pub(crate) enum Sent {
    /// So many trains left; any that remain must wait.
    Trains(usize),
    /// The kernel refuses the first train as such: cut it.
    NoSegmentation,
    /// The first train is lost: the reason is the network's or the configuration's.
    Lost,
}

pub(crate) struct UdpIo {
    socket: UdpSocket,
    fd: RawFd,
    v6: bool,
    pub(crate) gso: bool,
    pub(crate) gro: bool,
    default_class: u8,
    buffers: Vec<u8>,
    controls: Box<[Control; RECV_BUFFERS]>,
    names: Box<[libc::sockaddr_storage; RECV_BUFFERS]>,
    received: Vec<Received>,
    /// What the last receive found.
    pub(crate) look: Look,
    /// Receives in a row that found something.
    hits: u32,
    /// Whether the socket has UDP_GRO set now. A socket that has it looks at a cold cache line of
    /// each packet, which a request and its answer pay for with 8 % of their time.
    joining: bool,
    /// Packets in a row that came alone.
    alone: u32,
    /// Whether nothing is sent, as over a cable that is pulled.
    pub(crate) down: bool,
}

/// Room for control messages.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub(crate) struct Control(pub(crate) [u8; CONTROL_BYTES]);

impl Default for Control {
    fn default() -> Control {
        Control([0; CONTROL_BYTES])
    }
}

impl UdpIo {
    pub(crate) fn bind(
        address: SocketAddr,
        rcvbuf: usize,
        sndbuf: usize,
        gso: bool,
        gro: bool,
        traffic_class: u8,
    ) -> Result<UdpIo, SoftError> {
        let bind = |reason| SoftError::Bind { address, reason };
        let socket = UdpSocket::bind(address).map_err(bind)?;
        socket.set_nonblocking(true).map_err(bind)?;
        let fd = socket.as_raw_fd();
        let v6 = address.is_ipv6();
        let class = i32::from(traffic_class);
        if v6 {
            let level = libc::IPPROTO_IPV6;
            let discover = libc::IPV6_PMTUDISC_DO;
            set(fd, level, libc::IPV6_MTU_DISCOVER, discover, "IPV6_MTU_DISCOVER")?;
            set(fd, level, libc::IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS")?;
            set(fd, level, libc::IPV6_TCLASS, class, "IPV6_TCLASS")?;
            // rdma_rxe and hardware leave the UDP checksum out: the ICRC guards more.
            set(fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1, "UDP_NO_CHECK6_RX")?;
        } else {
            let level = libc::IPPROTO_IP;
            set(fd, level, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO, "IP_MTU_DISCOVER")?;
            set(fd, level, libc::IP_RECVTOS, 1, "IP_RECVTOS")?;
            set(fd, level, libc::IP_TOS, class, "IP_TOS")?;
        }
        let sizes = [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, rcvbuf, "SO_RCVBUF"),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, sndbuf, "SO_SNDBUF"),
        ];
        for (force, plain, size, name) in sizes {
            let size = i32::try_from(size).unwrap_or(i32::MAX);
            if set(fd, libc::SOL_SOCKET, force, size, name).is_err() {
                set(fd, libc::SOL_SOCKET, plain, size, name)?;
            }
        }
        let gro = gro && set(fd, libc::SOL_UDP, libc::UDP_GRO, 0, "UDP_GRO").is_ok();
        let gso = gso && set(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0, "UDP_SEGMENT").is_ok();
        // SAFETY: all zeros is a valid sockaddr_storage.
        let name: libc::sockaddr_storage = unsafe { mem::zeroed() };
        Ok(UdpIo {
            socket,
            fd,
            v6,
            gso,
            gro,
            default_class: traffic_class,
            buffers: vec![0; RECV_BUFFERS * RECV_BYTES],
            controls: Box::new([Control([0; CONTROL_BYTES]); RECV_BUFFERS]),
            names: Box::new([name; RECV_BUFFERS]),
            received: Vec::with_capacity(RECV_BUFFERS),
            look: Look::default(),
            hits: 0,
            joining: false,
            alone: 0,
            down: false,
        })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// As much as may wait here: the last datagram finds room where there is any.
    pub(crate) fn waiting_max(&self) -> Result<usize, SoftError> {
        let size = rustix::net::sockopt::socket_recv_buffer_size(&self.socket)
            .map_err(|error| SoftError::System { call: "SO_RCVBUF", reason: error.into() })?;
        Ok(size + RECV_BYTES + DATAGRAM_BYTES)
    }

    /// Says which interface IPv6 multicast leaves by; IPv4's leaves by that of the source address.
    pub(crate) fn multicast_over(&self, interface: u32) -> Result<(), SoftError> {
        let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF);
        set(self.fd, level, name, interface, "IPV6_MULTICAST_IF")
    }

    /// The trains of the last receive.
    #[inline]
    pub(crate) fn received(&self, index: usize) -> Option<(Received, &[u8])> {
        let received = *self.received.get(index)?;
        let at = received.buffer * RECV_BYTES;
        Some((received, &self.buffers[at..at + received.len]))
    }

    /// Receives what is there, at most a few trains; returns how many. While traffic is a packet at
    /// a time one buffer is offered, which costs the kernel less.
    pub(crate) fn receive(&mut self) -> io::Result<usize> {
        self.received.clear();
        self.look = Look::default();
        if self.hits < HITS_OF_A_STREAM {
            let mut iov = [EMPTY_IOV];
            let mut header = [EMPTY_HEADER];
            self.offer(&mut iov, &mut header);
            let flags = libc::MSG_DONTWAIT;
            // libc's own wrappers are cancellation points: a thread of a program's that is cancelled
            // could not give up the frames of this library, and who is not pays two atomic operations.
            // SAFETY: the header points to buffers of the lengths that it names, which outlive the
            // call.
            let len =
                unsafe { libc::syscall(libc::SYS_recvmsg, self.fd, &mut header[0].msg_hdr, flags) };
            if len < 0 {
                self.hits = 0;
                self.rejoin();
                return self.nothing_yet();
            }
            header[0].msg_len = len as u32;
            self.note(&header);
            self.hits += 1;
            if self.hits == HITS_OF_A_STREAM {
                self.rejoin();
            }
            return Ok(self.received.len());
        }
        let mut iovs = [EMPTY_IOV; RECV_BUFFERS];
        let mut headers = [EMPTY_HEADER; RECV_BUFFERS];
        self.offer(&mut iovs, &mut headers);
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the headers point to buffers of the lengths that they name, which outlive the
        // call.
        let count = unsafe {
            let (at, none) = (headers.as_mut_ptr(), ptr::null_mut::<libc::timespec>());
            libc::syscall(libc::SYS_recvmmsg, self.fd, at, RECV_BUFFERS as u32, flags, none)
        };
        if count < 2 {
            self.hits = 0;
        }
        if count < 0 {
            return self.nothing_yet();
        }
        // It takes fewer than it may where there are no more.
        self.look.emptied = (count as usize) < RECV_BUFFERS;
        self.note(&headers[..count as usize]);
        Ok(self.received.len())
    }

    /// A receive has found nothing, or an error.
    fn nothing_yet(&mut self) -> io::Result<usize> {
        let error = io::Error::last_os_error();
        self.look.emptied = error.kind() == io::ErrorKind::WouldBlock;
        if self.look.emptied || error.kind() == io::ErrorKind::Interrupted {
            return Ok(0);
        }
        Err(error)
    }

    /// Lets the kernel join packets while they come in streams. Called to stop it only when the
    /// socket is empty, for a train that was joined before tells its packets' size no more; one
    /// that slips in between is lost, as the network may lose it.
    #[inline]
    fn rejoin(&mut self) {
        let wanted = if self.hits > 0 { self.gro } else { self.joining && self.alone < ALONE_MAX };
        if wanted != self.joining
            && set(self.fd, libc::SOL_UDP, libc::UDP_GRO, i32::from(wanted), "UDP_GRO").is_ok()
        {
            self.joining = wanted;
            self.alone = 0;
        }
    }

    /// Points headers to the socket's buffers.
    fn offer(&mut self, iovs: &mut [libc::iovec], headers: &mut [libc::mmsghdr]) {
        for (index, (iov, header)) in iovs.iter_mut().zip(headers).enumerate() {
            iov.iov_base = self.buffers[index * RECV_BYTES..].as_mut_ptr().cast();
            iov.iov_len = RECV_BYTES;
            let header = &mut header.msg_hdr;
            header.msg_name = ptr::from_mut(&mut self.names[index]).cast();
            header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = iov;
            header.msg_iovlen = 1;
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES;
        }
    }

    /// Takes down what the kernel put into the buffers.
    fn note(&mut self, headers: &[libc::mmsghdr]) {
        for (index, header) in headers.iter().enumerate() {
            // SAFETY: the kernel filled the header, and its buffers are still there.
            let control = unsafe { read_control(&header.msg_hdr) };
            self.look.bytes += header.msg_len as usize + DATAGRAM_BYTES;
            let Some(from) = address_of(&self.names[index]) else {
                continue;
            };
            self.alone = if control.packet == 0 { self.alone.saturating_add(1) } else { 0 };
            self.received.push(Received {
                buffer: index,
                len: header.msg_len as usize,
                packet: control.packet,
                from,
                traffic_class: control.traffic_class,
                cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            });
        }
    }

    /// Sends trains, in order.
    pub(crate) fn send(&mut self, buffer: &[u8], trains: &[Train]) -> Sent {
        if self.down {
            return Sent::Lost;
        }
        if let [train] = trains
            && train.len <= train.packet
            && train.traffic_class == self.default_class
        {
            return self.send_packet(buffer, train);
        }
        let mut iovs = [EMPTY_IOV; TRAINS];
        let mut headers = [EMPTY_HEADER; TRAINS];
        // SAFETY: all zeros is a valid sockaddr_storage.
        let mut names: [libc::sockaddr_storage; TRAINS] = unsafe { mem::zeroed() };
        let mut controls = [Control([0; CONTROL_BYTES]); TRAINS];
        let count = trains.len().min(TRAINS);
        for (index, train) in trains[..count].iter().enumerate() {
            let bytes = &buffer[train.start..train.start + train.len];
            iovs[index].iov_base = bytes.as_ptr().cast_mut().cast();
            iovs[index].iov_len = bytes.len();
            let header = &mut headers[index].msg_hdr;
            header.msg_namelen = put_address(&mut names[index], train.to);
            header.msg_name = ptr::from_mut(&mut names[index]).cast();
            header.msg_iov = &mut iovs[index];
            header.msg_iovlen = 1;
            let segment = (train.len > train.packet).then_some(train.packet as u16);
            let class = (train.traffic_class != self.default_class).then_some(train.traffic_class);
            if segment.is_some() || class.is_some() {
                header.msg_control = controls[index].0.as_mut_ptr().cast();
                header.msg_controllen = CONTROL_BYTES;
                // SAFETY: the header's control buffer is zeroed and has room for both messages.
                header.msg_controllen = unsafe { put_control(header, segment, class, self.v6) };
            }
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the first `count` headers point to buffers of the lengths that they name, which
        // outlive the call and which the kernel only reads.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendmmsg, self.fd, headers.as_mut_ptr(), count as u32, flags)
        };
        if sent >= 0 {
            return Sent::Trains(sent as usize);
        }
        refused(trains.first().is_some_and(|train| train.len > train.packet))
    }

    /// Sends one packet, the cheapest way.
    fn send_packet(&self, buffer: &[u8], train: &Train) -> Sent {
        let bytes = &buffer[train.start..train.start + train.len];
        // SAFETY: all zeros is a valid sockaddr_storage.
        let mut name: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let name_len = put_address(&mut name, train.to);
        let flags = libc::MSG_DONTWAIT;
        let (at, to) = (bytes.as_ptr(), ptr::from_ref(&name));
        // SAFETY: the buffer and the address are of the lengths that are named, and the kernel
        // only reads them.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendto, self.fd, at, bytes.len(), flags, to, name_len)
        };
        if sent >= 0 { Sent::Trains(1) } else { refused(false) }
    }
}

const EMPTY_IOV: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
// SAFETY: all zeros is a valid mmsghdr.
const EMPTY_HEADER: libc::mmsghdr = unsafe { mem::zeroed() };

/// What a failed send means.
fn refused(segmented: bool) -> Sent {
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS) => Sent::Trains(0),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP) if segmented => {
            Sent::NoSegmentation
        }
        _ => Sent::Lost,
    }
}

/// Sets a socket option, whose value is an integer or a structure of libc's.
pub(crate) fn set<T>(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
    option: &'static str,
) -> Result<(), SoftError> {
    // SAFETY: the kernel reads no more of `value` than its length says.
    let done = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            ptr::from_ref(&value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if done == 0 {
        return Ok(());
    }
    Err(SoftError::Option { option, reason: io::Error::last_os_error() })
}

pub(crate) fn put_address(
    name: &mut libc::sockaddr_storage,
    address: SocketAddr,
) -> libc::socklen_t {
    let at = ptr::from_mut(name);
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room and alignment for every socket address.
            unsafe { at.cast::<libc::sockaddr_in>().write(raw) };
            mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: a sockaddr_storage has room and alignment for every socket address.
            unsafe { at.cast::<libc::sockaddr_in6>().write(raw) };
            mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

pub(crate) fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what stands there.
            let raw = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = raw.sin_addr.s_addr.to_ne_bytes().into();
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what stands there.
            let raw = unsafe { &*ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let ip = raw.sin6_addr.s6_addr.into();
            Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), 0, 0).into())
        }
        _ => None,
    }
}

#[derive(Default)]
pub(crate) struct ReceivedControl {
    packet: usize,
    pub(crate) traffic_class: u8,
}

/// # Safety
/// `header` was filled by recvmmsg and its control buffer is still there.
pub(crate) unsafe fn read_control(header: &libc::msghdr) -> ReceivedControl {
    let mut control = ReceivedControl::default();
    // SAFETY: by the caller's contract the macros walk a list that the kernel wrote; each value is
    // read with the size that its type has.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let data = libc::CMSG_DATA(message);
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    control.packet = data.cast::<libc::c_int>().read_unaligned() as usize;
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => control.traffic_class = data.read(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    control.traffic_class = data.cast::<libc::c_int>().read_unaligned() as u8;
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    control
}

/// Writes control messages; returns their length.
///
/// # Safety
/// `header`'s control buffer is zeroed, aligned and holds [`CONTROL_BYTES`].
unsafe fn put_control(
    header: &libc::msghdr,
    segment: Option<u16>,
    class: Option<u8>,
    v6: bool,
) -> usize {
    let mut len = 0;
    // SAFETY: by the caller's contract there is room for both messages, so that neither macro
    // returns null; each value is written with the size that its header names.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        if let Some(segment) = segment {
            let size = mem::size_of::<u16>() as u32;
            (*message).cmsg_level = libc::SOL_UDP;
            (*message).cmsg_type = libc::UDP_SEGMENT;
            (*message).cmsg_len = libc::CMSG_LEN(size) as usize;
            libc::CMSG_DATA(message).cast::<u16>().write_unaligned(segment);
            len += libc::CMSG_SPACE(size) as usize;
            message = libc::CMSG_NXTHDR(header, message);
        }
        if let Some(class) = class {
            let size = mem::size_of::<libc::c_int>() as u32;
            let (level, kind) = if v6 {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            } else {
                (libc::IPPROTO_IP, libc::IP_TOS)
            };
            (*message).cmsg_level = level;
            (*message).cmsg_type = kind;
            (*message).cmsg_len = libc::CMSG_LEN(size) as usize;
            libc::CMSG_DATA(message).cast::<libc::c_int>().write_unaligned(i32::from(class));
            len += libc::CMSG_SPACE(size) as usize;
        }
    }
    len
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "how long a test waits")]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Sends UDP over IPv6 without a checksum (linux/udp.h).
    const UDP_NO_CHECK6_TX: libc::c_int = 101;

    #[test]
    fn an_ipv6_packet_needs_no_udp_checksum() {
        let any = "[::1]:0".parse().unwrap();
        let mut io = UdpIo::bind(any, 1 << 16, 1 << 16, false, false, 0).unwrap();
        let sender = UdpSocket::bind(any).unwrap();
        set(sender.as_raw_fd(), libc::SOL_UDP, UDP_NO_CHECK6_TX, 1, "UDP_NO_CHECK6_TX").unwrap();
        sender.send_to(b"as rdma_rxe sends", io.socket.local_addr().unwrap()).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while io.receive().unwrap() == 0 {
            assert!(Instant::now() < end, "the kernel dropped it");
        }
        assert_eq!(io.received(0).unwrap().1, b"as rdma_rxe sends");
    }
}
