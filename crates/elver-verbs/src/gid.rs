use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// A global identifier: in RoCEv2 an IPv6 address, or an IPv4 address mapped into one
/// (IBTA vol. 1, annex A17.4.5.2).
///
/// It prints as that address, which is what users know a node by; see [`Gid::in_groups`] for the
/// form of the verbs' own tools.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address that the GID stands for; an IPv4-mapped GID gives the IPv4 address.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    /// Prints as `ibv_devinfo` and sysfs show a GID: eight groups of four digits, none left out.
    pub fn in_groups(self) -> InGroups {
        InGroups(self)
    }

    /// Whether the GID is an IPv4-mapped address.
    pub fn is_ipv4(self) -> bool {
        Ipv6Addr::from(self.0).to_ipv4_mapped().is_some()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(v4) => Gid::from(v4),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(v4: Ipv4Addr) -> Gid {
        Gid(v4.to_ipv6_mapped().octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

/// A text that names no GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a GID is written as the IP address of its node: 10.0.0.1, fe80::1")]
pub struct GidParseError;

impl FromStr for Gid {
    type Err = GidParseError;

    /// Reads what [`Gid`] is displayed as, and [`Gid::in_groups`].
    fn from_str(text: &str) -> Result<Gid, GidParseError> {
        text.parse::<IpAddr>().map(Gid::from).map_err(|_| GidParseError)
    }
}

/// See [`Gid::in_groups`].
#[derive(Clone, Copy, Debug)]
pub struct InGroups(Gid);

impl fmt::Display for InGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pair) in self.0.0.chunks_exact(2).enumerate() {
            if index > 0 {
                f.write_str(":")?;
            }
            write!(f, "{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn ipv4_is_mapped_and_returns() {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
        let gid = Gid::from(ip);
        assert_eq!(gid.to_string(), "10.9.0.1", "what users type");
        assert_eq!(gid.in_groups().to_string(), "0000:0000:0000:0000:0000:ffff:0a09:0001");
        assert!(gid.is_ipv4());
        assert_eq!(gid.to_ip(), ip);
    }

    #[test]
    fn what_is_displayed_is_read_back() {
        for text in ["10.9.0.1", "fe80::1", "::", "2001:db8::7"] {
            let gid: Gid = text.parse().unwrap();
            assert_eq!(gid.to_string(), text);
            assert_eq!(gid.in_groups().to_string().parse(), Ok(gid));
        }
        // All that a device may have, not only what addresses begin with.
        for seed in 0..1_000_u32 {
            let bytes =
                core::array::from_fn(|at| (seed.wrapping_mul(2_654_435_761) >> (at % 4 * 8)) as u8);
            assert_eq!(Gid(bytes).to_string().parse(), Ok(Gid(bytes)));
        }
        for text in ["", "10.9.0", "10.9.0.1:4791", "localhost"] {
            assert_eq!(text.parse::<Gid>(), Err(GidParseError), "{text}");
        }
    }

    #[test]
    fn ipv6_stays_ipv6() {
        let ip: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(Gid::from(ip).to_ip(), ip);
        assert_eq!(Gid::from(ip).to_string(), "fe80::1");
        assert!(!Gid::from(ip).is_ipv4());
    }
}
