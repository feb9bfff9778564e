//! IP and UDP: the headers around a RoCEv2 packet, both ways. What is parsed here is checked once
//! and for all; what is written here is what the ICRC was computed for.

use std::net::{IpAddr, SocketAddr};

use elver_wire::Flow;
use smoltcp::wire::{
    EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, UDP_HEADER_LEN, UdpPacket,
};

use crate::frames::counters::FrameDrop;
use crate::frames::ethernet::{self, Mac};

/// Length of an IPv4 header without options in bytes.
pub(crate) const IPV4_LEN: usize = 20;
/// Length of an IPv6 header in bytes.
pub(crate) const IPV6_LEN: usize = 40;
/// Most bytes in front of a RoCEv2 packet in a frame.
pub(crate) const HEADROOM: usize = headers_len(false);
/// The IPv4 identification of every packet that we send. With DF it need not differ
/// (RFC 6864, section 4.1), and 0 is what a receiver that cannot see it tries first.
pub(crate) const IP_ID: u16 = 0;

/// Bytes in front of a RoCEv2 packet in a frame.
pub(crate) const fn headers_len(ipv4: bool) -> usize {
    ethernet::HEADER_LEN + if ipv4 { IPV4_LEN } else { IPV6_LEN } + UDP_HEADER_LEN
}

/// A received IP packet whose header was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// IPv4's identification; 0 in IPv6.
    pub(crate) id: u16,
    pub(crate) dont_fragment: bool,
    pub(crate) protocol: IpProtocol,
    pub(crate) payload: &'a [u8],
}

/// Checks an IPv4 packet, which may have padding behind it.
#[inline]
pub(crate) fn parse_v4(bytes: &[u8]) -> Result<Packet<'_>, FrameDrop> {
    if bytes.len() < IPV4_LEN {
        return Err(FrameDrop::Truncated);
    }
    if bytes[0] != 0x45 {
        return Err(if bytes[0] >> 4 == 4 { FrameDrop::Options } else { FrameDrop::Protocol });
    }
    let packet = Ipv4Packet::new_checked(bytes).map_err(|_| FrameDrop::Truncated)?;
    if !packet.verify_checksum() {
        return Err(FrameDrop::Checksum);
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return Err(FrameDrop::Fragment);
    }
    Ok(Packet {
        src: packet.src_addr().into(),
        dst: packet.dst_addr().into(),
        traffic_class: bytes[1],
        hop_limit: packet.hop_limit(),
        id: packet.ident(),
        dont_fragment: packet.dont_frag(),
        protocol: packet.next_header(),
        payload: packet.payload(),
    })
}

/// Checks an IPv6 packet, which may have padding behind it.
#[inline]
pub(crate) fn parse_v6(bytes: &[u8]) -> Result<Packet<'_>, FrameDrop> {
    if bytes.first().is_some_and(|first| first >> 4 != 6) {
        return Err(FrameDrop::Protocol);
    }
    let packet = Ipv6Packet::new_checked(bytes).map_err(|_| FrameDrop::Truncated)?;
    Ok(Packet {
        src: packet.src_addr().into(),
        dst: packet.dst_addr().into(),
        traffic_class: packet.traffic_class(),
        hop_limit: packet.hop_limit(),
        id: 0,
        dont_fragment: true,
        protocol: packet.next_header(),
        payload: packet.payload(),
    })
}

/// Checks the UDP datagram that a packet carries; returns whence and whither, and what is in it.
///
/// A checksum of 0 means that there is none, over IPv6 as well (RFC 6935, section 5): Linux's
/// `rdma_rxe` sends none, and the ICRC covers all that it would.
#[inline]
pub(crate) fn parse_udp<'a>(packet: &Packet<'a>) -> Result<(Flow, &'a [u8]), FrameDrop> {
    let bytes = packet.payload;
    let udp = UdpPacket::new_checked(bytes).map_err(|_| FrameDrop::Truncated)?;
    if usize::from(udp.len()) != bytes.len() {
        return Err(FrameDrop::Truncated);
    }
    if udp.checksum() != 0 && !udp.verify_checksum(&packet.src.into(), &packet.dst.into()) {
        return Err(FrameDrop::Checksum);
    }
    let flow = Flow {
        src: SocketAddr::new(packet.src, udp.src_port()),
        dst: SocketAddr::new(packet.dst, udp.dst_port()),
    };
    Ok((flow, udp.payload()))
}

