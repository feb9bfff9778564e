//! A keeper, processes that it watches, and the peer that is told. That a process lets go of what it had stands for its end
//! here; crates/elver-preload/tests/rdmacm.rs kills programs.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use elver_farewell::{Farewells, Keeper, RECORDS_MAX};
use elver_wire::cm::{MAD_LEN, QKEY};
use elver_wire::{Flow, IpId, PacketView, Qpn, Route, UDP_PORT, icrc};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Addresses of this test program's own.
const OWN: &str = "127.61.0.1";
const PEER: &str = "127.61.0.2";

struct Kept {
    name: String,
    program: Child,
    keeper: JoinHandle<()>,
}

/// A keeper for as long as a program runs.
fn keeper() -> Kept {
    let program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let until = pidfd_open(Pid::from_child(&program), PidfdFlags::empty()).unwrap();
    let (name, listener) = Keeper::listen().unwrap();
    let keeper = spawn(|| Keeper::new(listener, until).unwrap().run().unwrap());
    Kept { name, program, keeper }
}

impl Kept {
    /// Ends the program; the keeper ends when it has said all.
    fn end(mut self) {
        self.program.kill().unwrap();
        self.program.wait().unwrap();
        self.keeper.join().unwrap();
    }

    fn watches(&self) -> Farewells {
        Farewells::new(&self.name, OWN.parse().unwrap()).unwrap()
    }
}

/// The peer's device, which must be told within this.
fn peer() -> UdpSocket {
    let socket = UdpSocket::bind((PEER, UDP_PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    socket
}

/// The next message, as it stands in its packet.
fn told(peer: &UdpSocket) -> [u8; MAD_LEN] {
    let mut bytes = [0; 512];
    let (len, from) = peer.recv_from(&mut bytes).unwrap();
    assert_eq!(from.ip(), OWN.parse::<IpAddr>().unwrap());
    let flow = Flow { src: from, dst: SocketAddr::new(PEER.parse().unwrap(), UDP_PORT) };
    assert_eq!(icrc::verify(&flow, IpId::Exact(0), &bytes[..len]), Ok(0));
    let packet = PacketView::parse(&bytes[..len]).unwrap();
    let Route::Ud(deth) = packet.headers().route() else { panic!("{:?}", packet.headers()) };
    assert_eq!((deth.qkey, deth.src_qpn), (QKEY, Qpn::from_wrapping(1)));
    assert_eq!(packet.headers().dest_qpn, Qpn::from_wrapping(1));
    packet.payload().try_into().unwrap()
}

#[test]
fn peers_are_told_of_what_was_not_said() {
    let (kept, peer) = (keeper(), peer());
    let mut process = kept.watches();
    let at = PEER.parse().unwrap();
    process.keep(1, at, &[1; MAD_LEN]);
    process.keep(2, at, &[2; MAD_LEN]);
    process.keep(3, at, &[3; MAD_LEN]);
    process.forget(2);
    // In place of what was to be said before; and in a record that was another's.
    process.keep(3, at, &[4; MAD_LEN]);
    process.keep(5, at, &[5; MAD_LEN]);
    drop(process);
    // Each three times, since a packet may be lost.
    let mut all: Vec<u8> = (0..9).map(|_| told(&peer)).map(|mad| mad[0]).collect();
    all.sort_unstable();
    assert_eq!(all, [1, 1, 1, 4, 4, 4, 5, 5, 5]);
    kept.end();
    peer.set_nonblocking(true).unwrap();
    assert!(peer.recv_from(&mut [0; 512]).is_err(), "nothing more is said");

    nonsense_harms_nobody(&peer);
    there_is_room_for_so_many(&peer);
}

/// What no process of ours sends ends nothing but itself.
fn nonsense_harms_nobody(peer: &UdpSocket) {
    peer.set_nonblocking(false).unwrap();
    let kept = keeper();
    let name = std::os::unix::net::SocketAddr::from_abstract_name(&kept.name).unwrap();
    // Another kind of socket is not let in by the kernel.
    assert!(UnixStream::connect_addr(&name).is_err());
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    for words in [&b"\x04"[..], b"\x04\x7f\0\0\x01", &[6; 17], &[0; 17], &[9; 400]] {
        let flags = SocketFlags::CLOEXEC;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        let at = SocketAddrUnix::new_abstract_name(kept.name.as_bytes()).unwrap();
        rustix::net::connect(&socket, &at).unwrap();
        let mut socket = std::fs::File::from(socket);
        socket.write_all(words).unwrap();
        // It is sent away: there is nothing to come.
        assert_eq!(socket.read(&mut [0; 8]).unwrap_or(0), 0);
    }
    let mut process = kept.watches();
    process.keep(1, PEER.parse().unwrap(), &[7; MAD_LEN]);
    drop(process);
    assert_eq!([told(peer), told(peer), told(peer)], [[7; MAD_LEN]; 3]);
    kept.end();
}

/// A process may have more connections; those are not told of, and the others are.
fn there_is_room_for_so_many(peer: &UdpSocket) {
    let kept = keeper();
    let mut process = kept.watches();
    let nowhere = OWN.parse().unwrap();
    for connection in 0..RECORDS_MAX as u32 {
        process.keep(connection, nowhere, &[8; MAD_LEN]);
    }
    process.keep(9_999, PEER.parse().unwrap(), &[9; MAD_LEN]);
    process.forget(17);
    process.keep(10_000, PEER.parse().unwrap(), &[10; MAD_LEN]);
    drop(process);
    assert_eq!([told(peer), told(peer), told(peer)], [[10; MAD_LEN]; 3]);
    kept.end();
}
