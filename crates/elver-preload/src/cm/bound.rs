//! What an id has of a port: one address or all, and of its own family alone or of both (`rdma_bind_addr(3)`,
//! `RDMA_OPTION_ID_AFONLY`).

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::str::FromStr;

/// A port's address, as an id is bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    ip: IpAddr,
    /// It leaves its port to addresses of the other family, and is reached by none of them.
    own_family_only: bool,
}

impl Bound {
    /// At an address, or at all of them, of one family alone if the program says so, and else as the kernel has it.
    /// An address of IPv4 that is written as one of IPv6 is IPv4's.
    pub(crate) fn new(ip: IpAddr, own_family_only: Option<bool>) -> Bound {
        let ip = ip.to_canonical();
        let own_family_only = own_family_only.unwrap_or_else(|| ip.is_ipv4() || is_v6_alone());
        Bound { ip, own_family_only }
    }

    /// Whether it is at all addresses.
    pub(crate) fn is_any(&self) -> bool {
        self.ip.is_unspecified()
    }

    /// The address that a listener's peers are to name (`elver_cm::Service::address`).
    pub(crate) fn service_address(&self) -> Option<IpAddr> {
        (self.own_family_only || !self.is_any()).then_some(self.ip)
    }

    /// Whether of the two one is at all addresses, so that the other has none of its own.
    pub(crate) fn shuts_out(&self, other: &Bound) -> bool {
        let are_apart = self.own_family_only && other.own_family_only;
        let is_apart = are_apart && self.ip.is_ipv4() != other.ip.is_ipv4();
        !is_apart && (self.is_any() || other.is_any())
    }

    /// The same, or whether both have one address.
    pub(crate) fn is_same_or_shuts_out(&self, other: &Bound) -> bool {
        self.ip == other.ip || self.shuts_out(other)
    }

    /// How well who is bound so is meant by an address: best by its own, then by those of its family, then by any.
    pub(crate) fn suits(&self, wanted: IpAddr) -> Option<u8> {
        let wanted = wanted.to_canonical();
        let is_of_family = self.ip.is_ipv4() == wanted.is_ipv4();
        match self.is_any() {
            _ if self.ip == wanted => Some(3),
            true if is_of_family => Some(2),
            true if !self.own_family_only => Some(1),
            _ => None,
        }
    }
}

/// What the system has for those that do not say it.
fn is_v6_alone() -> bool {
    fs::read("/proc/sys/net/ipv6/bindv6only").is_ok_and(|said| said.first() == Some(&b'1'))
}

/// As it stands in names: the address, and a plus if it has its port in both families.
impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.ip, if self.own_family_only { "" } else { "+" })
    }
}

impl FromStr for Bound {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Bound, Self::Err> {
        let (ip, own_family_only) = text.strip_suffix('+').map_or((text, true), |ip| (ip, false));
        Ok(Bound { ip: ip.parse()?, own_family_only })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(text: &str) -> Bound {
        let bound: Bound = text.parse().unwrap();
        assert_eq!(bound.to_string(), text);
        bound
    }

    /// As `cma_check_port` of the kernel's has it.
    #[test]
    fn who_is_at_all_addresses_shuts_out_those_of_its_families() {
        let shuts_out = |one: &str, other: &str| {
            let shuts_out = bound(one).shuts_out(&bound(other));
            assert_eq!(bound(other).shuts_out(&bound(one)), shuts_out);
            shuts_out
        };
        assert!(shuts_out("0.0.0.0", "10.0.0.1") && shuts_out("0.0.0.0", "0.0.0.0"));
        assert!(!shuts_out("10.0.0.2", "10.0.0.1") && !shuts_out("fd00::1+", "10.0.0.1"));
        assert!(!shuts_out("0.0.0.0", "::") && !shuts_out("0.0.0.0", "fd00::1"));
        assert!(shuts_out("0.0.0.0", "::+") && shuts_out("0.0.0.0", "fd00::1+"));
        assert!(shuts_out("0.0.0.0+", "::") && shuts_out("::+", "10.0.0.1"));
        assert!(!shuts_out("::", "10.0.0.1"));
    }

    #[test]
    fn an_address_means_who_has_it_before_who_has_all() {
        let suits = |text: &str, wanted: &str| bound(text).suits(wanted.parse().unwrap());
        assert_eq!(suits("10.0.0.1", "10.0.0.1"), Some(3));
        assert_eq!(suits("10.0.0.1", "::ffff:10.0.0.1"), Some(3));
        assert_eq!(suits("10.0.0.1", "10.0.0.2"), None);
        assert_eq!(suits("0.0.0.0", "10.0.0.1"), Some(2));
        assert_eq!(suits("0.0.0.0", "fd00::1"), None);
        assert_eq!(suits("::+", "fd00::1"), Some(2));
        assert_eq!(suits("::+", "10.0.0.1"), Some(1));
        assert_eq!(suits("::", "10.0.0.1"), None);
    }

    #[test]
    fn who_says_nothing_has_both_families_by_an_address_of_version_6() {
        let named = |ip: &str, only| Bound::new(ip.parse().unwrap(), only).to_string();
        assert_eq!(named("10.0.0.1", None), "10.0.0.1");
        assert_eq!(named("::ffff:10.0.0.1", None), "10.0.0.1");
        assert_eq!(named("0.0.0.0", Some(false)), "0.0.0.0+");
        assert_eq!(named("::", Some(true)), "::");
        assert_eq!(named("::", None), if is_v6_alone() { "::" } else { "::+" });
        let peers_name = |text: &str| bound(text).service_address().map(|ip| ip.to_string());
        assert_eq!(peers_name("::+"), None);
        assert_eq!(peers_name("::").as_deref(), Some("::"));
        assert_eq!(peers_name("fd00::1+").as_deref(), Some("fd00::1"));
    }
}
