//! Records of the packets of a capture, in classic pcap or pcapng.

use std::io::Read;
use std::net::Ipv4Addr;

use pcap_parser::{Block, Linktype, PcapBlockOwned, PcapError, create_reader};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet};

use crate::flows::{Flow, Record};

/// What a capture holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// Of its IPv4 packets, in their order. Times count from the first.
    pub records: Vec<Record>,
    /// Other packets, and those that were captured without their head.
    pub skipped: u64,
}

/// Why a capture could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file, or it may not be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It is none, or broken.
    #[error("the capture cannot be read after {after} packets: {why}")]
    Broken {
        /// Packets that were read before.
        after: u64,
        /// What the reader says.
        why: String,
    },
    /// Its frames are of another kind than Ethernet's or plain IP's.
    #[error(
        "frames of link type {0} are not understood: capture Ethernet (1) or raw IP (101, 228)"
    )]
    LinkType(i32),
    /// It has more packets than were asked for at most.
    #[error("it has more than the {0} packets that are read at most")]
    TooMany(usize),
}

/// Bytes that are read at once; a block must fit.
const BUFFER: usize = 1 << 20;
const NS: u64 = 1_000_000_000;

/// Reads a capture of `most` packets at most.
///
/// # Errors
/// It is no capture, a broken one, one of frames that are not understood, or one with more packets.
pub fn read(from: impl Read + Send + Sync + 'static, most: usize) -> Result<Capture, Error> {
    let broken =
        |after: u64, why: &dyn std::fmt::Debug| Error::Broken { after, why: format!("{why:?}") };
    let mut reader = create_reader(BUFFER, from).map_err(|error| broken(0, &error))?;
    let mut reading = Reading::default();
    loop {
        let used = match reader.next() {
            Ok((used, block)) => {
                reading.take(&block)?;
                used
            }
            Err(PcapError::Eof) => return Ok(reading.capture),
            Err(PcapError::Incomplete(_)) => {
                reader.refill().map_err(|error| broken(reading.seen(), &error))?;
                continue;
            }
            Err(error) => return Err(broken(reading.seen(), &error)),
        };
        reader.consume(used);
        if reading.capture.records.len() > most {
            return Err(Error::TooMany(most));
        }
    }
}

/// An interface whose packets are in the capture.
struct Interface {
    link: Linktype,
    /// Parts of a second that its times count.
    resolution: u64,
}

#[derive(Default)]
struct Reading {
    capture: Capture,
    interfaces: Vec<Interface>,
    began_ns: Option<u64>,
}

impl Reading {
    fn seen(&self) -> u64 {
        self.capture.records.len() as u64 + self.capture.skipped
    }

    fn take(&mut self, block: &PcapBlockOwned<'_>) -> Result<(), Error> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let resolution = if header.is_nanosecond_precision() { NS } else { 1_000_000 };
                self.interfaces.push(Interface { link: header.network, resolution });
            }
            PcapBlockOwned::Legacy(packet) => {
                let Some(Interface { link, resolution }) = self.interfaces.first() else {
                    return Ok(());
                };
                let ns =
                    u64::from(packet.ts_sec) * NS + u64::from(packet.ts_usec) * (NS / resolution);
                self.packet(*link, ns, packet.origlen, packet.data)?;
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => self.interfaces.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                let resolution =
                    interface.ts_resolution().filter(|parts| *parts > 0).unwrap_or(1_000_000);
                self.interfaces.push(Interface { link: interface.linktype, resolution });
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let interface = self.interfaces.get(packet.if_id as usize);
                let Some(Interface { link, resolution }) = interface else {
                    self.capture.skipped += 1;
                    return Ok(());
                };
                let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let ns = u128::from(ticks) * u128::from(NS) / u128::from(*resolution);
                self.packet(*link, ns as u64, packet.origlen, packet.data)?;
            }
            PcapBlockOwned::NG(_) => {}
        }
        Ok(())
    }

    fn packet(&mut self, link: Linktype, ns: u64, bytes: u32, frame: &[u8]) -> Result<(), Error> {
        let ip = match link {
            Linktype::ETHERNET => ethernet(frame),
            Linktype::RAW | Linktype::IPV4 => Some(frame),
            Linktype(other) => return Err(Error::LinkType(other)),
        };
        let Some(flow) = ip.and_then(flow) else {
            self.capture.skipped += 1;
            return Ok(());
        };
        let began = *self.began_ns.get_or_insert(ns);
        let sequence = self.capture.records.len() as u64;
        self.capture.records.push(Record {
            flow,
            nanoseconds: ns.saturating_sub(began),
            sequence,
            bytes,
        });
        Ok(())
    }
}

