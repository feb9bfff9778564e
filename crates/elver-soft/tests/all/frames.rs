//! Devices as stations of an Ethernet link that a socket carries.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{End, complete, scratch};
use elver_soft::{FrameLink, FrameSocket, Idle, SoftConfig, SoftDevice, SoftError, SoftThread};
use elver_verbs::*;

/// Bytes in front of a UD payload.
const GRH: u64 = 40;
/// What QPs have that were given none.
const QKEY: u32 = 0;

fn addresses(v6: bool) -> [&'static str; 2] {
    if v6 { ["fd00:e1::1/64", "fd00:e1::2/64"] } else { ["10.9.2.1/24", "10.9.2.2/24"] }
}

fn config(socket: FrameSocket, address: &str, mtu: Mtu) -> SoftConfig {
    let link = FrameLink::new(socket, vec![address.parse().unwrap()]);
    let mut config = SoftConfig::for_frames(link);
    config.rnic.active_mtu = mtu;
    config.publish = false;
    config
}

/// Two ends on a link, connected; the first records to `capture`.
fn pair(
    sockets: (FrameSocket, FrameSocket),
    v6: bool,
    qp_type: QpType,
    mtu: Mtu,
    capture: Option<&Path>,
) -> (End, End) {
    let [a, b] = addresses(v6);
    let mut first = config(sockets.0, a, mtu);
    first.capture = capture.map(Path::to_path_buf);
    let mut a = End::open(first, qp_type);
    let mut b = End::open(config(sockets.1, b, mtu), qp_type);
    let [a_num, b_num] = [&a, &b].map(|end| end.device.qp_num(end.qp).unwrap());
    let [a_ip, b_ip] = [&a, &b].map(|end| end.device.address());
    a.connect(b_ip, b_num);
    b.connect(a_ip, a_num);
    (a, b)
}

fn all_succeed(wcs: &[Wc], end: &End) {
    let counters = end.device.frame_counters();
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success), "{wcs:?} {counters:?}");
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) >> 3) as u8).collect()
}

fn receive(end: &mut End, at: u64, len: u32) {
    let sge = [end.sge(at, len)];
    end.device.post_recv(end.qp, &[RecvWr { wr_id: 2, sges: &sge }]).unwrap();
}

/// Nothing was dropped, except what a case allows for.
fn nothing_was_dropped(end: &End) {
    let frames = end.device.frame_counters().unwrap();
    let dropped: Vec<_> =
        frames.iter().filter(|(name, n)| name.contains("drop") && *n > 0).collect();
    assert_eq!(dropped, [], "{frames:?}");
    let dropped: Vec<_> =
        end.device.counters().iter().filter(|(name, n)| name.contains("drop") && *n > 0).collect();
    assert_eq!(dropped, []);
}

/// READ, WRITE and SEND of `len` bytes, checked byte by byte.
fn exchange(a: &mut End, b: &mut End, len: u32) {
    let data = pattern(len);
    a.memory.write(0, &data).unwrap();
    b.memory.write(0, &vec![0; len as usize + 100]).unwrap();
    let sge = [a.sge(0, len)];
    let to = b.remote(100);
    a.post(SendOp::Write(to), &sge);
    let wcs = complete(a, b, 1);
    all_succeed(&wcs, a);
    let mut arrived = vec![0; len as usize];
    b.memory.read(100, &mut arrived).unwrap();
    assert!(arrived == data, "what was written is there");

    a.memory.write(0, &vec![0; len as usize]).unwrap();
    a.post(SendOp::Read(to), &sge);
    let wcs = complete(a, b, 1);
    all_succeed(&wcs, a);
    a.memory.read(0, &mut arrived).unwrap();
    assert!(arrived == data, "what was read is there");

    receive(b, 2_000_000, len);
    a.post(SendOp::Send, &sge);
    let wcs = complete(a, b, 1);
    all_succeed(&wcs, a);
    let wcs = complete(b, a, 1);
    all_succeed(&wcs, b);
    b.memory.read(2_000_000, &mut arrived).unwrap();
    assert!(arrived == data, "what was sent is there");
}

