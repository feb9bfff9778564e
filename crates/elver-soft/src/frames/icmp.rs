//! ICMP and ICMPv6, as far as it is spoken here: echo (RFC 792, RFC 4443) and the neighbour
//! messages of neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetProtocol, Icmpv4Message, Icmpv4Packet, Icmpv4Repr, Icmpv6Message,
    Icmpv6Packet, Icmpv6Repr, IpProtocol, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use crate::frames::counters::FrameDrop;
use crate::frames::ethernet::{self, FRAME_MIN, Mac};
use crate::frames::ip::{self, IPV4_LEN, IPV6_LEN, Packet};

/// Neighbour discovery is from this link alone: no router has counted the limit down
/// (RFC 4861, 7.1).
pub(crate) const HOP_LIMIT_ND: u8 = 255;
/// Hop limit of echo replies.
const HOP_LIMIT: u8 = 64;

/// A message that somebody here answers or learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Icmp<'a> {
    /// Send the data back.
    EchoRequest { ident: u16, sequence: u16, data: &'a [u8] },
    /// Somebody asks for the target's MAC address, and may tell its own.
    Solicit { target: Ipv6Addr, mac: Option<Mac> },
    /// Somebody tells the target's MAC address.
    Advert { target: Ipv6Addr, mac: Option<Mac>, solicited: bool, overrides: bool },
}

/// Reads an ICMP message over IPv4.
pub(crate) fn parse_v4<'a>(packet: &Packet<'a>) -> Result<Icmp<'a>, FrameDrop> {
    let icmp = Icmpv4Packet::new_checked(packet.payload).map_err(|_| FrameDrop::Truncated)?;
    if icmp.msg_type() != Icmpv4Message::EchoRequest {
        return Err(FrameDrop::Protocol);
    }
    match Icmpv4Repr::parse(&icmp, &ChecksumCapabilities::default()) {
        Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) => {
            Ok(Icmp::EchoRequest { ident, sequence: seq_no, data })
        }
        Ok(_) => Err(FrameDrop::Protocol),
        Err(_) => Err(FrameDrop::Checksum),
    }
}

/// Reads an ICMPv6 message.
pub(crate) fn parse_v6<'a>(packet: &Packet<'a>) -> Result<Icmp<'a>, FrameDrop> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (packet.src, packet.dst) else {
        return Err(FrameDrop::Protocol);
    };
    let icmp = Icmpv6Packet::new_checked(packet.payload).map_err(|_| FrameDrop::Truncated)?;
    let discovery = match icmp.msg_type() {
        Icmpv6Message::EchoRequest => false,
        Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert => true,
        _ => return Err(FrameDrop::Protocol),
    };
    if !icmp.verify_checksum(&src, &dst) {
        return Err(FrameDrop::Checksum);
    }
    if discovery && (packet.hop_limit != HOP_LIMIT_ND || icmp.msg_code() != 0) {
        return Err(FrameDrop::Neighbour);
    }
    let parsed = Icmpv6Repr::parse(&src, &dst, &icmp, &ChecksumCapabilities::ignored());
    match parsed.map_err(|_| FrameDrop::Neighbour)? {
        Icmpv6Repr::EchoRequest { ident, seq_no, data } => {
            Ok(Icmp::EchoRequest { ident, sequence: seq_no, data })
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr }) => {
            Ok(Icmp::Solicit { target: target_addr, mac: mac_of(lladdr)? })
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr }) => {
            Ok(Icmp::Advert {
                target: target_addr,
                mac: mac_of(lladdr)?,
                solicited: flags.contains(NdiscNeighborFlags::SOLICITED),
                overrides: flags.contains(NdiscNeighborFlags::OVERRIDE),
            })
        }
        _ => Err(FrameDrop::Protocol),
    }
}

/// The address in a link-layer address option.
fn mac_of(option: Option<RawHardwareAddress>) -> Result<Option<Mac>, FrameDrop> {
    let Some(raw) = option else { return Ok(None) };
    let mac = <[u8; 6]>::try_from(raw.as_bytes()).map(Mac).ok();
    mac.filter(|mac| mac.is_unicast()).map(Some).ok_or(FrameDrop::Neighbour)
}

/// The frame that answers an echo request: the same data, from where the request went.
pub(crate) fn echo_reply(
    macs: (Mac, Mac),
    request: &Packet<'_>,
    (ident, seq_no): (u16, u16),
    data: &[u8],
) -> Vec<u8> {
    let (src, dst) = (request.dst, request.src);
    let checksums = ChecksumCapabilities::default();
    match (src, dst) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let message = Icmpv6Repr::EchoReply { ident, seq_no, data };
            framed(macs, (src, dst), HOP_LIMIT, message.buffer_len(), |bytes| {
                let mut packet = Icmpv6Packet::new_unchecked(bytes);
                message.emit(&from, &to, &mut packet, &checksums);
            })
        }
        _ => {
            let message = Icmpv4Repr::EchoReply { ident, seq_no, data };
            framed(macs, (src, dst), HOP_LIMIT, message.buffer_len(), |bytes| {
                message.emit(&mut Icmpv4Packet::new_unchecked(bytes), &checksums);
            })
        }
    }
}

/// The frame that asks for `target`'s MAC address, of all who may have it.
pub(crate) fn solicit(from: Ipv6Addr, mac: Mac, target: Ipv6Addr) -> Vec<u8> {
    let group = solicited_node(target);
    let message = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(raw(mac)) };
    discovery((Mac::of_group(group.into()), mac), from, group, message)
}

