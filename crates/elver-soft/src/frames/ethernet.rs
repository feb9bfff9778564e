//! Ethernet: addresses and the header of a frame.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use elver_verbs::VerbsError;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol};

/// Length of an Ethernet header in bytes. There are no VLAN tags.
pub(crate) const HEADER_LEN: usize = 14;
/// Shortest frame in bytes, without its check sequence (IEEE 802.3, 4A.2.3.2.4).
pub(crate) const FRAME_MIN: usize = 60;

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Every station of the link.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// A locally administered address that follows from an IP address: a device that is opened
    /// anew keeps its address, so that neighbours' caches stay right.
    pub fn for_address(ip: IpAddr) -> Mac {
        let [a, b, c, d] = match ip {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(v6) => fold(v6),
        };
        Mac([0x02, 0xe1, a, b, c, d])
    }

    /// Whether it names one station: neither a group nor nobody.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self != Mac::default()
    }

    /// The modified EUI-64 (RFC 4291, appendix A).
    pub(crate) fn eui64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Where multicast to `group` goes (RFC 1112, section 6.4; RFC 2464, section 7).
    pub(crate) fn of_group(group: IpAddr) -> Mac {
        match group {
            IpAddr::V4(v4) => {
                let [_, b, c, d] = v4.octets();
                Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            IpAddr::V6(v6) => {
                let o = v6.octets();
                Mac([0x33, 0x33, o[12], o[13], o[14], o[15]])
            }
        }
    }
}

/// FNV-1a, 32 bits: spreads addresses that differ in any byte.
fn fold(v6: Ipv6Addr) -> [u8; 4] {
    let mut hash = 0x811c_9dc5_u32;
    for byte in v6.octets() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash.to_be_bytes()
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mac({self})")
    }
}

impl FromStr for Mac {
    type Err = VerbsError;

    /// Six bytes in hexadecimal with colons between them, as in `02:e1:0a:09:00:02`.
    fn from_str(text: &str) -> Result<Mac, VerbsError> {
        read(text).ok_or(VerbsError::InvalidArgument {
            what: "a MAC address is six bytes in hexadecimal, as in 02:e1:0a:09:00:02",
        })
    }
}

fn read(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() <= 2 && !part.starts_with('+'))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(Mac(bytes))
}

impl From<Mac> for EthernetAddress {
    fn from(mac: Mac) -> EthernetAddress {
        EthernetAddress(mac.0)
    }
}

impl From<EthernetAddress> for Mac {
    fn from(address: EthernetAddress) -> Mac {
        Mac(address.0)
    }
}

/// Writes the header at the start of `frame`.
///
/// # Panics
/// If `frame` is shorter than a header.
#[inline]
pub(crate) fn write_header(frame: &mut [u8], to: Mac, from: Mac, protocol: EthernetProtocol) {
    let mut frame = EthernetFrame::new_unchecked(frame);
    frame.set_dst_addr(to.into());
    frame.set_src_addr(from.into());
    frame.set_ethertype(protocol);
}

/// Sets the destination of a frame whose header was written.
///
/// # Panics
/// If `frame` is shorter than a header.
#[inline]
pub(crate) fn readdress(frame: &mut [u8], to: Mac) {
    EthernetFrame::new_unchecked(frame).set_dst_addr(to.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let mac: Mac = "02:e1:0A:9:00:fe".parse().unwrap();
        assert_eq!(mac.to_string(), "02:e1:0a:09:00:fe");
        for nonsense in ["", "02:e1:0a:09:00", "02:e1:0a:09:00:02:03", "02:e1:0a:09:00:002", "g"] {
            let error = nonsense.parse::<Mac>().unwrap_err();
            assert!(error.to_string().contains("02:e1:0a:09:00:02"), "{error}");
        }
    }

    #[test]
    fn what_follows_from_an_address_names_one_station() {
        for ip in ["10.9.0.2", "fd00::1", "fd00::2", "255.255.255.255"] {
            assert!(Mac::for_address(ip.parse().unwrap()).is_unicast(), "{ip}");
        }
        let [a, b] = ["fd00::1", "fd00::2"].map(|ip| Mac::for_address(ip.parse().unwrap()));
        assert_ne!(a, b);
        assert!(!Mac::BROADCAST.is_unicast() && !Mac::default().is_unicast());
    }

    #[test]
    fn groups_and_identifiers_are_the_rfcs() {
        let group = "ff02::1:ff00:1234".parse().unwrap();
        assert_eq!(Mac::of_group(group).to_string(), "33:33:ff:00:12:34");
        // The upper bit of the second byte has no room.
        let group = "230.129.2.3".parse().unwrap();
        assert_eq!(Mac::of_group(group).to_string(), "01:00:5e:01:02:03");
        // The example of RFC 4291, appendix A.
        let mac: Mac = "34:56:78:9a:bc:de".parse().unwrap();
        assert_eq!(mac.eui64(), 0x3656_78ff_fe9a_bcde);
    }
}
