//! Whose a TCP socket is, asked of the kernel by the addresses of its connection (sock_diag(7)): one answer, however many
//! connections the host has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{AF_INET, AF_INET6, IPPROTO_TCP, NLM_F_REQUEST, NLMSG_ERROR};
use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};

use crate::own::Own;

/// As linux/sock_diag.h and linux/inet_diag.h have them.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NO_COOKIE: [u8; 8] = [0xff; 8];
const HEAD_BYTES: usize = 16;
const ID_BYTES: usize = 48;
const REQUEST_BYTES: usize = HEAD_BYTES + 8 + ID_BYTES;
const ANSWER_BYTES: usize = HEAD_BYTES + 4 + ID_BYTES + 20;
/// With what stands behind an answer and is not read.
const ROOM: usize = 1 << 10;

/// The loopback interface, which is the first of each network namespace: by it come both ends of what a host says to itself,
/// also of sockets that are bound to it.
const LOOPBACK: u32 = 1;
/// A socket that waits for the last of a connection that nobody has any more, and one that listens (linux/tcp_states.h).
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
/// What is asked, in a socket that asks once.
const SEQUENCE: u32 = 1;

/// It has found a socket: what it does not find then is none. A kernel that has no such answers finds none at all.
static HAS_FOUND: AtomicBool = AtomicBool::new(false);

/// The kernel does not say: it may be asked otherwise.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unanswered;

/// The user whose socket is at `local` and connected to `remote`; none if nobody has such a socket.
///
/// # Errors
/// Where the kernel does not answer such questions, or does not let this process ask.
pub(crate) fn user(local: SocketAddr, remote: SocketAddr) -> Result<Option<u32>, Unanswered> {
    let request = request(local, remote).ok_or(Unanswered)?;
    let mut room = [0; ROOM];
    let answer = ask(&request, &mut room).map_err(|_| Unanswered)?;
    match read(answer, local, remote) {
        Read::Socket(user) => {
            HAS_FOUND.store(true, Ordering::Relaxed);
            Ok(user)
        }
        Read::None if HAS_FOUND.load(Ordering::Relaxed) => Ok(None),
        Read::None | Read::Other => Err(Unanswered),
    }
}

/// Sends a request; the answer, which is there at once.
fn ask<'a>(request: &[u8], room: &'a mut [u8; ROOM]) -> Result<&'a [u8], Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, protocol) = (AddressFamily::NETLINK, Some(SOCK_DIAG));
    let socket = Own::new(socket_with(family, SocketType::RAW, flags, protocol)?);
    // From then on the kernel alone is heard.
    connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    send(&socket, request, SendFlags::empty())?;
    let (_, len) = recv(&socket, &mut room[..], RecvFlags::DONTWAIT)?;
    room.get(..len).ok_or(Errno::MSGSIZE)
}

/// Asks for one socket; none of addresses that no connection has, or whose interface would have to be known.
fn request(local: SocketAddr, remote: SocketAddr) -> Option<[u8; REQUEST_BYTES]> {
    let (family, ips) = match (local.ip(), remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let wide = |ip: Ipv4Addr| {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&ip.octets());
                bytes
            };
            (AF_INET, [wide(local), wide(remote)])
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) if !local.is_unicast_link_local() => {
            (AF_INET6, [local.octets(), remote.octets()])
        }
        _ => return None,
    };
    let parts: [&[u8]; 13] = [
        &(REQUEST_BYTES as u32).to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &(NLM_F_REQUEST as u16).to_ne_bytes(),
        &SEQUENCE.to_ne_bytes(),
        &0u32.to_ne_bytes(),
        &[family as u8, IPPROTO_TCP as u8, 0, 0],
        // In whatever state.
        &u32::MAX.to_ne_bytes(),
        &local.port().to_be_bytes(),
        &remote.port().to_be_bytes(),
        &ips[0],
        &ips[1],
        &LOOPBACK.to_ne_bytes(),
        &NO_COOKIE,
    ];
    let mut request = [0; REQUEST_BYTES];
    let mut at = 0;
    for part in parts {
        request[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    Some(request)
}

/// What an answer says.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// There is a socket; whose it is, if it is anybody's.
    Socket(Option<u32>),
    /// There is none, or the kernel knows none of its kind.
    None,
    /// Something else.
    Other,
}

fn read(answer: &[u8], local: SocketAddr, remote: SocketAddr) -> Read {
    read_fields(answer, local, remote).unwrap_or(Read::Other)
}

