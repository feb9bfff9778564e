//! The kernel as the other side of a frame link: a tap device in a network namespace of its own,
//! the frame link on the tap's descriptor, and a device over the kernel's UDP in the namespace. The
//! kernel's ARP and neighbour discovery find us, its ICMP is answered, and every packet of both
//! sides is right to the last bit.
//!
//! Needs root, `ip`, `ping`, tshark and /dev/net/tun.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{End, await_address};
use elver_soft::{FrameLink, FrameSocket, SoftConfig};
use elver_verbs::*;
use rustix::thread::UnshareFlags;

const WAIT: Duration = Duration::from_secs(60);
const NAME: &str = "elvertap0";

/// One end's part of a case.
struct Meeting {
    num: u32,
    remote: RemoteAddr,
}

#[test]
fn the_kernel_is_a_peer() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes a network namespace and a tap device: run it as root"
    );
    for v6 in [false, true] {
        for kernel_asks in [false, true] {
            run(v6, kernel_asks);
        }
    }
}

fn run(v6: bool, kernel_asks: bool) {
    let [kernel, ours, prefix] =
        if v6 { ["fd00:e1:3::1", "fd00:e1:3::2", "64"] } else { ["10.9.3.1", "10.9.3.2", "24"] };
    let file =
        std::env::temp_dir().join(format!("elver-{}-tap{prefix}.pcapng", std::process::id()));
    let (tap_tx, tap_rx) = sync_channel(1);
    let (to_kernel, from_ours) = sync_channel(1);
    let (to_ours, from_kernel) = sync_channel(1);
    let (kernel_ip, our_ip): (IpAddr, IpAddr) = (kernel.parse().unwrap(), ours.parse().unwrap());
    let kernel_done = &AtomicBool::new(false);
    let kernel_sent = &AtomicBool::new(false);
    let ours_done = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ends = Ends(kernel_done);
            enter();
            tap_tx.send(make_tap(&format!("{kernel}/{prefix}"), v6)).unwrap();
            let mut end = open_kernel(kernel_ip);
            // Whoever sends first has to ask for the other.
            if kernel_asks {
                ping(ours, v6);
            }
            to_ours.send(meeting(&end)).unwrap();
            let peer: Meeting = receive(&from_ours);
            end.connect(our_ip, peer.num);
            if !kernel_asks {
                while end.memory.read_u64(0).unwrap() != LAST {
                    assert!(!ours_done.load(Ordering::Relaxed));
                    end.device.progress();
                }
                ping(ours, v6);
            }
            transfer(&mut end, peer.remote, 1 << 20);
            kernel_sent.store(true, Ordering::Relaxed);
            serve(&mut end, ours_done);
            assert_eq!(end.device.counters().damaged(), 0);
        });
        let (ours, file) = (format!("{ours}/{prefix}"), &file);
        scope.spawn(move || {
            let _ends = Ends(ours_done);
            let tap = FrameSocket::from_fd(receive::<OwnedFd>(&tap_rx)).unwrap();
            let mut end = open_ours(tap, &ours, file);
            to_kernel.send(meeting(&end)).unwrap();
            let until = Instant::now() + WAIT;
            let peer: Meeting = loop {
                if let Ok(peer) = from_kernel.try_recv() {
                    break peer;
                }
                assert!(Instant::now() < until, "{:?}", end.device.frame_counters());
                end.device.progress();
            };
            end.connect(kernel_ip, peer.num);
            transfer(&mut end, peer.remote, 2 << 20);
            // Also when the last word is there the other end may still wait for its ACK.
            while end.memory.read_u64(0).unwrap() != LAST || !kernel_sent.load(Ordering::Relaxed) {
                assert!(Instant::now() < until && !kernel_done.load(Ordering::Relaxed));
                end.device.progress();
            }
            check(&end, kernel_asks);
        });
    });
    let packets = crate::common::capture::check(&file);
    std::fs::remove_file(&file).unwrap();
    assert!(packets.roce > 500, "{packets:?}");
    assert!(packets.neighbour >= 2, "{packets:?}");
    assert!(packets.echo >= 6, "{packets:?}");
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

