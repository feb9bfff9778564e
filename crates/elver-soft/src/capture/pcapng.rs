//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng), appended to a buffer.

/// Option of every block: a remark for people.
const COMMENT: u16 = 1;
/// Option of the section header: the program that recorded.
const SHB_USERAPPL: u16 = 4;
/// Options of an interface: its name, and the resolution of time stamps, of which 9 says nanoseconds.
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
/// Options of a packet: which way it went, and how many before it are missing.
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
/// Options of the statistics: packets that passed, and those of them that are missing.
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
pub(super) const ENHANCED_PACKET: u32 = 6;

/// What recorded packets begin with; the values are pcapng's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// An Ethernet header; the frame has no check sequence.
    Ethernet = 1,
    /// An IP header.
    Ip = 101,
}

/// Which way a packet went; the values are pcapng's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It arrived.
    In = 1,
    /// It left.
    Out = 2,
}

/// A packet as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded<'a> {
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Its bytes, as many as were kept.
    pub bytes: &'a [u8],
    /// How many it had.
    pub len: u32,
    /// Packets that are missing before it.
    pub lost: u32,
}

/// Begins a file: whose packets follow, who recorded them, and how many bytes of each are kept.
pub fn begin(into: &mut Vec<u8>, link: LinkType, name: &str, program: &str, snap_bytes: u32) {
    block(into, SECTION_HEADER, |block| {
        block.extend(0x1a2b_3c4du32.to_le_bytes());
        block.extend(1u16.to_le_bytes());
        block.extend(0u16.to_le_bytes());
        block.extend(u64::MAX.to_le_bytes());
        option(block, SHB_USERAPPL, program.as_bytes());
        end_of_options(block);
    });
    block(into, INTERFACE_DESCRIPTION, |block| {
        block.extend((link as u16).to_le_bytes());
        block.extend(0u16.to_le_bytes());
        block.extend(snap_bytes.to_le_bytes());
        option(block, IF_NAME, name.as_bytes());
        option(block, IF_TSRESOL, &[9]);
        end_of_options(block);
    });
}

/// Appends a packet, with a remark for people unless that is empty.
pub fn packet(into: &mut Vec<u8>, packet: &Recorded<'_>, comment: &str) {
    block(into, ENHANCED_PACKET, |block| {
        block.extend(0u32.to_le_bytes());
        put_time(block, packet.unix_ns);
        block.extend((packet.bytes.len() as u32).to_le_bytes());
        block.extend(packet.len.to_le_bytes());
        block.extend(packet.bytes);
        pad(block);
        option(block, EPB_FLAGS, &(packet.direction as u32).to_le_bytes());
        if packet.lost > 0 {
            option(block, EPB_DROPCOUNT, &u64::from(packet.lost).to_le_bytes());
        }
        if !comment.is_empty() {
            option(block, COMMENT, comment.as_bytes());
        }
        end_of_options(block);
    });
}

/// Ends a recording: packets that there were, and those of them that are missing.
pub fn statistics(into: &mut Vec<u8>, unix_ns: u64, packets: u64, lost: u64) {
    block(into, INTERFACE_STATISTICS, |block| {
        block.extend(0u32.to_le_bytes());
        put_time(block, unix_ns);
        option(block, ISB_IFRECV, &packets.to_le_bytes());
        option(block, ISB_IFDROP, &lost.to_le_bytes());
        end_of_options(block);
    });
}

/// Appends a block: its type, its length in front and behind, and its body.
fn block(into: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    into.extend(kind.to_le_bytes());
    into.extend([0; 4]);
    body(into);
    let len = (into.len() - start + 4) as u32;
    into[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    into.extend(len.to_le_bytes());
}

fn put_time(block: &mut Vec<u8>, unix_ns: u64) {
    block.extend(((unix_ns >> 32) as u32).to_le_bytes());
    block.extend((unix_ns as u32).to_le_bytes());
}

fn option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(u16::MAX.into())];
    block.extend(code.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    block.extend(value);
    pad(block);
}

fn end_of_options(block: &mut Vec<u8>) {
    block.extend([0; 4]);
}

/// All blocks, and what stands in them, begin at multiples of 4.
fn pad(block: &mut Vec<u8>) {
    block.resize(block.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a file: type and whole content.
    pub(crate) fn blocks(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let len = word(4) as usize;
            assert_eq!((word(len - 4) as usize, len % 4), (len, 0));
            blocks.push((word(0), &bytes[..len]));
            bytes = &bytes[len..];
        }
        blocks
    }

    #[test]
    fn blocks_are_framed_whatever_the_lengths() {
        for len in 0..9 {
            let mut file = Vec::new();
            begin(&mut file, LinkType::Ip, &"n".repeat(len), "elver", 0);
            let bytes = vec![0x11; len];
            let one = Recorded {
                unix_ns: 7,
                direction: Direction::Out,
                bytes: &bytes,
                len: 100,
                lost: len as u32,
            };
            packet(&mut file, &one, &"c".repeat(len));
            statistics(&mut file, 8, 9, 1);
            let kinds: Vec<u32> = blocks(&file).iter().map(|(kind, _)| *kind).collect();
            let expected =
                [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET, INTERFACE_STATISTICS];
            assert_eq!(kinds, expected);
        }
    }
}
