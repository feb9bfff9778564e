//! What stands in the file: a record for each connection, all of one size.

use std::net::IpAddr;

use elver_wire::cm::MAD_LEN;

/// Connections of a process of which is told; there may be more.
pub const RECORDS_MAX: usize = 4096;
/// A power of two, so that none crosses a page: the kernel copies within a page all or nothing of it.
pub(crate) const RECORD: usize = 512;
const ADDRESS: usize = 1;
const MAD: usize = 32;

/// A message that ends a connection, and where the peer's device is.
pub(crate) type Farewell = (IpAddr, [u8; MAD_LEN]);

/// An address in 17 bytes: its version, and itself.
pub(crate) fn of_address(address: IpAddr) -> [u8; 17] {
    let mut bytes = [0; 17];
    match address {
        IpAddr::V4(v4) => {
            bytes[0] = 4;
            bytes[ADDRESS..ADDRESS + 4].copy_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            bytes[0] = 6;
            bytes[ADDRESS..].copy_from_slice(&v6.octets());
        }
    }
    bytes
}

/// The reverse of [`of_address`]; none if there is none.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let (version, rest) = bytes.split_first()?;
    match version {
        4 => rest.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        6 => rest.first_chunk::<16>().map(|octets| IpAddr::from(*octets)),
        _ => None,
    }
}

pub(crate) fn write(farewell: Option<&Farewell>) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    if let Some((peer, mad)) = farewell {
        record[..17].copy_from_slice(&of_address(*peer));
        record[MAD..MAD + MAD_LEN].copy_from_slice(mad);
    }
    record
}

pub(crate) fn read(record: &[u8; RECORD]) -> Option<Farewell> {
    Some((address(record)?, *record[MAD..].first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for peer in ["10.1.2.3", "fd00::7"] {
            let farewell = (peer.parse().unwrap(), [9; MAD_LEN]);
            assert_eq!(read(&write(Some(&farewell))), Some(farewell));
        }
        assert_eq!(read(&write(None)), None);
        assert_eq!(read(&[5; RECORD]), None);
    }
}
