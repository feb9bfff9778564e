//! The first bytes of a stream, each way: which connection it carries, and from which byte on.

/// Bytes of a frame.
pub(crate) const FRAME_BYTES: usize = 32;
/// With the version of what is spoken.
const MAGIC: &[u8; 8] = b"ELVTCP\0\x01";

/// What is drawn for one connection, and told to its peer alone.
pub(crate) type Nonce = [u8; 16];

/// What each end says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) nonce: Nonce,
    /// Bytes of this direction that go by TCP; all that follow go by the stream. [`Frame::STAYS`] if all go by TCP.
    pub(crate) by_tcp: u64,
}

impl Frame {
    /// A direction that was shut before.
    pub(crate) const STAYS: u64 = u64::MAX;

    pub(crate) fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.nonce);
        bytes[24..].copy_from_slice(&self.by_tcp.to_le_bytes());
        bytes
    }

    /// None of what is no frame.
    pub(crate) fn decode(bytes: &[u8; FRAME_BYTES]) -> Option<Frame> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (nonce, by_tcp) = rest.split_first_chunk()?;
        Some(Frame { nonce: *nonce, by_tcp: u64::from_le_bytes(by_tcp.try_into().ok()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written_and_nothing_else_is_one() {
        let frame = Frame { nonce: *b"0123456789abcdef", by_tcp: 1 << 40 | 7 };
        let bytes = frame.encode();
        assert_eq!(Frame::decode(&bytes), Some(frame));
        for bit in 0..8 * FRAME_BYTES {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Frame::decode(&other), Some(frame), "bit {bit}");
            assert_eq!(Frame::decode(&other).is_none(), bit < 64, "bit {bit}");
        }
    }
}
