//! The station as a whole: what it answers, what it learns, and that nothing upsets it.

use std::net::{IpAddr, Ipv6Addr};

use elver_rnic::{MAX_PACKET, Time, Transmit};
use elver_wire::{BTH_LEN, Flow, ICRC_LEN, IpId, icrc};
use proptest::prelude::*;
use smoltcp::wire::{IpProtocol, Ipv4Packet, UdpPacket};

use super::arp::Arp;
use super::host::{FRAME_BUFFER, Host};
use super::ip::{HEADROOM, headers_len, parse_v4, parse_v6};
use super::{FrameLink, FrameSocket, Mac, arp, ethernet, icmp};

const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const NOW: Time = Time(1);
const SECOND: u64 = 1_000_000_000;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn link() -> FrameLink {
    let (socket, _) = FrameSocket::pair().unwrap();
    let addresses = ["10.9.0.2/24", "fd00::2/64"].map(|text| text.parse().unwrap()).to_vec();
    FrameLink { gateways: vec![ip("10.9.0.1")], ..FrameLink::new(socket, addresses) }
}

fn host() -> Host {
    Host::new(&link(), 4791)
}

fn ours() -> Mac {
    link().station()
}

/// A RoCEv2 packet of the RNIC's at its place in a buffer.
fn packet(src: &str, dst: &str) -> (Transmit, Vec<u8>) {
    let len = BTH_LEN + 20 + ICRC_LEN;
    let mut buffer = vec![0xee; FRAME_BUFFER];
    buffer[HEADROOM..HEADROOM + len].fill(0x11);
    let flow = Flow { src: (ip(src), 4791).into(), dst: (ip(dst), 4791).into() };
    (Transmit { len, flow, traffic_class: 2, hop_limit: 64, ends_piece: false }, buffer)
}

/// Sends a packet; returns its frame if it can leave.
fn send(host: &mut Host, now: Time, src: &str, dst: &str) -> Option<Vec<u8>> {
    let (transmit, mut buffer) = packet(src, dst);
    host.enclose(now, &transmit, &mut buffer).map(|range| buffer[range].to_vec())
}

fn sent(host: &mut Host) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(frame) = host.outbox.front() {
        frames.push(frame.to_vec());
        host.outbox.pop();
    }
    frames
}

fn arp_from(sender: [u8; 4], target: [u8; 4], request: bool) -> Vec<u8> {
    let to = if request { Mac::BROADCAST } else { ours() };
    let arp = Arp {
        request,
        sender: sender.into(),
        sender_mac: OTHER,
        target: target.into(),
        target_mac: if request { Mac::default() } else { ours() },
    };
    arp.frame(to)
}

#[test]
fn whoever_asks_for_us_is_answered_and_known() {
    let mut host = host();
    assert!(host.handle_frame(NOW, &arp_from([10, 9, 0, 7], [10, 9, 0, 2], true)).is_none());
    let frames = sent(&mut host);
    assert_eq!(frames.len(), 1);
    let answer = Arp::parse(&frames[0][ethernet::HEADER_LEN..]).unwrap();
    assert!(!answer.request);
    assert_eq!((answer.sender, answer.sender_mac), ([10, 9, 0, 2].into(), ours()));
    assert_eq!((answer.target, answer.target_mac), ([10, 9, 0, 7].into(), OTHER));
    let frame = send(&mut host, NOW, "10.9.0.2", "10.9.0.7").expect("it is known now");
    assert_eq!(frame[..6], OTHER.0);
    assert_eq!(host.counters.frame_neighbour_asked, 0);

    let solicit = icmp::solicit(v6("fd00::7"), OTHER, v6("fd00::2"));
    assert!(host.handle_frame(NOW, &solicit).is_none());
    let frames = sent(&mut host);
    let read = icmp::parse_v6(&parse_v6(&frames[0][ethernet::HEADER_LEN..]).unwrap());
    let meant = icmp::Icmp::Advert {
        target: v6("fd00::2"),
        mac: Some(ours()),
        solicited: true,
        overrides: true,
    };
    assert_eq!(read, Ok(meant));
    assert!(send(&mut host, NOW, "fd00::2", "fd00::7").is_some());
    assert_eq!(host.counters.frame_neighbour_answered, 2);
}