/// Writes the headers around a sealed RoCEv2 packet, which begins at [`headers_len`] and ends with
/// the frame; both addresses of `flow` are of one IP version.
///
/// # Panics
/// If `frame` is shorter than its headers.
#[inline]
pub(crate) fn write_headers(
    frame: &mut [u8],
    (to, from): (Mac, Mac),
    flow: &Flow,
    traffic_class: u8,
    hop_limit: u8,
) {
    let (src, dst) = (flow.src.ip(), flow.dst.ip());
    let protocol = if src.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
    ethernet::write_header(frame, to, from, protocol);
    let at = write_ip(
        &mut frame[ethernet::HEADER_LEN..],
        (src, dst),
        IpProtocol::Udp,
        traffic_class,
        hop_limit,
    );
    let datagram = &mut frame[ethernet::HEADER_LEN + at..];
    let len = datagram.len() as u16;
    let mut udp = UdpPacket::new_unchecked(datagram);
    udp.set_src_port(flow.src.port());
    udp.set_dst_port(flow.dst.port());
    udp.set_len(len);
    udp.fill_checksum(&src.into(), &dst.into());
}

/// Writes the header of an IP packet that fills `bytes`; returns where its payload begins.
///
/// # Panics
/// If `bytes` is shorter than the header.
#[inline]
pub(crate) fn write_ip(
    bytes: &mut [u8],
    (src, dst): (IpAddr, IpAddr),
    protocol: IpProtocol,
    traffic_class: u8,
    hop_limit: u8,
) -> usize {
    let total = bytes.len();
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes[1] = traffic_class;
            let mut ip = Ipv4Packet::new_unchecked(bytes);
            ip.set_version(4);
            ip.set_header_len(IPV4_LEN as u8);
            ip.set_total_len(total as u16);
            ip.set_ident(IP_ID);
            ip.clear_flags();
            ip.set_frag_offset(0);
            ip.set_dont_frag(true);
            ip.set_hop_limit(hop_limit);
            ip.set_next_header(protocol);
            ip.set_src_addr(src);
            ip.set_dst_addr(dst);
            ip.fill_checksum();
            IPV4_LEN
        }
        (src, dst) => {
            let mut ip = Ipv6Packet::new_unchecked(bytes);
            ip.set_version(6);
            ip.set_traffic_class(traffic_class);
            ip.set_flow_label(0);
            ip.set_payload_len((total - IPV6_LEN) as u16);
            ip.set_next_header(protocol);
            ip.set_hop_limit(hop_limit);
            ip.set_src_addr(to_v6(src));
            ip.set_dst_addr(to_v6(dst));
            IPV6_LEN
        }
    }
}

