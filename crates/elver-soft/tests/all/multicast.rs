//! Datagrams to multicast groups: between devices of one host, and between stations of a frame link.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::common::End;
use elver_soft::{FrameLink, FrameSocket, SoftConfig};
use elver_verbs::*;

const GRH: u64 = 40;
const TO_ALL: u32 = 0xff_ffff;
/// Bytes of a slot of the memory, one for each receive.
const SLOT: u64 = 256;

fn gid(text: &str) -> Gid {
    Gid::from(text.parse::<IpAddr>().unwrap())
}

/// An end whose QP is in the group, with a few receives.
fn member(config: SoftConfig, group: Gid) -> End {
    let mut end = End::open(config, QpType::Ud);
    end.connect(end.device.address(), 0);
    end.device.attach_multicast(end.qp, group).unwrap();
    receives(&mut end, 16);
    end
}

fn receives(end: &mut End, count: u64) {
    for slot in 0..count {
        let sges = [end.sge(slot * SLOT, SLOT as u32)];
        end.device.post_recv(end.qp, &[RecvWr { wr_id: slot, sges: &sges }]).unwrap();
    }
}

/// Sends `count` datagrams, each with another byte.
fn send(end: &mut End, group: Gid, count: u8) {
    let av = AddressVector { dgid: group, ..AddressVector::default() };
    let ah = end.device.create_multicast_ah(end.pd, av).unwrap();
    let dest = Some(Dest::Ud { ah, remote_qpn: TO_ALL, remote_qkey: 0 });
    for byte in 0..count {
        let bytes = [byte; 100];
        let (op, payload) = (SendOp::Send, Payload::Inline(&bytes[..60]));
        let wr = SendWr { wr_id: 99, op, flags: SendFlags::SIGNALED, payload, dest };
        end.device.post_send(end.qp, &[wr]).unwrap();
    }
}

/// The bytes of the datagrams that arrive at an end, until there are so many; all ends are driven.
fn arrivals(ends: &mut [&mut End], at: usize, count: usize) -> Vec<u8> {
    let until = Instant::now() + Duration::from_secs(60);
    let (mut wcs, mut all) = ([Wc::default(); 16], Vec::new());
    while all.len() < count {
        assert!(Instant::now() < until, "{} of {count} arrived", all.len());
        for end in &mut *ends {
            end.device.progress();
        }
        let end = &mut ends[at];
        let found = end.device.poll_cq(end.cq, &mut wcs).unwrap();
        for wc in wcs[..found].iter().filter(|wc| wc.opcode == WcOpcode::Recv) {
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, GRH as u32 + 60));
            let mut byte = [0];
            end.memory.read(wc.wr_id * SLOT + GRH, &mut byte).unwrap();
            all.push(byte[0]);
        }
    }
    all
}

/// Whether nothing more is to be had at an end.
fn is_quiet(ends: &mut [&mut End], at: usize) -> bool {
    let mut wcs = [Wc::default(); 16];
    (0..50).all(|_| {
        for end in &mut *ends {
            end.device.progress();
        }
        let end = &mut ends[at];
        let found = end.device.poll_cq(end.cq, &mut wcs).unwrap();
        wcs[..found].iter().all(|wc| wc.opcode != WcOpcode::Recv)
    })
}

fn loopback(host: u8) -> SoftConfig {
    SoftConfig::for_address(IpAddr::from([127, 3, 21, host]))
}

#[test]
fn devices_of_one_host_hear_one_another() {
    let group = gid("230.21.0.1");
    let mut ends = [1, 2, 3].map(|host| member(loopback(host), group));
    // Another device of the host is in another group.
    let mut other = member(loopback(4), gid("230.21.0.2"));
    let [a, b, c] = &mut ends;
    send(a, group, 10);
    let every: Vec<u8> = (0..10).collect();
    assert_eq!(arrivals(&mut [a, b, c, &mut other], 1, 10), every);
    assert_eq!(arrivals(&mut [a, b, c, &mut other], 2, 10), every);
    assert!(is_quiet(&mut [a, b, c, &mut other], 0), "the QP that sent heard itself");
    assert!(is_quiet(&mut [a, b, c, &mut other], 3), "another group's came");
    assert_eq!(b.device.counters().drop_icrc, 0);

    // Who was detached hears no more; the others still do.
    b.device.detach_multicast(b.qp, group).unwrap();
    receives(c, 4);
    send(a, group, 4);
    assert_eq!(arrivals(&mut [a, b, c], 2, 4), [0, 1, 2, 3]);
    assert!(is_quiet(&mut [a, b, c], 1));
}