#[test]
fn rc_over_every_path_mtu() {
    for v6 in [false, true] {
        for mtu in [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096] {
            let sockets = FrameSocket::pair().unwrap();
            let (mut a, mut b) = pair(sockets, v6, QpType::Rc, mtu, None);
            assert_eq!(a.device.query_port().active_mtu, mtu);
            for len in [1, mtu.bytes(), mtu.bytes() + 1, 100_003] {
                exchange(&mut a, &mut b, len);
            }
            nothing_was_dropped(&a);
            nothing_was_dropped(&b);
        }
    }
}

#[test]
fn ud_over_every_path_mtu() {
    for v6 in [false, true] {
        for mtu in [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096] {
            let sockets = FrameSocket::pair().unwrap();
            let (mut a, mut b) = pair(sockets, v6, QpType::Ud, mtu, None);
            let dgid = b.device.query_gid(0).unwrap();
            let av = AddressVector { dgid, ..AddressVector::default() };
            let ah = a.device.create_ah(a.pd, av).unwrap();
            let remote_qpn = b.device.qp_num(b.qp).unwrap();
            let dest = Some(Dest::Ud { ah, remote_qpn, remote_qkey: QKEY });
            for len in [1, 77, mtu.bytes()] {
                let data = pattern(len);
                a.memory.write(0, &data).unwrap();
                receive(&mut b, 0, len + GRH as u32);
                let sges = [a.sge(0, len)];
                let payload = Payload::Sges(&sges);
                let flags = SendFlags::SIGNALED;
                let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest };
                a.device.post_send(a.qp, &[wr]).unwrap();
                let wcs = complete(&mut b, &mut a, 1);
                all_succeed(&wcs, &b);
                let mut arrived = vec![0; len as usize];
                b.memory.read(GRH, &mut arrived).unwrap();
                assert!(arrived == data, "what was sent is there");
            }
            nothing_was_dropped(&b);
        }
    }
}

#[test]
fn frames_in_udp_datagrams() {
    // Nobody else has this address, and the system gives these ports to nobody.
    let [a, b] = [21_000, 21_001].map(|port| SocketAddr::from(([127, 0, 77, 1], port)));
    let sockets = (FrameSocket::udp(a, b).unwrap(), FrameSocket::udp(b, a).unwrap());
    let (mut a, mut b) = pair(sockets, false, QpType::Rc, Mtu::Mtu4096, None);
    exchange(&mut a, &mut b, 100_003);
}

#[test]
fn a_link_with_room_for_few_frames_only_costs_time() {
    let sockets = FrameSocket::pair().unwrap();
    let [a, b] = addresses(false);
    let open = |socket, address| {
        let mut config = config(socket, address, Mtu::Mtu1024);
        (config.rcvbuf, config.sndbuf) = (0, 0);
        End::open(config, QpType::Rc)
    };
    let (mut a, mut b) = (open(sockets.0, a), open(sockets.1, b));
    let [a_num, b_num] = [&a, &b].map(|end| end.device.qp_num(end.qp).unwrap());
    a.connect(b.device.address(), b_num);
    b.connect(a.device.address(), a_num);
    exchange(&mut a, &mut b, 1_000_003);
    nothing_was_dropped(&a);
}

