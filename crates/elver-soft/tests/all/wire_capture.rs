//! What really leaves: two devices in two network namespaces, and a packet socket on the sender's
//! interface. Every captured packet must have DF set and an ICRC that fits the IPv4 identification
//! that the kernel wrote, whoever cuts the trains: nobody, the kernel in software, or the interface.
//!
//! Needs root, `ip` and `ethtool`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{End, await_address};
use elver_soft::SoftConfig;
use elver_verbs::*;
use elver_wire::{Flow, IpId, PacketView, icrc};
use rustix::thread::UnshareFlags;

const PORT: u16 = 4791;
const ETHERNET: usize = 14;
/// Bytes of the header that a packet socket puts in front of each frame on request.
const VNET: usize = 10;
const WAIT: Duration = Duration::from_secs(60);

/// One way to send and receive.
#[derive(Clone, Copy, Debug)]
struct Case {
    v6: bool,
    /// The device hands trains over in one piece.
    gso: bool,
    /// The interface takes them in one piece.
    interface: bool,
    gro: bool,
}

#[test]
fn every_packet_that_leaves_has_its_icrc() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes network namespaces: run it as root"
    );
    for v6 in [false, true] {
        for (gso, interface, gro) in
            [(true, true, true), (true, false, true), (true, false, false), (false, true, false)]
        {
            run(Case { v6, gso, interface, gro });
        }
    }
}

fn addresses(v6: bool) -> [IpAddr; 2] {
    let text = if v6 { ["fd00:e1::1", "fd00:e1::2"] } else { ["10.9.1.1", "10.9.1.2"] };
    text.map(|address| address.parse().unwrap())
}

fn run(case: Case) {
    let [a_ip, b_ip] = addresses(case.v6);
    let (thread_tx, thread_rx) = sync_channel(1);
    let (placed_tx, placed_rx) = sync_channel(1);
    let (a_num_tx, a_num_rx) = sync_channel(1);
    let (b_tx, b_rx) = sync_channel(1);
    let done = &AtomicBool::new(false);
    let captured = thread::scope(|scope| {
        scope.spawn(move || {
            enter();
            thread_tx.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            receive(&placed_rx);
            set_up("elver1", b_ip, case.v6);
            let mut b = open(b_ip, case);
            let num = b.device.qp_num(b.qp).unwrap();
            b_tx.send((num, b.remote(0))).unwrap();
            b.connect(a_ip, receive(&a_num_rx));
            while !done.load(Ordering::Relaxed) {
                b.device.progress();
            }
            assert_eq!(b.device.counters().damaged(), 0, "{case:?}");
        });
        let sender = scope.spawn(move || {
            let _ends = Ends(done);
            enter();
            let peer: i32 = receive(&thread_rx);
            make_veth(peer, case, &placed_tx);
            set_up("elver0", a_ip, case.v6);
            let capture = packet_socket();
            let mut a = open(a_ip, case);
            let (b_num, remote) = receive(&b_rx);
            a_num_tx.send(a.device.qp_num(a.qp).unwrap()).unwrap();
            a.connect(b_ip, b_num);
            transfer(&mut a, remote);
            assert_eq!(a.device.counters().damaged(), 0, "{case:?}");
            check(&capture, a_ip, case)
        });
        sender.join().unwrap()
    });
    assert!(captured > 250, "{case:?}: only {captured} packets were captured");
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn receive<T>(from: &Receiver<T>) -> T {
    from.recv_timeout(WAIT).expect("the other thread went on")
}

fn enter() {
    // SAFETY: only this thread's namespace changes, and it holds no sockets yet.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
}

fn command(words: &str) {
    let mut split = words.split(' ');
    let output = Command::new(split.next().unwrap()).args(split).output();
    let output = output.unwrap_or_else(|error| panic!("`{words}`: {error}; is it installed?"));
    assert!(output.status.success(), "`{words}`: {}", String::from_utf8_lossy(&output.stderr));
}

fn make_veth(peer: i32, case: Case, placed: &SyncSender<()>) {
    let ends = format!("mtu 9000 type veth peer name elver1 mtu 9000 netns {peer}");
    command(&format!("ip link add elver0 {ends}"));
    if !case.interface {
        command("ethtool -K elver0 tx-udp-segmentation off");
    }
    placed.send(()).unwrap();
}

fn set_up(interface: &str, address: IpAddr, v6: bool) {
    let (prefix, option) = if v6 { (64, " nodad") } else { (24, "") };
    command("ip link set lo up");
    command(&format!("ip link set {interface} up"));
    command(&format!("ip address add {address}/{prefix} dev {interface}{option}"));
}

fn open(address: IpAddr, case: Case) -> End {
    let mut config = SoftConfig::for_address(address);
    config.gso = case.gso;
    config.gro = case.gro;
    config.publish = false;
    await_address(address);
    End::open(config, QpType::Rc)
}

/// A megabyte in full packets, then messages of odd sizes.
fn transfer(a: &mut End, remote: RemoteAddr) {
    let sizes = [1 << 20, 1, 2, 3, 4095, 4097, 70_001];
    for size in sizes {
        let sge = [a.sge(0, size)];
        a.post(SendOp::Write(remote), &sge);
    }
    let end = Instant::now() + WAIT;
    let mut wcs = [Wc::default(); 8];
    let mut completed = 0;
    while completed < sizes.len() {
        assert!(Instant::now() < end, "{completed} of {} completed", sizes.len());
        let found = a.device.poll_cq(a.cq, &mut wcs).unwrap();
        for wc in &wcs[..found] {
            assert_eq!(wc.status, WcStatus::Success, "{:?}", a.device.counters());
        }
        completed += found;
    }
}

/// A socket that sees every frame of the namespace, with what the interface is asked to cut.
fn packet_socket() -> OwnedFd {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: no pointers are involved.
    let raw = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            i32::from(protocol),
        )
    };
    assert!(raw >= 0, "a packet socket: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    for (level, name, value) in [
        (libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1),
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20),
    ] {
        let value: libc::c_int = value;
        let at = std::ptr::from_ref(&value).cast();
        // SAFETY: `value` is an int and the length says so.
        let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, 4) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
    socket
}

