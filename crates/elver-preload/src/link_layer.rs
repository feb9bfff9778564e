//! A port that is InfiniBand's, for programs that know their peers by LIDs alone, as from before RoCE: there a LID is the last
//! 16 bits of a device's address, and the bits before them are the subnet's, which peers have in common.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use elver_verbs::Gid;

const VARIABLE: &str = "ELVER_LINK_LAYER";
/// Those of ports: 0 is nobody's, and what comes behind is multicast's.
pub(crate) const UNICAST: RangeInclusive<u16> = 1..=0xbfff;

static OWN: OnceLock<Result<bool, String>> = OnceLock::new();

fn read(told: Option<OsString>) -> Result<bool, String> {
    let Some(text) = told else { return Ok(false) };
    match text.to_str() {
        Some("ethernet") => Ok(false),
        Some("infiniband") => Ok(true),
        _ => Err(format!("{VARIABLE} is {text:?}; give \"ethernet\" or \"infiniband\"")),
    }
}

/// What the environment says, once a process.
pub(crate) fn told() -> Result<bool, String> {
    OWN.get_or_init(|| read(std::env::var_os(VARIABLE))).clone()
}

/// Whether the port is InfiniBand's. A device whose link layer was not understood is never opened.
pub(crate) fn is_infiniband() -> bool {
    matches!(OWN.get_or_init(|| read(std::env::var_os(VARIABLE))), Ok(true))
}

/// The last 16 bits of an address.
fn end(address: IpAddr) -> u16 {
    let (high, low) = match address {
        IpAddr::V4(four) => (four.octets()[2], four.octets()[3]),
        IpAddr::V6(six) => (six.octets()[14], six.octets()[15]),
    };
    u16::from_be_bytes([high, low])
}

/// Whether a port of this link layer can have an address.
pub(crate) fn suits(address: IpAddr) -> Result<(), String> {
    if !is_infiniband() || UNICAST.contains(&end(address)) {
        return Ok(());
    }
    Err(format!(
        "an InfiniBand port's LID is the last 16 bits of its address, and those of {address} are none; give one whose are \
         {:#x} to {:#x}, as 10.0.0.1 to 10.0.191.255",
        UNICAST.start(),
        UNICAST.end()
    ))
}

/// The LID of who has an address; on Ethernet nobody has one.
pub(crate) fn lid_at(address: IpAddr) -> u16 {
    if is_infiniband() { end(address) } else { 0 }
}

/// The same of a GID.
pub(crate) fn lid_of(gid: &Gid) -> u16 {
    if is_infiniband() { end(gid.to_ip()) } else { 0 }
}

/// Who has a LID in the subnet of this address.
fn beside(own: IpAddr, lid: u16) -> IpAddr {
    let [high, low] = lid.to_be_bytes();
    match own {
        IpAddr::V4(four) => {
            let [a, b, ..] = four.octets();
            Ipv4Addr::new(a, b, high, low).into()
        }
        IpAddr::V6(six) => {
            let mut octets = six.octets();
            (octets[14], octets[15]) = (high, low);
            Ipv6Addr::from(octets).into()
        }
    }
}

/// Where a LID leads from this device's address; on Ethernet, and if it is no port's, nowhere.
pub(crate) fn to(own: IpAddr, lid: u16) -> Option<IpAddr> {
    (is_infiniband() && UNICAST.contains(&lid)).then(|| beside(own, lid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_link_layer_is_named() {
        assert_eq!(read(None), Ok(false));
        assert_eq!(read(Some("ethernet".into())), Ok(false));
        assert_eq!(read(Some("infiniband".into())), Ok(true));
        let refused = "ELVER_LINK_LAYER is \"ib\"; give \"ethernet\" or \"infiniband\"";
        assert_eq!(read(Some("ib".into())), Err(refused.to_string()));
    }

    #[test]
    fn a_lid_is_the_end_of_an_address() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(end(address("10.78.13.1")), 0x0d01);
        assert_eq!(beside(address("10.78.13.1"), 0x0d02), address("10.78.13.2"));
        assert_eq!(end(address("2001:db8::1:2")), 2);
        assert_eq!(beside(address("2001:db8::1:2"), 0x1003), address("2001:db8::1:1003"));
    }
}
