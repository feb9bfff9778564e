//! Ports of rdma_cm's port spaces, and who listens on them. Each process has a device and an address of
//! its own, and a program asks for an address of the host's: names of Unix sockets in the abstract
//! namespace, which is the network namespace's, tell which process it means. They go with the process.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::{fs, io};

use rustix::io::Errno;

use crate::cm::bound::Bound;
use crate::fork::Unshared;

/// Ports that are given to who asks for any.
const FIRST: u16 = 32_768;
const COUNT: u16 = 28_232;
/// Ports that connections are from are held so many at once.
pub(crate) const BLOCK: u16 = 16;
const FROM: &str = "elver-rdma_cm-from";
const PORT: &str = "elver-rdma_cm-port";
/// Beside [`PORT`]: who has it shares it with those that reuse it.
const SHARED: &str = "elver-rdma_cm-shared";
const LISTENER: &str = "elver-rdma_cm";
const BOUND: &str = "elver-rdma_cm-bound";

/// A name that is held as long as this is, and by no child.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: Unshared,
}

fn claim(name: &str) -> io::Result<Claim> {
    let address = UnixAddr::from_abstract_name(name)?;
    let bound = || match UnixDatagram::bind_addr(&address) {
        Ok(socket) => Ok(socket.into()),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    };
    Ok(Claim { _socket: Unshared::of(bound)? })
}