fn to_v6(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MACS: (Mac, Mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));

    fn flow(v6: bool) -> Flow {
        let (src, dst) = if v6 {
            ("[fd00::1]:50000", "[fd00::2]:4791")
        } else {
            ("10.9.0.1:50000", "10.9.0.2:4791")
        };
        Flow { src: src.parse().unwrap(), dst: dst.parse().unwrap() }
    }

    fn framed(v6: bool, payload: &[u8], traffic_class: u8, hop_limit: u8) -> Vec<u8> {
        let mut frame = vec![0x5a; headers_len(!v6)];
        frame.extend(payload);
        write_headers(&mut frame, MACS, &flow(v6), traffic_class, hop_limit);
        frame
    }

    fn parse(frame: &[u8]) -> Result<Packet<'_>, FrameDrop> {
        let bytes = &frame[ethernet::HEADER_LEN..];
        if frame[12] == 8 { parse_v4(bytes) } else { parse_v6(bytes) }
    }

    proptest! {
        #[test]
        fn what_is_written_parses_to_the_same(
            v6 in any::<bool>(),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            padding in 0usize..20,
            (traffic_class, hop_limit) in any::<(u8, u8)>(),
        ) {
            let mut frame = framed(v6, &payload, traffic_class, hop_limit);
            frame.resize(frame.len() + padding, 0);
            let packet = parse(&frame).unwrap();
            prop_assert_eq!(packet.traffic_class, traffic_class);
            prop_assert_eq!(packet.hop_limit, hop_limit);
            prop_assert_eq!(packet.id, IP_ID);
            prop_assert!(packet.dont_fragment);
            prop_assert_eq!(parse_udp(&packet).unwrap(), (flow(v6), &payload[..]));
        }

        #[test]
        fn a_flipped_bit_is_caught_or_leaves_the_datagram_alone(
            v6 in any::<bool>(),
            payload in proptest::collection::vec(any::<u8>(), 1..100),
            bit in any::<prop::sample::Index>(),
        ) {
            let mut frame = framed(v6, &payload, 2, 64);
            let start = ethernet::HEADER_LEN;
            let bit = bit.index((frame.len() - start) * 8);
            frame[start + bit / 8] ^= 1 << (bit % 8);
            let Ok(packet) = parse(&frame) else { return Ok(()) };
            let Ok((read, taken)) = parse_udp(&packet) else { return Ok(()) };
            // No checksum covers IPv6's class, flow label and hop limit.
            prop_assert_eq!((read, taken), (flow(v6), &payload[..]));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), v in any::<bool>()) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = if v { 0x45 } else { 0x60 | *first & 0xf };
            }
            for packet in [parse_v4(&bytes), parse_v6(&bytes)].into_iter().flatten() {
                let _ = parse_udp(&packet);
            }
        }
    }

    #[test]
    fn each_fault_has_its_reason() {
        let fault = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = framed(false, &[7; 20], 2, 64);
            change(&mut frame);
            let ip = ethernet::HEADER_LEN;
            if frame.len() >= ip + IPV4_LEN && frame[ip] == 0x45 {
                let sum_stays = frame[ip + 10] == 0xee;
                if !sum_stays {
                    Ipv4Packet::new_unchecked(&mut frame[ip..ip + IPV4_LEN]).fill_checksum();
                }
            }
            parse(&frame).and_then(|packet| parse_udp(&packet).map(|_| ())).unwrap_err()
        };
        let ip = ethernet::HEADER_LEN;
        assert_eq!(fault(&|frame| frame.truncate(ip + 19)), FrameDrop::Truncated);
        assert_eq!(fault(&|frame| frame.truncate(ip + 30)), FrameDrop::Truncated);
        assert_eq!(fault(&|frame| frame[ip] = 0x46), FrameDrop::Options);
        assert_eq!(fault(&|frame| frame[ip] = 0x55), FrameDrop::Protocol);
        assert_eq!(fault(&|frame| frame[ip + 6] = 0x20), FrameDrop::Fragment);
        assert_eq!(fault(&|frame| frame[ip + 7] = 1), FrameDrop::Fragment);
        assert_eq!(fault(&|frame| frame[ip + 10] = 0xee), FrameDrop::Checksum);
        assert_eq!(fault(&|frame| frame[ip + 30] ^= 1), FrameDrop::Checksum);
        assert_eq!(fault(&|frame| frame[ip + 25] -= 1), FrameDrop::Truncated);
    }

    #[test]
    fn a_missing_udp_checksum_is_taken() {
        for v6 in [false, true] {
            let mut frame = framed(v6, &[7; 20], 2, 64);
            let checksum = headers_len(!v6) - 2;
            assert_ne!(frame[checksum..checksum + 2], [0, 0]);
            frame[checksum..checksum + 2].fill(0);
            assert!(parse_udp(&parse(&frame).unwrap()).is_ok());
        }
    }
}
