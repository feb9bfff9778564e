//! The invariant CRC (IBTA 7.8.1 and annex A17.3.3): a CRC-32 over everything in a packet that no
//! router changes, with the fields that one may change taken as ones.
//!
//! In RoCEv2 it covers the IP and UDP headers too, IPv4's identification and DF bit among them,
//! which a UDP socket neither sets nor shows. Sending: the caller says which ID the kernel will
//! write. Receiving: where the ID is hidden, [`IpId::Likely`] tries a guess first and otherwise
//! solves for the ID, which a CRC, being linear, permits. Of the 32 bits of the check that uses up
//! 16; the other 16 must still fit.

use core::net::{IpAddr, SocketAddr};

use crc32fast::Hasher;
use thiserror::Error;

use crate::{BTH_LEN, ICRC_LEN};

/// A packet's addresses: the fields of the IP and UDP headers that the ICRC covers and that do not
/// follow from the rest. Both must be of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source address and UDP port.
    pub src: SocketAddr,
    /// Destination address and UDP port.
    pub dst: SocketAddr,
}

/// What a receiver knows of the IPv4 identification of a packet. IPv6 has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpId {
    /// It is this.
    Exact(u16),
    /// It is hidden; try this first.
    Likely(u16),
}

/// The ICRC does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("ICRC is {found:#010x}, but the packet gives {computed:#010x}")]
pub struct IcrcMismatch {
    /// What the packet carries.
    pub found: u32,
    /// What it should carry, with the ID that was tried first.
    pub computed: u32,
}

/// Bytes in front of the IP header, all ones: the place of InfiniBand's LRH.
const LRH_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// The headers that end in a BTH, with the longer IP header.
const HEAD_MAX: usize = LRH_LEN + IPV6_LEN + UDP_LEN + BTH_LEN;
/// Most bytes behind the BTH that are copied behind the headers, so that one run of the CRC takes
/// all: to begin and end a run costs more than to copy these.
const SHORT_MAX: usize = 256 - HEAD_MAX;
/// IP protocol number of UDP.
const UDP: u8 = 17;
/// Where IPv4's identification stands in what is covered.
const IPV4_ID_AT: usize = LRH_LEN + 4;
/// A BTH byte that carries congestion bits and is taken as ones.
const BTH_MASKED: usize = 4;

/// Computes the ICRC of a packet and writes it to its last 4 bytes.
///
/// # Panics
/// If `packet` is shorter than a BTH and an ICRC.
#[inline]
pub fn seal(flow: &Flow, ip_id: u16, packet: &mut [u8]) {
    let (body, icrc) = packet.split_at_mut(packet.len() - ICRC_LEN);
    icrc.copy_from_slice(&compute(flow, ip_id, body).to_le_bytes());
}

/// Checks the last 4 bytes of a packet; returns the IP ID that they fit.
///
/// With [`IpId::Likely`] a damaged packet passes once in 2^16 times, where a known ID lets one in 2^32
/// pass; the guess costs nothing when it is right. Packets are at most [`crate::PACKET_MAX`] long.
///
/// # Errors
/// [`IcrcMismatch`]: drop the packet and count it.
///
/// # Panics
/// If `packet` is shorter than a BTH and an ICRC.
#[inline]
pub fn verify(flow: &Flow, ip_id: IpId, packet: &[u8]) -> Result<u16, IcrcMismatch> {
    let (body, icrc) = packet.split_at(packet.len() - ICRC_LEN);
    let found = u32::from_le_bytes([icrc[0], icrc[1], icrc[2], icrc[3]]);
    let (IpId::Exact(tried) | IpId::Likely(tried)) = ip_id;
    let computed = compute(flow, tried, body);
    if found == computed {
        return Ok(tried);
    }
    let mismatch = IcrcMismatch { found, computed };
    match (ip_id, flow.src.ip()) {
        (IpId::Likely(_), IpAddr::V4(_)) => {
            let covered = LRH_LEN + IPV4_LEN + UDP_LEN + body.len();
            let difference = solve(found ^ computed, covered - IPV4_ID_AT).ok_or(mismatch)?;
            Ok(tried ^ difference)
        }
        _ => Err(mismatch),
    }
}

