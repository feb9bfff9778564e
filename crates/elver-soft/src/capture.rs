//! Recording packets as pcapng (draft-ietf-opsawg-pcapng), with the IP and UDP headers that they
//! travel under, so that any dissector reads them; or whole Ethernet frames.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use elver_wire::Flow;

/// Packets begin with an IP header (LINKTYPE_RAW).
const LINKTYPE_RAW: u16 = 101;
/// Packets are Ethernet frames without their check sequence (LINKTYPE_ETHERNET).
const LINKTYPE_ETHERNET: u16 = 1;
/// Option of an interface block: the resolution of time stamps; 9 says nanoseconds.
const IF_TSRESOL: u16 = 9;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// IP protocol number of UDP.
const UDP: u8 = 17;
const UDP_LEN: usize = 8;

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// UDP payloads, with IP and UDP headers made for them.
    Ip,
    /// Ethernet frames as they are.
    Frames,
}

/// A pcapng file being written. The first failed write ends the recording.
pub(crate) struct Capture {
    file: Option<BufWriter<File>>,
    bytes_left: u64,
    block: Vec<u8>,
}

impl Capture {
    /// Creates the file, for its owner alone.
    pub(crate) fn create(path: &Path, bytes_max: u64, contents: Contents) -> io::Result<Capture> {
        let link_type = match contents {
            Contents::Ip => LINKTYPE_RAW,
            Contents::Frames => LINKTYPE_ETHERNET,
        };
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut capture = Capture {
            file: Some(BufWriter::new(file)),
            bytes_left: bytes_max,
            block: Vec::with_capacity(8192),
        };
        capture.write_block(SECTION_HEADER, |block| {
            block.extend(0x1a2b_3c4du32.to_le_bytes());
            block.extend(1u16.to_le_bytes());
            block.extend(0u16.to_le_bytes());
            block.extend(u64::MAX.to_le_bytes());
        });
        capture.write_block(INTERFACE_DESCRIPTION, |block| {
            block.extend(link_type.to_le_bytes());
            block.extend(0u16.to_le_bytes());
            block.extend(0u32.to_le_bytes());
            block.extend(IF_TSRESOL.to_le_bytes());
            block.extend(1u16.to_le_bytes());
            block.extend([9, 0, 0, 0]);
            block.extend(0u32.to_le_bytes());
        });
        Ok(capture)
    }

    /// Records a UDP payload.
    pub(crate) fn packet(&mut self, flow: &Flow, traffic_class: u8, ip_id: u16, payload: &[u8]) {
        self.write_packet(|block| {
            put_ip(block, flow, traffic_class, ip_id, payload.len());
            block.extend(payload);
        });
    }

    /// Records an Ethernet frame.
    pub(crate) fn frame(&mut self, frame: &[u8]) {
        self.write_packet(|block| block.extend(frame));
    }

    /// Writes what `body` appends as a packet of this moment.
    fn write_packet(&mut self, body: impl FnOnce(&mut Vec<u8>)) {
        if self.file.is_none() {
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        self.write_block(ENHANCED_PACKET, |block| {
            block.extend(0u32.to_le_bytes());
            block.extend(((nanos >> 32) as u32).to_le_bytes());
            block.extend((nanos as u32).to_le_bytes());
            let lengths = block.len();
            block.extend([0; 8]);
            let start = block.len();
            body(block);
            let len = (block.len() - start) as u32;
            block[lengths..lengths + 4].copy_from_slice(&len.to_le_bytes());
            block[lengths + 4..lengths + 8].copy_from_slice(&len.to_le_bytes());
            block.resize(block.len().next_multiple_of(4), 0);
        });
    }

    /// Writes a block: its type, its length in front and behind, and its body.
    fn write_block(&mut self, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
        self.block.clear();
        self.block.extend(kind.to_le_bytes());
        self.block.extend([0; 4]);
        body(&mut self.block);
        let len = (self.block.len() + 4) as u32;
        self.block[4..8].copy_from_slice(&len.to_le_bytes());
        self.block.extend(len.to_le_bytes());
        let fits = self.bytes_left >= u64::from(len);
        let written =
            self.file.as_mut().is_some_and(|file| fits && file.write_all(&self.block).is_ok());
        if written {
            self.bytes_left -= u64::from(len);
        } else if let Some(mut file) = self.file.take() {
            // What was recorded so far is whole; that it ends early is all that can be said.
            let _ = file.flush();
        }
    }
}

/// Appends IP and UDP headers. UDP's checksum is left out: the ICRC does its work.
fn put_ip(block: &mut Vec<u8>, flow: &Flow, traffic_class: u8, ip_id: u16, payload: usize) {
    let udp_len = (UDP_LEN + payload) as u16;
    match (flow.src.ip(), flow.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            block.extend([0x45, traffic_class]);
            block.extend((20 + udp_len).to_be_bytes());
            block.extend(ip_id.to_be_bytes());
            block.extend([0x40, 0, 64, UDP, 0, 0]);
            block.extend(src.octets());
            block.extend(dst.octets());
        }
        (src, dst) => {
            block.extend([0x60 | traffic_class >> 4, traffic_class << 4, 0, 0]);
            block.extend(udp_len.to_be_bytes());
            block.extend([UDP, 64]);
            for ip in [src, dst] {
                match ip {
                    IpAddr::V4(v4) => block.extend(v4.to_ipv6_mapped().octets()),
                    IpAddr::V6(v6) => block.extend(v6.octets()),
                }
            }
        }
    }
    block.extend(flow.src.port().to_be_bytes());
    block.extend(flow.dst.port().to_be_bytes());
    block.extend(udp_len.to_be_bytes());
    block.extend([0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_framed_and_bounded() {
        let path = std::env::temp_dir().join(format!("elver-capture-{}", std::process::id()));
        let flow =
            Flow { src: "10.0.0.1:4791".parse().unwrap(), dst: "10.0.0.2:4791".parse().unwrap() };
        let mut capture = Capture::create(&path, 400, Contents::Ip).unwrap();
        for _ in 0..10 {
            capture.packet(&flow, 2, 7, &[0x11; 61]);
        }
        drop(capture);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(bytes.len() <= 400 && bytes.len() > 200, "{}", bytes.len());
        let mut at = 0;
        let mut kinds = Vec::new();
        while at < bytes.len() {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let len = word(at + 4) as usize;
            assert_eq!(word(at + len - 4) as usize, len);
            kinds.push(word(at));
            at += len;
        }
        assert_eq!(kinds[..3], [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET]);
    }
}