#[test]
fn nobody_else_is_answered_for() {
    let mut host = host();
    host.handle_frame(NOW, &arp_from([10, 9, 0, 7], [10, 9, 0, 3], true));
    host.handle_frame(NOW, &icmp::solicit(v6("fd00::7"), OTHER, v6("fd00::3")));
    assert!(sent(&mut host).is_empty());
    assert!(send(&mut host, NOW, "10.9.0.2", "10.9.0.7").is_none(), "nor learnt from");
}

#[test]
fn packets_wait_for_their_neighbour_and_keep_their_order() {
    for v6_link in [false, true] {
        let mut host = host();
        let (own, peer) = if v6_link { ("fd00::2", "fd00::7") } else { ("10.9.0.2", "10.9.0.7") };
        assert!(send(&mut host, NOW, own, peer).is_none());
        assert!(send(&mut host, NOW, own, peer).is_none());
        let asked = sent(&mut host);
        assert_eq!(asked.len(), 1, "one request for both");
        let answer = if v6_link {
            icmp::advertise((ours(), OTHER), v6("fd00::7"), v6("fd00::2"), true)
        } else {
            assert_eq!(asked[0][..6], Mac::BROADCAST.0);
            arp_from([10, 9, 0, 7], [10, 9, 0, 2], false)
        };
        host.handle_frame(NOW, &answer);
        let frames = sent(&mut host);
        assert_eq!(frames.len(), 2);
        for frame in frames {
            assert_eq!(frame[..6], OTHER.0);
            assert_eq!(frame[6..12], ours().0);
        }
        assert!(send(&mut host, NOW, own, peer).is_some());
    }
}

#[test]
fn a_neighbour_that_is_silent_is_asked_three_times_and_given_up() {
    let mut host = host();
    assert!(send(&mut host, Time(0), "10.9.0.2", "10.9.0.7").is_none());
    for second in 1..10 {
        host.handle_timeout(Time(second * SECOND));
    }
    assert_eq!(host.counters.frame_neighbour_asked, 3);
    assert_eq!(host.counters.frame_neighbour_failed, 1);
    assert_eq!(host.counters.frame_drop_unresolved, 1);
    assert_eq!(host.poll_timeout(), None);
}

#[test]
fn other_networks_are_behind_the_gateway_or_nowhere() {
    let mut host = host();
    host.handle_frame(NOW, &arp_from([10, 9, 0, 1], [10, 9, 0, 2], true));
    sent(&mut host);
    let frame = send(&mut host, NOW, "10.9.0.2", "192.0.2.1").expect("by the gateway");
    assert_eq!(frame[..6], OTHER.0);
    assert!(send(&mut host, NOW, "fd00::2", "2001:db8::1").is_none());
    assert!(send(&mut host, NOW, "10.9.0.2", "10.9.0.2").is_none());
    assert_eq!(host.counters.frame_drop_no_route, 1 + 1);
    // Other stations of the link cannot pose as hosts beyond it.
    host.handle_frame(NOW, &arp_from([192, 0, 2, 1], [10, 9, 0, 2], true));
    assert_eq!(send(&mut host, NOW, "10.9.0.2", "192.0.2.1").unwrap()[..6], OTHER.0);
}