/// The frame that tells `target`'s MAC address to `to`.
pub(crate) fn advertise(
    macs: (Mac, Mac),
    target: Ipv6Addr,
    to: Ipv6Addr,
    solicited: bool,
) -> Vec<u8> {
    let mut flags = NdiscNeighborFlags::OVERRIDE;
    flags.set(NdiscNeighborFlags::SOLICITED, solicited);
    let lladdr = Some(raw(macs.1));
    let message = NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr };
    discovery(macs, target, to, message)
}

/// The group that whoever has `ip` listens to (RFC 4291, 2.7.1).
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, o[13], o[14], o[15]])
}

fn raw(mac: Mac) -> RawHardwareAddress {
    EthernetAddress::from(mac).into()
}

fn discovery(macs: (Mac, Mac), src: Ipv6Addr, dst: Ipv6Addr, message: NdiscRepr<'_>) -> Vec<u8> {
    let message = Icmpv6Repr::Ndisc(message);
    framed(macs, (src.into(), dst.into()), HOP_LIMIT_ND, message.buffer_len(), |bytes| {
        let mut packet = Icmpv6Packet::new_unchecked(bytes);
        message.emit(&src, &dst, &mut packet, &ChecksumCapabilities::default());
    })
}

/// A frame with an IP packet of `len` bytes that `emit` writes.
fn framed(
    (to, from): (Mac, Mac),
    (src, dst): (IpAddr, IpAddr),
    hop_limit: u8,
    len: usize,
    emit: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let (protocol, icmp, ip_len) = if src.is_ipv4() {
        (EthernetProtocol::Ipv4, IpProtocol::Icmp, IPV4_LEN)
    } else {
        (EthernetProtocol::Ipv6, IpProtocol::Icmpv6, IPV6_LEN)
    };
    let end = ethernet::HEADER_LEN + ip_len + len;
    let mut frame = vec![0; end.max(FRAME_MIN)];
    ethernet::write_header(&mut frame, to, from, protocol);
    let packet = &mut frame[ethernet::HEADER_LEN..end];
    let at = ip::write_ip(packet, (src, dst), icmp, 0, hop_limit);
    emit(&mut packet[at..]);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MACS: (Mac, Mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));

    fn packet(frame: &[u8]) -> Packet<'_> {
        let bytes = &frame[ethernet::HEADER_LEN..];
        if frame[12] == 8 { ip::parse_v4(bytes).unwrap() } else { ip::parse_v6(bytes).unwrap() }
    }

    proptest! {
        #[test]
        fn discovery_is_read_as_written(
            (a, b) in any::<([u8; 16], [u8; 16])>(),
            solicited in any::<bool>(),
        ) {
            let (own, target) = (Ipv6Addr::from(a), Ipv6Addr::from(b));
            let frame = solicit(own, MACS.1, target);
            prop_assert_eq!(&frame[..6], &Mac::of_group(solicited_node(target).into()).0);
            let read = parse_v6(&packet(&frame));
            prop_assert_eq!(read, Ok(Icmp::Solicit { target, mac: Some(MACS.1) }));
            let frame = advertise(MACS, own, target, solicited);
            let mac = Some(MACS.1);
            let read = parse_v6(&packet(&frame));
            let meant = Icmp::Advert { target: own, mac, solicited, overrides: true };
            prop_assert_eq!(read, Ok(meant));
        }

        #[test]
        fn no_message_panics(
            v6 in any::<bool>(),
            kind in prop_oneof![Just(128u8), Just(135), Just(136), Just(8), any::<u8>()],
            mut payload in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let ips: [IpAddr; 2] = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] }
                .map(|ip| ip.parse().unwrap());
            if let Some(first) = payload.first_mut() {
                *first = kind;
            }
            if let Some(code) = payload.get_mut(1) {
                *code = 0;
            }
            // Behind a right checksum, so that the rest is looked at.
            if let (true, [IpAddr::V6(src), IpAddr::V6(dst)]) = (payload.len() >= 8, ips) {
                Icmpv6Packet::new_unchecked(&mut payload[..]).fill_checksum(&src, &dst);
            } else if payload.len() >= 8 {
                Icmpv4Packet::new_unchecked(&mut payload[..]).fill_checksum();
            }
            let packet = Packet {
                src: ips[0],
                dst: ips[1],
                traffic_class: 0,
                hop_limit: HOP_LIMIT_ND,
                id: 0,
                dont_fragment: true,
                protocol: IpProtocol::Icmp,
                payload: &payload,
            };
            let read = if v6 { parse_v6(&packet) } else { parse_v4(&packet) };
            if let Ok(Icmp::EchoRequest { ident, sequence, data }) = read {
                let frame = echo_reply(MACS, &packet, (ident, sequence), data);
                prop_assert!(frame.len() <= ethernet::HEADER_LEN + IPV6_LEN + payload.len() + FRAME_MIN);
            }
        }
    }

    #[test]
    fn discovery_from_beyond_the_link_is_refused() {
        let frame = solicit("fd00::1".parse().unwrap(), MACS.1, "fd00::2".parse().unwrap());
        let mut packet = packet(&frame);
        packet.hop_limit = 254;
        assert_eq!(parse_v6(&packet), Err(FrameDrop::Neighbour));
    }

    #[test]
    fn a_wrong_checksum_is_refused() {
        let mut frame = solicit("fd00::1".parse().unwrap(), MACS.1, "fd00::2".parse().unwrap());
        *frame.last_mut().unwrap() ^= 1;
        assert_eq!(parse_v6(&packet(&frame)), Err(FrameDrop::Checksum));
    }
}
