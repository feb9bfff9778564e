//! What a frame link is opened with.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use elver_verbs::VerbsError;

use crate::SoftError;
use crate::frames::{FrameSocket, Mac};

/// Smallest and largest MTU of a link in bytes.
const MTU_RANGE: (u32, u32) = (256, 65_520);

/// A link that carries Ethernet frames, one in each message of a socket or of a tap device: the
/// device is then a station of that link, with addresses of its own.
#[derive(Clone, Debug)]
pub struct FrameLink {
    /// What carries the frames.
    pub socket: FrameSocket,
    /// Our addresses with their networks, at least one. They become the GID table, in this order.
    pub addresses: Vec<LocalAddress>,
    /// Our MAC address; by default [`Mac::for_address`] of the first IP address.
    pub mac: Option<Mac>,
    /// Routers on the link, at most one for each IP version: where packets for other networks go.
    pub gateways: Vec<IpAddr>,
    /// Longest IP packet in bytes, 256 to 65,520; frames are 14 bytes longer. The device's path MTU
    /// follows from it: 4,096 needs 4,196 over IPv4 and 4,216 over IPv6.
    pub mtu: u32,
    /// Most neighbours that are remembered. The one that was longest of no use makes room.
    pub neighbours_max: usize,
    /// Most bytes of frames that wait for a neighbour's MAC address, a quarter of them for a single
    /// neighbour; and most that wait for room in the socket. What comes beyond is dropped and
    /// counted.
    pub queue_bytes_max: usize,
}

impl FrameLink {
    /// A link with the default limits: MTU 9,000, 256 neighbours, 1 MiB for each queue.
    pub fn new(socket: FrameSocket, addresses: Vec<LocalAddress>) -> FrameLink {
        FrameLink {
            socket,
            addresses,
            mac: None,
            gateways: Vec::new(),
            mtu: 9_000,
            neighbours_max: 256,
            queue_bytes_max: 1 << 20,
        }
    }

    /// The MAC address that it has or gets.
    pub fn station(&self) -> Mac {
        let first = self.addresses.first().map(|first| Mac::for_address(first.ip));
        self.mac.or(first).unwrap_or_default()
    }

    /// Checks what does not go together.
    pub(crate) fn validate(&self) -> Result<(), SoftError> {
        let refuse = |what: String| Err(SoftError::FrameLink { what });
        if self.addresses.is_empty() {
            return refuse("it has no address; give one with its prefix, as in 10.9.0.2/24".into());
        }
        for LocalAddress { ip, .. } in &self.addresses {
            let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
            if ip.is_unspecified() || ip.is_multicast() || broadcast {
                return refuse(format!("{ip} is not the address of one station"));
            }
        }
        for (index, gateway) in self.gateways.iter().enumerate() {
            if !self.addresses.iter().any(|local| local.contains(*gateway)) {
                return refuse(format!("the gateway {gateway} is in no network of its addresses"));
            }
            if self.addresses.iter().any(|local| local.ip == *gateway) {
                return refuse(format!("the gateway {gateway} is its own address"));
            }
            let earlier = &self.gateways[..index];
            if let Some(other) = earlier.iter().find(|ip| ip.is_ipv4() == gateway.is_ipv4()) {
                return refuse(format!("{other} and {gateway}: one gateway an IP version"));
            }
        }
        let mac = self.station();
        if !mac.is_unicast() {
            return refuse(format!("the MAC address {mac} does not name one station"));
        }
        let (min, max) = MTU_RANGE;
        if self.mtu < min || self.mtu > max {
            return refuse(format!("its MTU of {} is not within {min} to {max}", self.mtu));
        }
        Ok(())
    }
}

/// An address of ours and how much of it names its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    prefix: u8,
}

impl LocalAddress {
    /// An address whose first `prefix` bits name its network.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`] if the address is shorter than that.
    pub fn new(ip: IpAddr, prefix: u8) -> Result<LocalAddress, VerbsError> {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            let (value, max) = (u64::from(prefix), u64::from(bits));
            return Err(VerbsError::OutOfRange { name: "prefix length", value, min: 0, max });
        }
        Ok(LocalAddress { ip, prefix })
    }

    /// How many leading bits name the network.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether an address is of the same network.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differs = u32::from(own) ^ u32::from(other);
                differs.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differs = u128::from(own) ^ u128::from(other);
                differs.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for LocalAddress {
    type Err = VerbsError;

    /// An address, a slash and the length of the prefix in bits, as in `10.9.0.2/24`.
    fn from_str(text: &str) -> Result<LocalAddress, VerbsError> {
        let parts = text
            .split_once('/')
            .and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
        let (ip, prefix) = parts.ok_or(VerbsError::InvalidArgument {
            what: "a local address is an IP address with its prefix, as in 10.9.0.2/24",
        })?;
        LocalAddress::new(ip, prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_told_apart() {
        let local: LocalAddress = "10.9.0.2/24".parse().unwrap();
        assert!(local.contains("10.9.0.77".parse().unwrap()));
        assert!(!local.contains("10.9.1.77".parse().unwrap()));
        assert!(!local.contains("fd00::1".parse().unwrap()));
        let all: LocalAddress = "fd00::1/0".parse().unwrap();
        assert!(all.contains("::2".parse().unwrap()));
        let one: LocalAddress = "fd00::1/128".parse().unwrap();
        assert!(one.contains(one.ip) && !one.contains("fd00::2".parse().unwrap()));
        assert_eq!(one.to_string(), "fd00::1/128");
    }

    #[test]
    fn what_is_no_local_address_is_refused() {
        for nonsense in ["10.9.0.2", "10.9.0.2/33", "10.9.0.2/-1", "fd00::1/129", "/24", "x/1"] {
            assert!(nonsense.parse::<LocalAddress>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_its_reason() {
        let (socket, _peer) = FrameSocket::pair().unwrap();
        let link = FrameLink::new(socket, vec!["10.9.0.2/24".parse().unwrap()]);
        link.validate().unwrap();
        let refusal = |change: &dyn Fn(&mut FrameLink)| {
            let mut link = link.clone();
            change(&mut link);
            link.validate().unwrap_err().to_string()
        };
        let gateways = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect();
        assert!(refusal(&|link| link.addresses.clear()).contains("10.9.0.2/24"));
        let group = || "224.0.0.1/4".parse().unwrap();
        assert!(refusal(&|link| link.addresses.push(group())).contains("224.0.0.1"));
        assert!(refusal(&|link| link.gateways = gateways(&["10.8.0.1"])).contains("10.8.0.1"));
        assert!(refusal(&|link| link.gateways = gateways(&["10.9.0.2"])).contains("its own"));
        let two = ["10.9.0.1", "10.9.0.3"];
        assert!(refusal(&|link| link.gateways = gateways(&two)).contains("one gateway"));
        assert!(refusal(&|link| link.mac = Some(Mac::BROADCAST)).contains("ff:ff"));
        assert!(refusal(&|link| link.mtu = 255).contains("255"));
        assert!(refusal(&|link| link.mtu = 65_521).contains("65521"));
    }
}
