use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::CmError;
use crate::bytes::u16_at;

/// The service that listens on a port of a port space (IBTA vol. 1, A11.2): `0x0106` for TCP's,
/// `0x0111` for UDP's.
pub const fn service_id(port_space: u16, port: u16) -> u64 {
    (port_space as u64) << 16 | port as u64
}

/// What the private data of a REQ or SIDR_REQ of rdma_cm's begins with (IBTA vol. 1, A11.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The sender's port.
    pub src_port: u16,
    /// The sender's address.
    pub src: IpAddr,
    /// The address that it connects to.
    pub dst: IpAddr,
}

impl IpHeader {
    /// Bytes of it.
    pub const LEN: usize = 36;

    /// The header of some private data; the program's own follows it.
    ///
    /// # Errors
    /// [`CmError::IpHeader`] if it is too short, or of another version, or of no IP version.
    pub fn parse(private: &[u8]) -> Result<IpHeader, CmError> {
        let bytes: &[u8; IpHeader::LEN] = private.first_chunk().ok_or(CmError::IpHeader)?;
        let version = bytes[1] >> 4;
        if bytes[0] != 0 {
            return Err(CmError::IpHeader);
        }
        let address = |at: usize| -> Option<IpAddr> {
            let (front, v4) = bytes[at..at + 16].split_at(12);
            match version {
                4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(v4).ok()?).into()),
                6 => {
                    let mut all = [0; 16];
                    all[..12].copy_from_slice(front);
                    all[12..].copy_from_slice(v4);
                    Some(Ipv6Addr::from(all).into())
                }
                _ => None,
            }
        };
        let (src, dst) = (address(4), address(20));
        let (Some(src), Some(dst)) = (src, dst) else { return Err(CmError::IpHeader) };
        Ok(IpHeader { src_port: u16_at(bytes, 2), src, dst })
    }

    /// Its bytes. Addresses of two versions are written as IPv6.
    pub fn bytes(&self) -> [u8; IpHeader::LEN] {
        let mut bytes = [0; IpHeader::LEN];
        bytes[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes[1] = 4 << 4;
                bytes[16..20].copy_from_slice(&src.octets());
                bytes[32..36].copy_from_slice(&dst.octets());
            }
            (src, dst) => {
                let octets = |address| match address {
                    IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4).octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                bytes[1] = 6 << 4;
                bytes[4..20].copy_from_slice(&octets(src));
                bytes[20..36].copy_from_slice(&octets(dst));
            }
        }
        bytes
    }
}