#[test]
fn what_leaves_is_what_a_peer_takes() {
    for (own, peer) in [("10.9.0.2", "10.9.0.7"), ("fd00::2", "fd00::7")] {
        let mut host = host();
        let frame = {
            assert!(send(&mut host, NOW, own, peer).is_none());
            let mac = OTHER;
            if ip(own).is_ipv4() {
                host.handle_frame(NOW, &arp_from([10, 9, 0, 7], [10, 9, 0, 2], false));
            } else {
                let frame = icmp::advertise((ours(), mac), v6(peer), v6(own), true);
                host.handle_frame(NOW, &frame);
            }
            sent(&mut host).pop().unwrap()
        };
        let mut there = link();
        there.addresses = vec![format!("{peer}/24").parse().unwrap()];
        there.gateways.clear();
        there.mac = Some(OTHER);
        let mut there = Host::new(&there, 4791);
        let (meta, payload) = there.handle_frame(NOW, &frame).unwrap_or_else(|| {
            panic!("{:?}", there.counters);
        });
        assert_eq!(meta.ip_id, IpId::Exact(0));
        assert_eq!((meta.traffic_class, meta.hop_limit), (2, 64));
        assert_eq!(meta.flow.src.ip(), ip(own));
        assert_eq!(icrc::verify(&meta.flow, meta.ip_id, payload), Ok(0));
        assert_eq!(payload.len(), BTH_LEN + 20 + ICRC_LEN);
    }
}

/// A frame to us with a RoCEv2 packet in it.
fn roce() -> Vec<u8> {
    let (transmit, mut buffer) = packet("10.9.0.7", "10.9.0.2");
    let start = HEADROOM - headers_len(true);
    let end = HEADROOM + transmit.len;
    let frame = &mut buffer[start..end];
    super::ip::write_headers(frame, (ours(), OTHER), &transmit.flow, 2, 64);
    frame.to_vec()
}

#[test]
fn every_drop_has_its_counter() {
    let fix = |frame: &mut Vec<u8>| {
        Ipv4Packet::new_unchecked(&mut frame[14..34]).fill_checksum();
    };
    let count = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut host = host();
        let mut frame = roce();
        change(&mut frame);
        assert!(host.handle_frame(NOW, &frame).is_none());
        let dropped: Vec<_> =
            host.counters.iter().filter(|(name, n)| name.contains("drop") && *n > 0).collect();
        assert_eq!(dropped.len(), 1, "{dropped:?}");
        dropped[0].0
    };
    assert_eq!(count(&|frame| frame.truncate(13)), "frame_drop_truncated");
    assert_eq!(count(&|frame| frame.resize(9_015, 0)), "frame_drop_oversized");
    assert_eq!(count(&|frame| frame[0] = 4), "frame_drop_not_ours");
    assert_eq!(count(&|frame| frame[..6].fill(0xff)), "frame_drop_not_ours");
    assert_eq!(count(&|frame| frame[6] = 3), "frame_drop_source");
    assert_eq!(count(&|frame| frame[6..12].copy_from_slice(&ours().0)), "frame_drop_source");
    assert_eq!(count(&|frame| frame[12] = 0x81), "frame_drop_protocol");
    assert_eq!(count(&|frame| frame[23] ^= 0x40), "frame_drop_checksum");
    let protocol = |frame: &mut Vec<u8>| {
        frame[23] = IpProtocol::Tcp.into();
        fix(frame);
    };
    assert_eq!(count(&protocol), "frame_drop_protocol");
    assert_eq!(count(&|frame| frame[14] = 0x46), "frame_drop_options");
    let no_df = |frame: &mut Vec<u8>| {
        frame[20] = 0;
        fix(frame);
    };
    assert_eq!(count(&no_df), "frame_drop_fragment");
    let stranger = |frame: &mut Vec<u8>| {
        frame[33] = 9;
        fix(frame);
    };
    assert_eq!(count(&stranger), "frame_drop_not_ours");
    let port = |frame: &mut Vec<u8>| {
        let mut udp = UdpPacket::new_unchecked(&mut frame[34..]);
        udp.set_dst_port(53);
        udp.set_checksum(0);
    };
    assert_eq!(count(&port), "frame_drop_port");
}