fn read_fields(answer: &[u8], local: SocketAddr, remote: SocketAddr) -> Option<Read> {
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_be_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let (len, kind) = (word(0)? as usize, u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?));
    if len > answer.len() || word(8)? != SEQUENCE {
        return None;
    }
    if kind == NLMSG_ERROR as u16 {
        let error = word(HEAD_BYTES)?.cast_signed();
        return (error == -libc::ENOENT).then_some(Read::None);
    }
    if kind != SOCK_DIAG_BY_FAMILY || len < ANSWER_BYTES {
        return None;
    }
    let (family, state) = (*answer.get(HEAD_BYTES)?, *answer.get(HEAD_BYTES + 1)?);
    let id = HEAD_BYTES + 4;
    // An IPv4 connection may be an IPv6 socket's.
    let ip = |at: usize| {
        let bytes: [u8; 16] = answer.get(at..at + 16)?.try_into().ok()?;
        let [a, b, c, d, ..] = bytes;
        match family.into() {
            AF_INET => Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
            AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()),
            _ => None,
        }
    };
    let ends =
        [SocketAddr::new(ip(id + 4)?, half(id)?), SocketAddr::new(ip(id + 20)?, half(id + 2)?)];
    let rest = id + ID_BYTES;
    let (user, inode) = (word(rest + 12)?, word(rest + 16)?);
    // Where nothing is connected so, the kernel tells of one that listens.
    if ends != [local, remote] || state == LISTEN {
        return Some(Read::Socket(None));
    }
    // Of one that no process has open it says root's.
    let is_anybody_s = inode != 0 && !matches!(state, TIME_WAIT | CLOSE);
    Some(Read::Socket(is_anybody_s.then_some(user)))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn ends() -> (SocketAddr, SocketAddr) {
        ("127.0.0.1:8080".parse().unwrap(), "127.0.0.2:50000".parse().unwrap())
    }

    /// What the kernel says of a socket, with an attribute behind.
    fn answer(local: SocketAddr, remote: SocketAddr, state: u8, user: u32, inode: u32) -> Vec<u8> {
        let asked = request(local, remote).unwrap();
        let mut bytes = asked[..HEAD_BYTES].to_vec();
        bytes[..4].copy_from_slice(&(ANSWER_BYTES as u32 + 8).to_ne_bytes());
        bytes.extend_from_slice(&[asked[HEAD_BYTES], state, 0, 0]);
        bytes.extend_from_slice(&asked[HEAD_BYTES + 8..]);
        for word in [0, 0, 0, user, inode, 0, 0] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn what_the_kernel_says_is_believed_of_a_socket_that_a_process_has_open() {
        let (local, remote) = ends();
        let read_of =
            |state, inode| read(&answer(local, remote, state, 1000, inode), local, remote);
        assert_eq!(read_of(1, 77), Read::Socket(Some(1000)));
        assert_eq!(read_of(8, 77), Read::Socket(Some(1000)));
        for (state, inode) in [(1, 0), (TIME_WAIT, 77), (CLOSE, 77), (LISTEN, 77)] {
            assert_eq!(read_of(state, inode), Read::Socket(None), "state {state}, inode {inode}");
        }
        // Of another connection.
        let of_another = answer(remote, local, 1, 1000, 77);
        assert_eq!(read(&of_another, local, remote), Read::Socket(None));
    }

    #[test]
    fn what_is_no_answer_is_none() {
        let (local, remote) = ends();
        let whole = answer(local, remote, 1, 1000, 77);
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len], local, remote), Read::Other, "{len} bytes");
        }
        let changed = |at: usize, byte: u8| {
            let mut other = whole.clone();
            other[at] = byte;
            read(&other, local, remote)
        };
        // Shorter than it says, of another kind, to another request, of another family.
        assert_eq!(changed(0, ANSWER_BYTES as u8 - 1), Read::Other);
        assert_eq!(changed(4, 21), Read::Other);
        assert_eq!(changed(8, 2), Read::Other);
        assert_eq!(changed(HEAD_BYTES, 1), Read::Other);
        let refusal = |error: i32| {
            let mut bytes = request(local, remote).unwrap()[..HEAD_BYTES].to_vec();
            bytes[..4].copy_from_slice(&(HEAD_BYTES as u32 + 4).to_ne_bytes());
            bytes[4..6].copy_from_slice(&(NLMSG_ERROR as u16).to_ne_bytes());
            bytes.extend_from_slice(&(-error).to_ne_bytes());
            read(&bytes, local, remote)
        };
        assert_eq!(refusal(libc::ENOENT), Read::None);
        assert_eq!(refusal(libc::EPERM), Read::Other);
    }

    #[test]
    fn one_is_asked_for_that_can_be_named() {
        let v4 = ends().0;
        let v6: SocketAddr = "[::1]:9".parse().unwrap();
        let of_a_link: SocketAddr = "[fe80::1]:9".parse().unwrap();
        assert!(request(v4, v6).is_none() && request(of_a_link, of_a_link).is_none());
        assert!(request(v6, v6).is_some());
    }

    /// The kernel would name the one that listens.
    #[test]
    fn a_listener_is_no_end_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = TcpStream::connect(at).unwrap();
        let there = client.local_addr().unwrap();
        let Ok(found) = user(there, at) else { return };
        assert_eq!(found, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(user(at, SocketAddr::new(there.ip(), 1)), Ok(None));
    }
}