/// Checks all that was captured of what `source` sent; returns how many packets that was.
fn check(capture: &OwnedFd, source: IpAddr, case: Case) -> usize {
    let mut buf = vec![0; 128 << 10];
    let mut packets = 0;
    let mut uncut = 0;
    loop {
        let at = buf.as_mut_ptr().cast();
        // SAFETY: the buffer is of the length that is named.
        let len = unsafe { libc::recv(capture.as_raw_fd(), at, buf.len(), 0) };
        if len < 0 {
            let error = std::io::Error::last_os_error();
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
            break;
        }
        let Some(datagram) = Datagram::of(&buf[..len as usize], source) else { continue };
        assert!(datagram.df, "{case:?}: a packet left without DF");
        uncut += usize::from(datagram.payload.len() > datagram.segment);
        for (index, packet) in datagram.payload.chunks(datagram.segment).enumerate() {
            // The interface counts the identification up as it cuts, as the kernel does.
            let id = datagram.id.wrapping_add(index as u16);
            PacketView::parse(packet).unwrap();
            let fits = icrc::verify(&datagram.flow, IpId::Exact(id), packet);
            assert_eq!(fits, Ok(id), "{case:?}: packet {index} of a train, ID {id}");
            packets += 1;
        }
    }
    assert_eq!(uncut > 0, case.gso && case.interface, "{case:?}: {uncut} trains were uncut");
    packets
}

struct Datagram<'a> {
    flow: Flow,
    id: u16,
    df: bool,
    /// Bytes of each packet of a train.
    segment: usize,
    payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// A RoCEv2 datagram from `source`, if the frame is one.
    fn of(frame: &'a [u8], source: IpAddr) -> Option<Datagram<'a>> {
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let ip = VNET + ETHERNET;
        if frame.len() < ip + 48 {
            return None;
        }
        let (src, dst, id, df, udp): (IpAddr, IpAddr, u16, bool, usize) = match frame[ip] >> 4 {
            4 => {
                let octets = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap();
                let df = frame[ip + 6] & 0x40 != 0;
                let (src, dst) = (octets(ip + 12), octets(ip + 16));
                (src.into(), dst.into(), word(ip + 4), df, ip + 20)
            }
            6 => {
                let octets = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap();
                (octets(ip + 8).into(), octets(ip + 24).into(), 0, true, ip + 40)
            }
            _ => return None,
        };
        let protocol = if src.is_ipv4() { frame[ip + 9] } else { frame[ip + 6] };
        if protocol != 17 || src != source || word(udp + 2) != PORT {
            return None;
        }
        let payload = &frame[udp + 8..];
        // The header in front of the frame: byte 1 is the kind of segmentation, bytes 4 and 5, in
        // the host's order, the bytes of a segment.
        let size = usize::from(u16::from_ne_bytes([frame[4], frame[5]]));
        let segment = if frame[1] == 0 || size == 0 { payload.len() } else { size };
        let flow = Flow { src: SocketAddr::new(src, word(udp)), dst: SocketAddr::new(dst, PORT) };
        Some(Datagram { flow, id, df, segment, payload })
    }
}
