//! How a device is opened.

use std::net::IpAddr;
use std::path::PathBuf;

use elver_rnic::Config;

use crate::faults::Faults;
use crate::frames::FrameLink;
use crate::link::Link;

/// How a soft device is opened.
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// The RNIC itself. Its first address is the one that a UDP socket is bound to; a frame link
    /// brings its own addresses, and these are overwritten. The path MTU and the GUID are taken
    /// from the interface or the frame link.
    pub rnic: Config,
    /// What packets travel over.
    pub link: Link,
    /// Whether trains leave in one piece where the kernel can cut them (UDP GSO).
    pub gso: bool,
    /// Whether trains arrive in one piece where the kernel can join them (UDP GRO).
    pub gro: bool,
    /// Receive buffer of the socket in bytes. Beyond the system's limit it needs CAP_NET_ADMIN.
    pub rcvbuf: usize,
    /// Send buffer of the socket in bytes, likewise.
    pub sndbuf: usize,
    /// A pcapng file that every packet is written to.
    pub capture: Option<PathBuf>,
    /// Most bytes of the capture file; what comes later is not recorded.
    pub capture_bytes_max: u64,
    /// Whether other processes can read the counters.
    pub publish: bool,
    /// What befalls the packets that arrive, to see how it is borne.
    pub faults: Faults,
}

impl SoftConfig {
    /// The default configuration for an address of this host.
    pub fn for_address(address: IpAddr) -> SoftConfig {
        SoftConfig {
            rnic: Config::for_address(address),
            link: Link::Udp,
            gso: true,
            gro: true,
            rcvbuf: 8 << 20,
            sndbuf: 4 << 20,
            capture: None,
            capture_bytes_max: 1 << 30,
            publish: true,
            faults: Faults::default(),
        }
    }

    /// The default configuration for a station of an Ethernet link.
    pub fn for_frames(link: FrameLink) -> SoftConfig {
        let address = link.addresses.first().map_or(IpAddr::from([0; 4]), |first| first.ip);
        SoftConfig { link: Link::Frames(link), ..SoftConfig::for_address(address) }
    }
}
