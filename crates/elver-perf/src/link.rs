//! `--link`: what a device's packets travel over.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::str::FromStr;

use clap::Args;
use elver_console::Failure;
use elver_soft::{FrameLink, FrameSocket, LocalAddress, Mac};

/// Descriptors below this are standard input, output and error.
const FD_MIN: RawFd = 3;

/// The link of a device.
#[derive(Clone, Debug, Args)]
pub struct LinkArgs {
    /// What packets travel over: `udp`, the kernel's UDP on an address of this host; or Ethernet
    /// frames, one in each message: `fd:N`, a datagram socket or tap device that this process
    /// inherits (User Mode Linux's transport=fd); `dgram:LOCAL:PORT,REMOTE:PORT`, UDP datagrams
    /// (qemu's -netdev dgram or socket,udp=). The device is then a station of that link and needs
    /// --local.
    #[arg(long, default_value = "udp", help_heading = "Link")]
    link: LinkKind,
    /// Address of the device on a frame link, with its prefix: 10.9.0.2/24. May be repeated; the
    /// first is the one that is used.
    #[arg(long, value_name = "ADDR/PREFIX", help_heading = "Link")]
    local: Vec<LocalAddress>,
    /// MAC address of the device on a frame link; by default it follows from --local.
    #[arg(long, help_heading = "Link")]
    mac: Option<Mac>,
    /// Router on a frame link, for peers of other networks.
    #[arg(long, value_name = "ADDR", help_heading = "Link")]
    gateway: Vec<IpAddr>,
    /// MTU of a frame link in bytes; a path MTU of 4,096 needs 4,216.
    #[arg(long, value_name = "BYTES", default_value_t = 9000, help_heading = "Link")]
    link_mtu: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkKind {
    Udp,
    Fd(RawFd),
    Dgram { local: SocketAddr, remote: SocketAddr },
}

impl LinkArgs {
    /// Opens the frame link that was asked for; none where packets travel over the kernel's UDP.
    ///
    /// # Errors
    ///
    /// [`Failure::Unusable`] for arguments that do not go together; else what the system says of the interface.
    pub fn open(&self) -> Result<Option<FrameLink>, Failure> {
        if self.link == LinkKind::Udp {
            if !self.local.is_empty() || self.mac.is_some() || !self.gateway.is_empty() {
                return Err(Failure::unusable(
                    "--local, --mac and --gateway are a frame link's: name it with --link",
                ));
            }
            return Ok(None);
        }
        if self.local.is_empty() {
            return Err(Failure::unusable(
                "a device on a frame link needs an address of its own, as in --local 10.9.0.2/24",
            ));
        }
        let socket = match self.link {
            LinkKind::Dgram { local, remote } => FrameSocket::udp(local, remote)?,
            // SAFETY: the number is none of the standard streams', and nothing in this process has
            // opened a descriptor that it still holds: commands open their link first.
            LinkKind::Fd(number) => unsafe { FrameSocket::inherited(number) }?,
            LinkKind::Udp => return Ok(None),
        };
        Ok(Some(FrameLink {
            mac: self.mac,
            gateways: self.gateway.clone(),
            mtu: self.link_mtu,
            ..FrameLink::new(socket, self.local.clone())
        }))
    }
}

impl FromStr for LinkKind {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkKind, String> {
        let refused = "it is one of udp, fd:N and dgram:LOCAL:PORT,REMOTE:PORT";
        if text == "udp" {
            return Ok(LinkKind::Udp);
        }
        if let Some(number) = text.strip_prefix("fd:") {
            let number = number.parse().map_err(|_| format!("{refused}; N is a number"))?;
            if number < FD_MIN {
                return Err(format!("descriptor {number} is a standard stream"));
            }
            return Ok(LinkKind::Fd(number));
        }
        let ends = text.strip_prefix("dgram:").and_then(|ends| ends.split_once(','));
        let (local, remote) = ends.ok_or(refused)?;
        let address = |text: &str| {
            text.parse::<SocketAddr>()
                .map_err(|_| format!("{text} is no address with a port, as in 127.0.0.1:7001"))
        };
        let (local, remote) = (address(local)?, address(remote)?);
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(format!("{local} and {remote} are not of one IP version"));
        }
        Ok(LinkKind::Dgram { local, remote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read() {
        assert_eq!("udp".parse(), Ok(LinkKind::Udp));
        assert_eq!("fd:3".parse(), Ok(LinkKind::Fd(3)));
        let dgram = LinkKind::Dgram {
            local: "127.0.0.1:7001".parse().unwrap(),
            remote: "127.0.0.1:7002".parse().unwrap(),
        };
        assert_eq!("dgram:127.0.0.1:7001,127.0.0.1:7002".parse(), Ok(dgram));
    }

    #[test]
    fn what_is_no_link_is_refused() {
        for text in [
            "",
            "tcp",
            "fd:",
            "fd:-1",
            "fd:2",
            "fd:99999999999",
            "dgram:",
            "dgram:127.0.0.1:7001",
            "dgram:127.0.0.1,127.0.0.1:7002",
            "dgram:127.0.0.1:7001,[::1]:7002",
        ] {
            assert!(text.parse::<LinkKind>().is_err(), "{text}");
        }
    }
}