fn command(words: &str) -> String {
    let mut split = words.split(' ');
    let output = Command::new(split.next().unwrap()).args(split).output();
    let output = output.unwrap_or_else(|error| panic!("`{words}`: {error}; is it installed?"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "`{words}`: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// A tap device in this thread's namespace, with an address for the kernel.
fn make_tap(address: &str, v6: bool) -> OwnedFd {
    let tap = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: all zeros is a valid ifreq.
    let mut ask: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in ask.ifr_name.iter_mut().zip(NAME.bytes()) {
        *to = from as libc::c_char;
    }
    ask.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: `ask` is an ifreq with a terminated name.
    let done = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &mut ask) };
    assert_eq!(done, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    command("ip link set lo up");
    command(&format!("ip link set {NAME} mtu 9000 up"));
    let option = if v6 { " nodad" } else { "" };
    command(&format!("ip address add {address} dev {NAME}{option}"));
    tap.into()
}

fn open_kernel(address: IpAddr) -> End {
    let mut config = SoftConfig::for_address(address);
    config.publish = false;
    await_address(address);
    End::open(config, QpType::Rc)
}

fn open_ours(tap: FrameSocket, address: &str, capture: &Path) -> End {
    let link = FrameLink::new(tap, vec![address.parse().unwrap()]);
    let mut config = SoftConfig::for_frames(link);
    config.publish = false;
    config.capture = Some(capture.to_path_buf());
    End::open(config, QpType::Rc)
}

fn meeting(end: &End) -> Meeting {
    Meeting { num: end.device.qp_num(end.qp).unwrap(), remote: end.remote(0) }
}

/// Three echo requests by the kernel, short and long.
fn ping(to: &str, v6: bool) {
    let version = if v6 { "-6" } else { "-4" };
    for size in [0, 56, 8_000] {
        let said = command(&format!("ping {version} -n -c 1 -W 10 -s {size} {to}"));
        assert!(said.contains(" 0% packet loss"), "{said}");
    }
}

/// The first word of the last WRITE: what a peer waits for.
const LAST: u64 = 0x1a57_1a57_1a57_1a57;

/// WRITEs and READs of many sizes at `at`, then the word that ends it.
fn transfer(end: &mut End, peer: RemoteAddr, at: u64) {
    for len in [1, 2, 3, 4095, 4097, 70_001, 500_000] {
        let data: Vec<u8> = (0..len).map(|i: u32| ((i * 7 + len) >> 2) as u8).collect();
        end.memory.write(at, &data).unwrap();
        let sge = [end.sge(at, len)];
        let remote = RemoteAddr { addr: peer.addr + at, ..peer };
        end.post(SendOp::Write(remote), &sge);
        complete(end);
        end.memory.write(at, &vec![0; len as usize]).unwrap();
        end.post(SendOp::Read(remote), &sge);
        complete(end);
        let mut back = vec![0; len as usize];
        end.memory.read(at, &mut back).unwrap();
        assert!(back == data, "{len} bytes came back");
    }
    end.memory.write_u64(at, LAST).unwrap();
    let sge = [end.sge(at, 8)];
    end.post(SendOp::Write(peer), &sge);
    complete(end);
}

/// Drives the end until its only WR has completed.
fn complete(end: &mut End) {
    let until = Instant::now() + WAIT;
    let mut wcs = [Wc::default()];
    while end.device.poll_cq(end.cq, &mut wcs).unwrap() == 0 {
        assert!(Instant::now() < until, "{:?}", end.device.frame_counters());
    }
    assert_eq!(wcs[0].status, WcStatus::Success, "{:?}", end.device.counters());
}

fn serve(end: &mut End, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        end.device.progress();
    }
}

/// What the frame link saw of the kernel: whoever sent first had to ask, and nothing of RoCEv2 was
/// wrong. What else a kernel tells a new link is dropped as of no concern here.
fn check(end: &End, kernel_asks: bool) {
    let frames = end.device.frame_counters().unwrap();
    assert_eq!(frames.frame_echo_answered, 3);
    let asked = [frames.frame_neighbour_answered, frames.frame_neighbour_asked];
    assert!(asked[usize::from(!kernel_asks)] >= 1, "{frames:?}");
    let concern = ["frame_drop_protocol", "frame_drop_not_ours"];
    for (name, count) in frames.iter().filter(|(name, _)| name.contains("drop")) {
        assert!(count == 0 || concern.contains(&name), "{frames:?}");
    }
    assert_eq!(end.device.counters().damaged(), 0);
}