#[test]
fn a_thread_sleeps_until_a_frame_comes() {
    let sockets = FrameSocket::pair().unwrap();
    let (mut a, b) = pair(sockets, false, QpType::Rc, Mtu::Mtu4096, None);
    let to = b.remote(8);
    let End { device, memory, .. } = b;
    let thread = SoftThread::spawn(device, Idle::Sleep { spins: 10 }).unwrap();
    a.memory.write_u64(0, 77).unwrap();
    let sge = [a.sge(0, 8)];
    a.post(SendOp::Write(to), &sge);
    let end = Instant::now() + Duration::from_secs(60);
    let mut wc = [Wc::default()];
    while a.device.poll_cq(a.cq, &mut wc).unwrap() == 0 {
        assert!(Instant::now() < end, "{:?}", a.device.frame_counters());
        a.device.wait(Duration::from_millis(100)).unwrap();
    }
    all_succeed(&wc, &a);
    assert_eq!(memory.read_u64(8).unwrap(), 77);
    drop(a);
    // What is no longer there wakes nobody; the device lives on.
    let closed = |device: &mut SoftDevice| device.frame_counters().unwrap().frame_link_closed;
    while thread.call(closed).unwrap() == 0 {
        assert!(Instant::now() < end, "the end of the link was not noticed");
    }
    thread.stop().unwrap();
}

#[test]
fn what_cannot_be_a_link_is_told() {
    let (socket, _peer) = FrameSocket::pair().unwrap();
    let link = FrameLink::new(socket, vec!["10.9.2.1/24".parse().unwrap()]);
    let small = SoftConfig::for_frames(FrameLink { mtu: 300, ..link.clone() });
    let error = SoftDevice::open(small).err().unwrap();
    assert!(matches!(error, SoftError::Mtu { mtu: 300, .. }), "{error}");
    let nobody = SoftConfig::for_frames(FrameLink { addresses: Vec::new(), ..link });
    let error = SoftDevice::open(nobody).err().unwrap();
    assert!(error.to_string().contains("no address"), "{error}");
}

#[test]
fn the_path_mtu_is_what_the_link_carries() {
    for (v6, needed) in [(false, 4196), (true, 4216)] {
        for (mtu, active) in [(needed, Mtu::Mtu4096), (needed - 1, Mtu::Mtu2048)] {
            let (socket, _peer) = FrameSocket::pair().unwrap();
            let link = FrameLink::new(socket, vec![addresses(v6)[0].parse().unwrap()]);
            let mut config = SoftConfig::for_frames(FrameLink { mtu, ..link });
            config.publish = false;
            let device = SoftDevice::open(config).unwrap();
            assert_eq!(device.query_port().active_mtu, active);
        }
    }
}

#[test]
fn the_device_has_the_links_addresses() {
    let (socket, _peer) = FrameSocket::pair().unwrap();
    let addresses = ["10.9.2.1/24", "fd00:e1::1/64"].map(|text| text.parse().unwrap()).to_vec();
    let mut link = FrameLink::new(socket, addresses);
    link.mac = Some("02:00:00:00:00:07".parse().unwrap());
    link.mtu = 1500;
    let mut config = SoftConfig::for_frames(link);
    config.publish = false;
    let device = SoftDevice::open(config).unwrap();
    let gids = [0, 1].map(|index| device.query_gid(index).unwrap().to_ip());
    assert_eq!(gids, ["10.9.2.1", "fd00:e1::1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    assert_eq!(device.query_device().node_guid, 0x0000_00ff_fe00_0007);
    assert_eq!(device.query_port().active_mtu, Mtu::Mtu1024);
}

#[test]
fn tshark_finds_every_checksum_right() {
    for v6 in [false, true] {
        let file = scratch(if v6 { "frames6.pcapng" } else { "frames4.pcapng" });
        let sockets = FrameSocket::pair().unwrap();
        let (mut a, mut b) = pair(sockets, v6, QpType::Rc, Mtu::Mtu1024, Some(&file));
        exchange(&mut a, &mut b, 10_007);
        drop(a);
        let packets = crate::common::capture::check(&file);
        std::fs::remove_file(&file).unwrap();
        assert!(packets.roce >= 33, "{packets:?}");
        assert!(packets.neighbour >= 2, "{packets:?}");
    }
}
