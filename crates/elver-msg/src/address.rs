use std::fmt;
use std::str::FromStr;

use elver::Gid;

/// Where a rank, or a rendezvous, is met: a node, and a port of it. As text `[GID]:PORT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Address {
    /// The node.
    pub gid: Gid,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}", self.gid, self.port)
    }
}

/// Text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address is [GID]:PORT, as in [::ffff:192.0.2.1]:7")]
pub struct NoAddress;

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Address, NoAddress> {
        let (gid, port) =
            text.strip_prefix('[').and_then(|rest| rest.split_once("]:")).ok_or(NoAddress)?;
        let (gid, port) = (gid.parse().ok(), port.parse().ok());
        gid.zip(port).map(|(gid, port)| Address { gid, port }).ok_or(NoAddress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let ip: std::net::IpAddr = "192.0.2.1".parse().unwrap();
        let address = Address { gid: Gid::from(ip), port: 4_711 };
        assert_eq!(address.to_string().parse(), Ok(address));
        for wrong in ["", "[]:1", "[::1]", "[::1]:65536", "::1:7", "[::1]:7 "] {
            assert_eq!(wrong.parse::<Address>(), Err(NoAddress), "{wrong:?}");
        }
    }
}