/// The ICRC of a packet without its last 4 bytes.
#[inline]
fn compute(flow: &Flow, ip_id: u16, body: &[u8]) -> u32 {
    let mut head = [0xff; HEAD_MAX + SHORT_MAX];
    let udp_len = (UDP_LEN + body.len() + ICRC_LEN) as u16;
    let mut at = LRH_LEN;
    match (flow.src.ip(), flow.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut head[at..at + IPV4_LEN];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&(IPV4_LEN as u16).wrapping_add(udp_len).to_be_bytes());
            ip[4..6].copy_from_slice(&ip_id.to_be_bytes());
            ip[6..8].copy_from_slice(&[0x40, 0]);
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            at += IPV4_LEN;
        }
        (src, dst) => {
            let ip = &mut head[at..at + IPV6_LEN];
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[6] = UDP;
            ip[8..24].copy_from_slice(&octets(src));
            ip[24..40].copy_from_slice(&octets(dst));
            at += IPV6_LEN;
        }
    }
    let udp = &mut head[at..at + UDP_LEN];
    udp[0..2].copy_from_slice(&flow.src.port().to_be_bytes());
    udp[2..4].copy_from_slice(&flow.dst.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    at += UDP_LEN;
    let bth = &mut head[at..at + BTH_LEN];
    bth.copy_from_slice(&body[..BTH_LEN]);
    bth[BTH_MASKED] = 0xff;
    at += BTH_LEN;

    let rest = &body[BTH_LEN..];
    let mut hasher = Hasher::new();
    if rest.len() <= SHORT_MAX {
        let end = at + rest.len();
        head[at..end].copy_from_slice(rest);
        hasher.update(&head[..end]);
    } else {
        hasher.update(&head[..at]);
        hasher.update(rest);
    }
    hasher.finalize()
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The reflected polynomial of CRC-32.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1, reflected.
const ONE: u32 = 1 << 31;

/// x^(-8 · 2^k) for each k: what undoes 2^k bytes.
const UNDO_BYTES: [u32; 16] = {
    let mut powers = [0; 16];
    let mut power = ONE;
    let mut bit = 0;
    while bit < 8 {
        power = divide_by_x(power);
        bit += 1;
    }
    let mut k = 0;
    while k < powers.len() {
        powers[k] = power;
        power = multiply(power, power);
        k += 1;
    }
    powers
};

/// The two bytes that, `distance` bytes before the end of a message, change its CRC by
/// `difference`, if there are any.
///
/// A CRC register that holds zero takes two bytes as its low 16 bits and then multiplies by x for
/// each bit that follows; so `difference` is those bytes times x^(8 · distance).
fn solve(difference: u32, distance: usize) -> Option<u16> {
    let mut bytes = difference;
    for (k, undo) in UNDO_BYTES.iter().enumerate() {
        if distance >> k & 1 == 1 {
            bytes = multiply(bytes, *undo);
        }
    }
    u16::try_from(bytes).ok().map(u16::swap_bytes)
}

/// Product of two polynomials over GF(2) modulo that of CRC-32, all reflected.
const fn multiply(a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut shifted = b;
    let mut bit = 0;
    while bit < 32 {
        if a & (ONE >> bit) != 0 {
            product ^= shifted;
        }
        shifted = shifted >> 1 ^ if shifted & 1 == 1 { POLYNOMIAL } else { 0 };
        bit += 1;
    }
    product
}

const fn divide_by_x(a: u32) -> u32 {
    if a & ONE != 0 { (a ^ POLYNOMIAL) << 1 | 1 } else { a << 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn flow(v6: bool) -> Flow {
        let (src, dst) = if v6 {
            ("[fd00::1]:4791", "[fd00::2]:4791")
        } else {
            ("10.9.0.1:4791", "10.9.0.2:4791")
        };
        Flow { src: src.parse().unwrap(), dst: dst.parse().unwrap() }
    }

    fn packet(payload: &[u8]) -> [u8; 300] {
        let mut packet = [0x5a; 300];
        packet[BTH_LEN..BTH_LEN + payload.len()].copy_from_slice(payload);
        packet
    }

    proptest! {
        #[test]
        fn any_id_is_found(
            id in any::<u16>(),
            guess in any::<u16>(),
            payload in proptest::collection::vec(any::<u8>(), 0..280),
        ) {
            let mut packet = packet(&payload);
            let packet = &mut packet[..BTH_LEN + payload.len() + ICRC_LEN];
            seal(&flow(false), id, packet);
            prop_assert_eq!(verify(&flow(false), IpId::Likely(guess), packet), Ok(id));
            prop_assert_eq!(verify(&flow(false), IpId::Exact(id), packet), Ok(id));
            prop_assert_eq!(verify(&flow(false), IpId::Exact(guess), packet).is_ok(), guess == id);
        }

        #[test]
        fn a_flipped_bit_is_caught(
            v6 in any::<bool>(),
            payload in proptest::collection::vec(any::<u8>(), 0..280),
            bit in any::<prop::sample::Index>(),
        ) {
            let mut packet = packet(&payload);
            let packet = &mut packet[..BTH_LEN + payload.len() + ICRC_LEN];
            seal(&flow(v6), 7, packet);
            let bit = bit.index(packet.len() * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
            let masked = bit / 8 == BTH_MASKED;
            prop_assert_eq!(verify(&flow(v6), IpId::Exact(7), packet).is_ok(), masked);
        }
    }

    #[test]
    fn every_id_is_found() {
        let mut packet = packet(&[7; 80]);
        for id in 0..=u16::MAX {
            seal(&flow(false), id, &mut packet);
            assert_eq!(verify(&flow(false), IpId::Likely(0), &packet), Ok(id));
        }
    }

    #[test]
    fn other_addresses_do_not_fit() {
        let mut packet = packet(&[1; 60]);
        seal(&flow(false), 0, &mut packet);
        let other = Flow { src: "10.9.0.3:4791".parse().unwrap(), ..flow(false) };
        assert!(verify(&other, IpId::Exact(0), &packet).is_err());
        assert!(verify(&flow(true), IpId::Exact(0), &packet).is_err());
    }

    /// The ICRC bit by bit, from its definition.
    fn defined(flow: &Flow, ip_id: u16, body: &[u8]) -> u32 {
        let udp_len = (UDP_LEN + body.len() + ICRC_LEN) as u16;
        let mut covered = vec![0xff; LRH_LEN];
        match (flow.src.ip(), flow.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                covered.extend([0x45, 0xff]);
                covered.extend((20 + udp_len).to_be_bytes());
                covered.extend(ip_id.to_be_bytes());
                covered.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
                covered.extend([src.octets(), dst.octets()].concat());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                covered.extend([0x6f, 0xff, 0xff, 0xff]);
                covered.extend(udp_len.to_be_bytes());
                covered.extend([17, 0xff]);
                covered.extend([src.octets(), dst.octets()].concat());
            }
            _ => panic!("one IP version"),
        }
        covered.extend(flow.src.port().to_be_bytes());
        covered.extend(flow.dst.port().to_be_bytes());
        covered.extend(udp_len.to_be_bytes());
        covered.extend([0xff, 0xff]);
        let bth = covered.len();
        covered.extend(body);
        covered[bth + BTH_MASKED] = 0xff;
        let mut register = u32::MAX;
        for byte in covered {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register = register >> 1 ^ if register & 1 == 1 { POLYNOMIAL } else { 0 };
            }
        }
        !register
    }

    #[test]
    fn matches_the_definition_at_every_length() {
        let bytes: Vec<u8> = (0..BTH_LEN + SHORT_MAX + 100).map(|i| (i * 37) as u8).collect();
        for flow in [flow(false), flow(true)] {
            for end in BTH_LEN..bytes.len() {
                let body = &bytes[..end];
                assert_eq!(compute(&flow, 0x1234, body), defined(&flow, 0x1234, body), "{end}");
            }
        }
    }
}