/// The IPv4 packet in a frame.
fn ethernet(frame: &[u8]) -> Option<&[u8]> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    (frame.ethertype() == EthernetProtocol::Ipv4).then(|| frame.payload())
}

/// Whose an IPv4 packet is. Captures often end behind the heads: the rest need not be there.
fn flow(bytes: &[u8]) -> Option<Flow> {
    const HEADER: usize = 20;
    if bytes.len() < HEADER {
        return None;
    }
    let packet = Ipv4Packet::new_unchecked(bytes);
    let head = usize::from(packet.header_len());
    if packet.version() != 4 || head < HEADER {
        return None;
    }
    let protocol = packet.next_header();
    let has_ports =
        matches!(protocol, IpProtocol::Tcp | IpProtocol::Udp) && packet.frag_offset() == 0;
    // Both have the ports first.
    let ports = bytes.get(head..head + 4).filter(|_| has_ports);
    let port = |at: usize| ports.map_or(0, |ports| u16::from_be_bytes([ports[at], ports[at + 1]]));
    Some(Flow {
        source: Ipv4Addr::from(packet.src_addr().octets()),
        destination: Ipv4Addr::from(packet.dst_addr().octets()),
        source_port: port(0),
        destination_port: port(2),
        protocol: protocol.into(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A classic capture of these frames, in microseconds.
    fn classic(link: u32, frames: &[(u32, &[u8])]) -> Vec<u8> {
        let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
        for half in [2_u16, 4] {
            file.extend(half.to_le_bytes());
        }
        for word in [0, 0, 65_535, link] {
            file.extend(word.to_le_bytes());
        }
        for (micros, frame) in frames {
            let len = frame.len() as u32;
            for word in [1_000, *micros, len, len + 100] {
                file.extend(word.to_le_bytes());
            }
            file.extend(*frame);
        }
        file
    }

    const UDP: [u8; 28] = [
        0x45, 0, 0, 128, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 9, 0x12, 0x34, 0, 53, 0,
        0, 0, 0,
    ];

    fn framed(kind: u16, packet: &[u8]) -> Vec<u8> {
        [&[0; 12], &kind.to_be_bytes()[..], packet].concat()
    }

    fn read_all(file: Vec<u8>) -> Result<Capture, Error> {
        read(std::io::Cursor::new(file), 100)
    }

    #[test]
    fn packets_become_records() {
        let (one, other) = (framed(0x0800, &UDP), framed(0x86dd, &UDP));
        let capture = read_all(classic(1, &[(5, &one), (7, &other), (9, &one)])).unwrap();
        assert_eq!((capture.records.len(), capture.skipped), (2, 1));
        let flow = Flow {
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(192, 0, 2, 9),
            source_port: 0x1234,
            destination_port: 53,
            protocol: 17,
        };
        let wanted = Record { flow, nanoseconds: 4_000, sequence: 1, bytes: 142 };
        assert_eq!(capture.records[1], wanted);
        assert_eq!(read_all(classic(101, &[(5, &UDP)])).unwrap().records[0].flow, flow);
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        assert!(matches!(read_all(b"no capture at all".to_vec()), Err(Error::Broken { .. })));
        assert!(matches!(read_all(classic(105, &[(0, &UDP)])), Err(Error::LinkType(105))));
        let mut cut = classic(101, &[(0, &UDP), (1, &UDP)]);
        cut.truncate(cut.len() - 3);
        assert!(matches!(read_all(cut), Err(Error::Broken { after: 1, .. })));
        let long = classic(101, &vec![(0, &UDP[..]); 101]);
        assert!(matches!(read_all(long), Err(Error::TooMany(100))));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(link in 0_u32..250, frame in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = read_all(classic(link, &[(0, &frame)]));
            let _ = read_all(frame);
        }
    }
}
