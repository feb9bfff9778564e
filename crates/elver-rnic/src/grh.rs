//! The 40 bytes in front of every received UD datagram (IBTA vol. 1, annex A17.4.5.2): for IPv6 the
//! IP header; for IPv4 the IP header in the last 20 bytes, behind 20 bytes of no meaning.

use core::net::IpAddr;

use crate::RxMeta;

/// Length of a GRH in bytes.
pub(crate) const LEN: usize = 40;
/// UDP header, BTH, DETH and ICRC around a UD payload.
const OVERHEAD: usize = 8 + 12 + 8 + 4;
/// IP protocol number of UDP.
const UDP: u8 = 17;

/// The GRH of a datagram with `payload` bytes.
pub(crate) fn from_meta(meta: &RxMeta, payload: usize) -> [u8; LEN] {
    let mut grh = [0; LEN];
    let padded = payload.next_multiple_of(4);
    match (meta.flow.src.ip(), meta.flow.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut grh[20..];
            let total = (20 + OVERHEAD + padded) as u16;
            ip[0] = 0x45;
            ip[1] = meta.traffic_class;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[6] = 0x40;
            ip[8] = meta.hop_limit;
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (src, dst) => {
            let length = (OVERHEAD + padded) as u16;
            grh[0] = 0x60 | meta.traffic_class >> 4;
            grh[1] = meta.traffic_class << 4;
            grh[4..6].copy_from_slice(&length.to_be_bytes());
            grh[6] = UDP;
            grh[7] = meta.hop_limit;
            grh[8..24].copy_from_slice(&elver_verbs::Gid::from(src).0);
            grh[24..40].copy_from_slice(&elver_verbs::Gid::from(dst).0);
        }
    }
    grh
}

/// The Internet checksum (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use elver_wire::{Flow, IpId};

    #[test]
    fn an_ipv4_header_stands_in_the_last_20_bytes() {
        let meta = RxMeta {
            flow: Flow {
                src: "10.1.2.3:4791".parse().unwrap(),
                dst: "10.3.2.1:4791".parse().unwrap(),
            },
            traffic_class: 2,
            hop_limit: 64,
            ip_id: IpId::Exact(0),
        };
        let grh = from_meta(&meta, 5);
        assert_eq!(grh[..20], [0; 20]);
        assert_eq!(grh[20], 0x45);
        assert_eq!(u16::from_be_bytes([grh[22], grh[23]]), 20 + 32 + 8);
        assert_eq!(checksum(&grh[20..]), 0, "a header sums to zero with its own checksum");
    }
}