fn try_hold(port_space: u16, port: u16, bound: Bound) -> io::Result<Claim> {
    let held = claim(&format!("{PORT}/{port_space:04x}/{port}/{bound}"))?;
    // A port of all addresses is the port of each. Of two that take it at once neither has it then.
    let is_free = table().is_none_or(|table| !is_held_otherwise(&table, port_space, port, bound));
    if is_free { Ok(held) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

/// What a port is held for, as names of a kind have it.
fn bounds_in(table: &str, kind: &str, port_space: u16, port: u16) -> impl Iterator<Item = Bound> {
    let start = format!("@{kind}/{port_space:04x}/{port}/");
    let names = table.lines().filter_map(|line| line.split_whitespace().last());
    names.filter_map(move |name| name.strip_prefix(&start)?.parse().ok())
}

/// Whether a port is held by another name that means the same: for any address, where one is wanted, or for one.
fn is_held_otherwise(table: &str, port_space: u16, port: u16, bound: Bound) -> bool {
    let held = bounds_in(table, PORT, port_space, port);
    held.filter(|held| *held != bound).any(|held| held.is_same_or_shuts_out(&bound))
}

/// Whether somebody has a port who shares it with none that reuse it.
pub(crate) fn is_held_alone(port_space: u16, port: u16, bound: Bound) -> bool {
    table().is_some_and(|table| is_held_alone_in(&table, port_space, port, bound))
}

fn is_held_alone_in(table: &str, port_space: u16, port: u16, bound: Bound) -> bool {
    let is_shared =
        |held: Bound| bounds_in(table, SHARED, port_space, port).any(|shared| shared == held);
    bounds_in(table, PORT, port_space, port)
        .any(|held| held.is_same_or_shuts_out(&bound) && !is_shared(held))
}

/// Holds a port, and tells those that reuse it that it is shared: before it is held, so that it is held alone at no time. The
/// first goes first.
fn try_hold_shared(port_space: u16, port: u16, bound: Bound) -> io::Result<[Claim; 2]> {
    let shared = claim(&format!("{SHARED}/{port_space:04x}/{port}/{bound}"))?;
    Ok([try_hold(port_space, port, bound)?, shared])
}

/// Holds a port that is shared; none if somebody has it.
pub(crate) fn hold_shared(port_space: u16, port: u16, bound: Bound) -> Option<[Claim; 2]> {
    try_hold_shared(port_space, port, bound).ok()
}

/// Holds a port; none if somebody has it.
pub(crate) fn hold(port_space: u16, port: u16, bound: Bound) -> Option<Claim> {
    try_hold(port_space, port, bound).ok()
}

/// Holds any port that is free, beginning the search anywhere.
pub(crate) fn hold_any(
    port_space: u16,
    bound: Bound,
    anywhere: u32,
) -> Result<(u16, Claim), c_int> {
    first_free(1, anywhere, |port| try_hold(port_space, port, bound))
}

/// The same, of ports that are to be shared.
pub(crate) fn hold_any_shared(
    port_space: u16,
    bound: Bound,
    anywhere: u32,
) -> Result<(u16, [Claim; 2]), c_int> {
    first_free(1, anywhere, |port| try_hold_shared(port_space, port, bound))
}

/// Holds any [`BLOCK`] ports that connections may be from, and that no other process holds so; the first of them.
pub(crate) fn hold_block(port_space: u16, anywhere: u32) -> Result<(u16, Claim), c_int> {
    first_free(BLOCK, anywhere, |first| claim(&format!("{FROM}/{port_space:04x}/{first}")))
}

/// The first that nobody has. When descriptors have run out no other is tried.
fn first_free<T>(
    each: u16,
    anywhere: u32,
    hold: impl Fn(u16) -> io::Result<T>,
) -> Result<(u16, T), c_int> {
    let count = u32::from(COUNT / each);
    for step in 0..count {
        let port = FIRST + (anywhere.wrapping_add(step) % count) as u16 * each;
        match hold(port) {
            Ok(held) => return Ok((port, held)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL)),
        }
    }
    Err(libc::EADDRNOTAVAIL)
}

/// Tells this network namespace that the device at an address listens on a port.
pub(crate) fn publish(port_space: u16, port: u16, bound: Bound, device: IpAddr) -> Option<Claim> {
    claim(&format!("{LISTENER}/{port_space:04x}/{port}/{bound}/{device}")).ok()
}

/// Tells it that the device at an address has a port, though it may not listen: datagram rsockets never do, and send to
/// ports that they have heard of otherwise.
pub(crate) fn publish_bound(
    port_space: u16,
    port: u16,
    bound: Bound,
    device: IpAddr,
) -> Option<Claim> {
    claim(&format!("{BOUND}/{port_space:04x}/{port}/{bound}/{device}")).ok()
}

/// The device that listens on a port of this host.
pub(crate) fn find(port_space: u16, at: SocketAddr) -> Option<IpAddr> {
    find_in(&table()?, LISTENER, port_space, at)
}

/// The same, else the device that has it.
pub(crate) fn find_bound(port_space: u16, at: SocketAddr) -> Option<IpAddr> {
    let table = table()?;
    [LISTENER, BOUND].iter().find_map(|kind| find_in(&table, kind, port_space, at))
}

fn table() -> Option<String> {
    fs::read_to_string("/proc/net/unix").ok()
}

fn find_in(table: &str, kind: &str, port_space: u16, at: SocketAddr) -> Option<IpAddr> {
    let start = format!("@{kind}/{port_space:04x}/{}/", at.port());
    let names = table.lines().filter_map(|line| line.split_whitespace().last());
    let told = names.filter_map(|name| name.strip_prefix(&start)?.split_once('/'));
    let suit = told.filter_map(|(bound, device)| {
        let suits = bound.parse::<Bound>().ok()?.suits(at.ip())?;
        Some((suits, device.parse().ok()?))
    });
    suit.max_by_key(|(suits, _)| *suits).map(|(_, device)| device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_by_their_own_address_first() {
        let table = "Num RefCount Protocol Flags Type St Inode Path\n\
            0: 2 0 0 2 1 7 @elver-rdma_cm/0106/7174/0.0.0.0/127.64.0.9\n\
            0: 2 0 0 2 1 8 @elver-rdma_cm/0106/7174/127.0.0.1/127.64.0.8\n\
            0: 2 0 0 2 1 8 @elver-rdma_cm/0106/7174/127.0.0.2/nonsense\n\
            0: 2 0 0 2 1 9 @elver-rdma_cm-port/0106/7175/0.0.0.0\n";
        let find = |text: &str| find_in(table, LISTENER, 0x106, text.parse().unwrap());
        assert_eq!(find("127.0.0.1:7174"), Some("127.64.0.8".parse().unwrap()));
        assert_eq!(find("127.0.0.2:7174"), Some("127.64.0.9".parse().unwrap()));
        assert_eq!(find("127.0.0.1:7175"), None);
        assert_eq!(find_in(table, LISTENER, 0x111, "127.0.0.1:7174".parse().unwrap()), None);
        assert_eq!(find_in(table, BOUND, 0x106, "127.0.0.1:7174".parse().unwrap()), None);
        assert_eq!(find("[::1]:7174"), None);
        let held =
            |port, bound: &str| is_held_otherwise(table, 0x106, port, bound.parse().unwrap());
        assert!(held(7175, "127.0.0.1") && held(7175, "::+"));
        assert!(!held(7175, "0.0.0.0") && !held(7175, "::"));
        assert!(!held(7174, "127.0.0.1"), "nobody holds it, whoever listens");
        let alone =
            |text: &str, bound: &str| is_held_alone_in(text, 0x106, 7175, bound.parse().unwrap());
        assert!(alone(table, "0.0.0.0") && alone(table, "127.0.0.1") && !alone(table, "::"));
        let shared = format!("{table}0: 2 0 0 2 1 9 @elver-rdma_cm-shared/0106/7175/0.0.0.0\n");
        assert!(!alone(&shared, "127.0.0.1"));
    }

    #[test]
    fn a_port_is_held_once() {
        let [one, all, all_v6] = ["127.0.0.1", "0.0.0.0", "::"].map(|text| text.parse().unwrap());
        let (port, held) = hold_any(0xfff0, one, std::process::id()).unwrap();
        let whole = SocketAddr::new([127, 0, 0, 1].into(), port);
        assert!(hold(0xfff0, port, one).is_none());
        assert!(hold(0xfff0, port, all).is_none(), "one address of all is held");
        assert!(hold(0xfff0, port, all_v6).is_some(), "none of that family is");
        assert!(hold(0xfff1, port, all).is_some(), "in another space it is not");
        let devices = [[127, 64, 1, 2], [127, 64, 1, 3]].map(IpAddr::from);
        let has = publish_bound(0xfff0, port, one, devices[0]).unwrap();
        assert_eq!((find(0xfff0, whole), find_bound(0xfff0, whole)), (None, Some(devices[0])));
        let listens = publish(0xfff0, port, one, devices[1]).unwrap();
        assert_eq!(
            (find(0xfff0, whole), find_bound(0xfff0, whole)),
            (Some(devices[1]), Some(devices[1]))
        );
        drop((held, listens, has));
        assert!(hold(0xfff0, port, one).is_some());
        assert_eq!((find(0xfff0, whole), find_bound(0xfff0, whole)), (None, None));
    }

    /// Who has a port that is said to be shared has said it himself, or nobody may share it.
    #[test]
    fn a_port_is_not_had_while_another_says_whether_it_is_shared() {
        let bound: Bound = "127.0.0.1".parse().unwrap();
        let anywhere = std::process::id();
        let (port, held) = hold_any_shared(0xfff2, bound, anywhere).unwrap();
        assert!(!is_held_alone(0xfff2, port, bound));
        // Another one that lets it go has let go the port itself already.
        let [port_itself, shared] = held;
        drop(port_itself);
        assert!(hold_shared(0xfff2, port, bound).is_none());
        let (next, [_, _]) = hold_any_shared(0xfff2, bound, anywhere).unwrap();
        assert_ne!(next, port);
        drop(shared);
        assert_eq!(hold_any_shared(0xfff2, bound, anywhere).unwrap().0, port);
    }
}
