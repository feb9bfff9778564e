//! What a device is opened on: a UDP socket or a frame link, to which the RNIC is fitted.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use elver_rnic::{Config, Seed};
use elver_verbs::{Mtu, VerbsError};
use elver_wire::{HEADERS_MAX, ICRC_LEN};

use super::config::SoftConfig;
use crate::SoftError;
use crate::frames::{FrameLink, FramePort};
use crate::interface::Interface;
use crate::link::UdpPort;
use crate::transmit::Transmitter;
use crate::udp::UdpIo;

/// ECT(0) (RFC 3168): what packets carry unless a QP asks for another traffic class.
const TRAFFIC_CLASS: u8 = 0b10;

/// Binds a UDP socket to the first address, and fits the RNIC to its interface, whose index it tells.
pub(super) fn open_udp(config: &SoftConfig) -> Result<(UdpPort, Config, u32), SoftError> {
    let mut rnic = config.rnic.clone();
    let Some(&address) = rnic.addresses.first() else {
        return Err(no_address());
    };
    let bound = SocketAddr::new(address, rnic.udp_port);
    let (rcvbuf, sndbuf) = (config.rcvbuf, config.sndbuf);
    let io = UdpIo::bind(bound, rcvbuf, sndbuf, config.gso, config.gro, TRAFFIC_CLASS)?;
    let interface = Interface::of(address, io.as_fd())?;
    rnic.active_mtu = rnic.active_mtu.min(path_mtu(&interface.name, interface.mtu, address)?);
    if rnic.node_guid == 0 {
        rnic.node_guid = interface.eui64(address);
    }
    if address.is_ipv6() {
        io.multicast_over(interface.index)?;
    }
    let transmitter = Transmitter::new(address);
    Ok((UdpPort { io, transmitter, address }, rnic, interface.index))
}

/// Opens a frame link, and fits the RNIC to it.
pub(super) fn open_frames(
    config: &SoftConfig,
    link: &FrameLink,
) -> Result<(FramePort, Config), SoftError> {
    link.validate()?;
    let mut rnic = config.rnic.clone();
    rnic.addresses = link.addresses.iter().map(|local| local.ip).collect();
    for &address in &rnic.addresses {
        rnic.active_mtu = rnic.active_mtu.min(path_mtu("of frames", link.mtu, address)?);
    }
    if rnic.node_guid == 0 {
        rnic.node_guid = link.station().eui64();
    }
    let port = FramePort::open(link.clone(), rnic.udp_port, config.rcvbuf, config.sndbuf)?;
    Ok((port, rnic))
}

pub(super) fn no_address() -> SoftError {
    let what = "a device needs an address; set Config::addresses";
    VerbsError::InvalidArgument { what }.into()
}

/// The largest path MTU of a device at an address of this host; none if no interface has the address.
pub fn path_mtu_of(address: IpAddr) -> Option<Mtu> {
    let socket = UdpSocket::bind((address, 0)).ok()?;
    let interface = Interface::of(address, socket.as_fd()).ok()?;
    path_mtu(&interface.name, interface.mtu, address).ok()
}

/// The largest path MTU that an interface carries.
fn path_mtu(interface: &str, mtu: u32, address: IpAddr) -> Result<Mtu, SoftError> {
    let ip = if address.is_ipv4() { 20 } else { 40 };
    let overhead = (ip + 8 + HEADERS_MAX + ICRC_LEN) as u32;
    Mtu::at_most(mtu.saturating_sub(overhead)).ok_or_else(|| SoftError::Mtu {
        interface: interface.to_string(),
        mtu,
        needed: Mtu::Mtu256.bytes() + overhead,
    })
}

/// A seed from the operating system's generator.
pub(super) fn seed() -> Result<Seed, SoftError> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| SoftError::System { call: "getrandom", reason: error.into() })?;
    Ok(bytes.into())
}