#[test]
fn a_second_qp_of_the_sender_hears_it_and_who_sleeps_is_woken() {
    let group = gid("230.21.0.3");
    let mut end = member(loopback(5), group);
    let init = QpInit::new(QpType::Ud, end.pd, end.cq);
    let second = end.device.create_qp(init).unwrap();
    let first = std::mem::replace(&mut end.qp, second);
    end.connect(end.device.address(), 0);
    assert!(end.device.groups_fd().is_some());
    send(&mut end, group, 1);
    let slept = Instant::now();
    end.device.wait(Duration::from_secs(120)).unwrap();
    assert!(slept.elapsed() < Duration::from_secs(60), "nothing woke it");
    assert_eq!(arrivals(&mut [&mut end], 0, 1), [0]);
    end.qp = first;
}

/// What is no datagram, or one with another key or from another port, does nothing at a group's socket.
#[test]
fn strangers_at_a_group_do_nothing() {
    let group = gid("230.21.0.4");
    let mut ends = [6, 7].map(|host| member(loopback(host), group));
    let stranger = std::net::UdpSocket::bind("127.3.21.8:0").unwrap();
    let port = ends[0].device.config().udp_port;
    for len in [0, 1, 15, 16, 24, 60, 4_000, 9_000] {
        for fill in [0, 0x64, 0xff] {
            let mut bytes = vec![fill; len];
            if let Some(first) = bytes.first_mut() {
                *first = 0x64;
            }
            stranger.send_to(&bytes, ("230.21.0.4", port)).unwrap();
        }
    }
    let [a, b] = &mut ends;
    assert!(is_quiet(&mut [a, b], 1));
    send(a, group, 1);
    assert_eq!(arrivals(&mut [a, b], 1, 1), [0]);
    assert!(b.device.counters().drop_oversized + b.device.counters().drop_icrc > 0);
}

#[test]
fn groups_are_bounded() {
    let mut config = loopback(9);
    config.rnic.max_mcast_grp = 2;
    let mut end = member(config, gid("230.21.0.5"));
    end.device.attach_multicast(end.qp, gid("230.21.0.6")).unwrap();
    let refused = end.device.attach_multicast(end.qp, gid("230.21.0.7")).unwrap_err();
    assert!(refused.to_string().contains("max_mcast_grp"), "{refused}");
    end.device.detach_multicast(end.qp, gid("230.21.0.6")).unwrap();
    end.device.attach_multicast(end.qp, gid("230.21.0.7")).unwrap();
}

#[test]
fn stations_of_a_frame_link_hear_one_another() {
    for (group, addresses) in [
        (gid("230.21.0.1"), ["10.9.3.1/24", "10.9.3.2/24"]),
        (gid("ff05::21"), ["fd00:e3::1/64", "fd00:e3::2/64"]),
    ] {
        let (first, second) = FrameSocket::pair().unwrap();
        let open = |socket, address: &str| {
            let link = FrameLink::new(socket, vec![address.parse().unwrap()]);
            let mut config = SoftConfig::for_frames(link);
            config.publish = false;
            member(config, group)
        };
        let (mut a, mut b) = (open(first, addresses[0]), open(second, addresses[1]));
        // A second QP of the sender's hears it, and the first, which sends, does not.
        let second = a.device.create_qp(QpInit::new(QpType::Ud, a.pd, a.cq)).unwrap();
        let sender = std::mem::replace(&mut a.qp, second);
        a.connect(a.device.address(), 0);
        a.device.attach_multicast(second, group).unwrap();
        receives(&mut a, 16);
        a.qp = sender;
        send(&mut a, group, 5);
        assert_eq!(arrivals(&mut [&mut a, &mut b], 0, 5), [0, 1, 2, 3, 4]);
        assert_eq!(arrivals(&mut [&mut a, &mut b], 1, 5), [0, 1, 2, 3, 4]);
        // Who is in the group no more drops its frames, and says so.
        b.device.detach_multicast(b.qp, group).unwrap();
        send(&mut a, group, 1);
        assert_eq!(arrivals(&mut [&mut a, &mut b], 0, 1), [0]);
        assert!(is_quiet(&mut [&mut a, &mut b], 1));
        assert_eq!(b.device.frame_counters().unwrap().frame_drop_not_ours, 1);
    }
}
