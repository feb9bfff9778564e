//! The IP and UDP headers that a UDP socket neither takes nor shows: dissectors want them.

use std::net::IpAddr;

use elver_wire::Flow;

/// IP protocol number of UDP.
const UDP: u8 = 17;
const UDP_LEN: usize = 8;
/// Bytes of IPv6 and UDP headers, the longer ones.
const LEN_MAX: usize = 40 + UDP_LEN;

/// Headers being put together.
pub(super) struct Headers {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl Default for Headers {
    fn default() -> Headers {
        Headers { bytes: [0; LEN_MAX], len: 0 }
    }
}

impl Headers {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Appends IP and UDP headers. UDP's checksum is left out: the ICRC does its work.
pub(super) fn put_ip(
    headers: &mut Headers,
    flow: &Flow,
    traffic_class: u8,
    ip_id: u16,
    payload: usize,
) {
    let udp_len = (UDP_LEN + payload) as u16;
    match (flow.src.ip(), flow.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            headers.put(&[0x45, traffic_class]);
            headers.put(&(20 + udp_len).to_be_bytes());
            headers.put(&ip_id.to_be_bytes());
            headers.put(&[0x40, 0, 64, UDP, 0, 0]);
            headers.put(&src.octets());
            headers.put(&dst.octets());
        }
        (src, dst) => {
            headers.put(&[0x60 | traffic_class >> 4, traffic_class << 4, 0, 0]);
            headers.put(&udp_len.to_be_bytes());
            headers.put(&[UDP, 64]);
            for ip in [src, dst] {
                match ip {
                    IpAddr::V4(v4) => headers.put(&v4.to_ipv6_mapped().octets()),
                    IpAddr::V6(v6) => headers.put(&v6.octets()),
                }
            }
        }
    }
    headers.put(&flow.src.port().to_be_bytes());
    headers.put(&flow.dst.port().to_be_bytes());
    headers.put(&udp_len.to_be_bytes());
    headers.put(&[0, 0]);
}