#[test]
fn echo_is_answered() {
    let mut there = Host::new(&FrameLink { mac: Some(OTHER), ..link() }, 4791);
    // The reply that another station would send, turned into a request by its type.
    let mut request = roce();
    request.truncate(14);
    let asked = parse_v4(&roce()[14..]).map(|packet| (packet.src, packet.dst)).unwrap();
    let packet = super::ip::Packet {
        src: asked.1,
        dst: asked.0,
        traffic_class: 0,
        hop_limit: 64,
        id: 0,
        dont_fragment: true,
        protocol: IpProtocol::Icmp,
        payload: &[],
    };
    let mut frame = icmp::echo_reply((OTHER, Mac([2, 0, 0, 0, 0, 1])), &packet, (7, 8), b"hello");
    frame[34] = 8;
    frame[36..38].fill(0);
    smoltcp::wire::Icmpv4Packet::new_unchecked(&mut frame[34..34 + 8 + 5]).fill_checksum();
    assert!(there.handle_frame(NOW, &frame).is_none());
    assert_eq!(there.counters.frame_echo_answered, 1, "{:?}", there.counters);
    let reply = &sent(&mut there)[0];
    assert_eq!(reply[34], 0);
    assert_eq!(&reply[42..47], b"hello");
}

#[test]
fn another_with_our_address_is_counted() {
    let mut host = host();
    host.handle_frame(NOW, &arp_from([10, 9, 0, 2], [10, 9, 0, 2], true));
    assert_eq!(host.counters.frame_address_conflict, 1);
}

/// Frames that are mostly right, so that every layer is reached.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let arps = (any::<[u8; 4]>(), any::<bool>(), 0u8..4, 0u8..4).prop_map(|(far, near, a, b)| {
        let sender = if near { [10, 9, 0, a] } else { far };
        arp_from(sender, [10, 9, 0, b], near)
    });
    let solicits = (0u16..9, 0u16..4).prop_map(|(a, b)| {
        let at = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
        icmp::solicit(at(a), OTHER, at(b))
    });
    let adverts = (0u16..9, any::<bool>()).prop_map(|(a, solicited)| {
        let at = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, a);
        icmp::advertise((ours(), OTHER), at, v6("fd00::2"), solicited)
    });
    let bytes = proptest::collection::vec(any::<u8>(), 0..100);
    prop_oneof![arps, solicits, adverts, Just(roce()), bytes]
}

proptest! {
    /// Whatever a peer sends, in whatever order, the station stays within its bounds.
    #[test]
    fn nothing_upsets_it(
        steps in proptest::collection::vec(
            (frames(), any::<Option<(prop::sample::Index, u8)>>(), 0u64..2 * SECOND, 0u8..12),
            0..60,
        ),
    ) {
        let limits = FrameLink { neighbours_max: 3, queue_bytes_max: 4096, ..link() };
        let mut host = Host::new(&limits, 4791);
        let mut now = 0;
        for (mut frame, flip, pause, peer) in steps {
            if let (Some((at, bits)), false) = (flip, frame.is_empty()) {
                let at = at.index(frame.len());
                frame[at] ^= bits;
            }
            host.handle_frame(Time(now), &frame);
            let _ = send(&mut host, Time(now), "10.9.0.2", &format!("10.9.0.{peer}"));
            let _ = send(&mut host, Time(now), "fd00::2", &format!("fd00::{peer}"));
            now += pause;
            host.handle_timeout(Time(now));
            let waiting: usize = sent(&mut host).iter().map(Vec::len).sum();
            prop_assert!(waiting <= 2 * 4096, "{} bytes", waiting);
        }
    }

    #[test]
    fn no_packet_of_the_rnics_is_too_long(len in BTH_LEN + ICRC_LEN..=MAX_PACKET, v6_link in any::<bool>()) {
        let (own, peer) = if v6_link { ("fd00::2", "fd00::7") } else { ("10.9.0.2", "10.9.0.7") };
        let mut host = host();
        let _ = arp::Arp::parse(&[]);
        host.handle_frame(NOW, &arp_from([10, 9, 0, 7], [10, 9, 0, 2], true));
        host.handle_frame(NOW, &icmp::solicit(v6("fd00::7"), OTHER, v6("fd00::2")));
        let (mut transmit, mut buffer) = packet(own, peer);
        transmit.len = len;
        let range = host.enclose(NOW, &transmit, &mut buffer).unwrap();
        prop_assert_eq!(range.len(), (headers_len(!v6_link) + len).max(60));
        prop_assert!(range.len() <= host.frame_max());
    }
}
