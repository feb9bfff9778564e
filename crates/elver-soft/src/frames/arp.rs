//! ARP (RFC 826): IPv4 addresses into Ethernet's.

use std::net::Ipv4Addr;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetProtocol};

use crate::frames::counters::FrameDrop;
use crate::frames::ethernet::{self, FRAME_MIN, Mac};

/// An ARP message: who says or asks what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arp {
    /// It asks for the target's MAC address; otherwise it answers.
    pub(crate) request: bool,
    pub(crate) sender: Ipv4Addr,
    pub(crate) sender_mac: Mac,
    pub(crate) target: Ipv4Addr,
    pub(crate) target_mac: Mac,
}

impl Arp {
    /// Reads what stands behind the Ethernet header.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Arp, FrameDrop> {
        let packet = ArpPacket::new_checked(bytes).map_err(|_| FrameDrop::Truncated)?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_hardware_addr,
            target_protocol_addr,
        } = ArpRepr::parse(&packet).map_err(|_| FrameDrop::Neighbour)?
        else {
            return Err(FrameDrop::Neighbour);
        };
        let request = match operation {
            ArpOperation::Request => true,
            ArpOperation::Reply => false,
            ArpOperation::Unknown(_) => return Err(FrameDrop::Neighbour),
        };
        Ok(Arp {
            request,
            sender: source_protocol_addr,
            sender_mac: source_hardware_addr.into(),
            target: target_protocol_addr,
            target_mac: target_hardware_addr.into(),
        })
    }

    /// The frame that carries it to `to`.
    pub(crate) fn frame(&self, to: Mac) -> Vec<u8> {
        let message = ArpRepr::EthernetIpv4 {
            operation: if self.request { ArpOperation::Request } else { ArpOperation::Reply },
            source_hardware_addr: self.sender_mac.into(),
            source_protocol_addr: self.sender,
            target_hardware_addr: self.target_mac.into(),
            target_protocol_addr: self.target,
        };
        let len = ethernet::HEADER_LEN + message.buffer_len();
        let mut frame = vec![0; len.max(FRAME_MIN)];
        ethernet::write_header(&mut frame, to, self.sender_mac, EthernetProtocol::Arp);
        message.emit(&mut ArpPacket::new_unchecked(&mut frame[ethernet::HEADER_LEN..len]));
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_parses_to_the_same(
            request in any::<bool>(),
            (sender, target) in any::<([u8; 4], [u8; 4])>(),
            (sender_mac, target_mac) in any::<([u8; 6], [u8; 6])>(),
        ) {
            let arp = Arp {
                request,
                sender: sender.into(),
                sender_mac: Mac(sender_mac),
                target: target.into(),
                target_mac: Mac(target_mac),
            };
            let frame = arp.frame(Mac::BROADCAST);
            prop_assert_eq!(frame.len(), FRAME_MIN);
            prop_assert_eq!(Arp::parse(&frame[ethernet::HEADER_LEN..]), Ok(arp));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Arp::parse(&bytes);
        }

        #[test]
        fn no_almost_right_bytes_panic(
            len in 0usize..40,
            at in 0usize..28,
            byte in any::<u8>(),
        ) {
            let mut bytes = [0; 40];
            bytes[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
            bytes[at] = byte;
            let _ = Arp::parse(&bytes[..len]);
        }
    }
}
