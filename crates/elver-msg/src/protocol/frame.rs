//! What goes through a ring: a header of 16 bytes, little-endian, and a body behind it.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 | the kind (low 4 bits), and messages of collective operations as in 2, 3 (high 4 bits) |
//! | 1 | the version, [`MAJOR`] |
//! | 2, 3 | messages of the other end's users that were matched since the last frame: it may send so many more |
//! | 4 to 7 | of a message's first frame, and of what is given up, its tag; else the number of the offer |
//! | 8 to 11 | bytes of those messages |
//! | 12 to 15 | of an offer its number; of a refusal the reason |
//!
//! What a kind has no use for is zero. A body's length is what is left of the ring's message.

use super::fault::Fault;
use super::kind::Kind;

/// The version of all that is here. Only ends of the same one understand each other.
pub const MAJOR: u8 = 4;
/// What was added since, which the other end may pass over.
pub const MINOR: u16 = 0;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Most messages of collective operations that one header tells of.
pub(super) const FREED_OPERATIONS_MAX: u8 = 0xf;
/// Bits of the first byte that the kind has.
const KIND_BITS: u32 = 4;
/// Bytes of an offer's body.
pub(super) const OFFER_BYTES: usize = 24;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// Messages of users that were matched.
    pub freed_messages: u16,
    /// Messages of collective operations that were, up to 15.
    pub freed_operations: u8,
    /// Bytes of both.
    pub freed_bytes: u32,
    /// The tag, or the offer's number.
    pub word: u32,
    /// The offer's number, or a reason.
    pub more: u32,
}

/// Where a message may be READ, in its sender's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of its first byte.
    pub addr: u64,
    /// Key of the region.
    pub rkey: u32,
}

/// The body of an offer: bytes of the message (8), address (8), rkey (4), and whether the last two are
/// there (4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes of the message.
    pub len: u64,
    /// Where it stands, if that is registered.
    pub remote: Option<Remote>,
}

impl Header {
    /// A header with a kind and a word.
    pub fn new(kind: Kind, word: u32) -> Header {
        Header { kind, freed_messages: 0, freed_operations: 0, freed_bytes: 0, word, more: 0 }
    }

    /// Its bytes.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let Header { kind, freed_messages, freed_operations, freed_bytes, word, more } = *self;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&[kind as u8 | freed_operations << KIND_BITS, MAJOR]);
        bytes[2..4].copy_from_slice(&freed_messages.to_le_bytes());
        bytes[4..8].copy_from_slice(&word.to_le_bytes());
        bytes[8..12].copy_from_slice(&freed_bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&more.to_le_bytes());
        bytes
    }

    /// The header and the body of a frame.
    ///
    /// # Errors
    /// [`Fault`] says what is wrong with it.
    #[inline]
    pub fn decode(frame: &[u8]) -> Result<(Header, &[u8]), Fault> {
        let Some((bytes, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Fault::Short { bytes: frame.len() });
        };
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let [first, version] = [bytes[0], bytes[1]];
        // A greeting says itself which version it is of.
        if version != MAJOR && first != Kind::Hello as u8 {
            return Err(Fault::Version { version });
        }
        let (kind, freed_operations) = (first & !(u8::MAX << KIND_BITS), first >> KIND_BITS);
        let kind = Kind::of(kind).ok_or(Fault::Kind { kind })?;
        let freed_messages = u16::from_le_bytes([bytes[2], bytes[3]]);
        let (freed_bytes, word, more) = (word(8), word(4), word(12));
        let header = Header { kind, freed_messages, freed_operations, freed_bytes, word, more };
        if header.fits(body.len()) { Ok((header, body)) } else { Err(Fault::Field { kind }) }
    }

    /// Whether what stands in it fits its kind.
    #[inline]
    fn fits(&self, body: usize) -> bool {
        let Header { kind, freed_messages, freed_operations, freed_bytes, word, more } = *self;
        let frees = freed_messages > 0 || freed_operations > 0 || freed_bytes > 0;
        (more == 0 || matches!(kind, Kind::Offer | Kind::Refused))
            && (word == 0
                || !matches!(kind, Kind::Hello | Kind::Refused | Kind::Credit | Kind::Bye))
            && match kind {
                Kind::Hello => !frees,
                Kind::Refused => !frees && body == 0,
                Kind::Eager => true,
                Kind::Offer => body == OFFER_BYTES,
                Kind::Piece => body > 0,
                Kind::Clear | Kind::Done | Kind::Bye | Kind::GaveUp => body == 0,
                Kind::Credit => frees && body == 0,
            }
    }
}

impl Offer {
    /// Its bytes.
    pub fn encode(&self) -> [u8; OFFER_BYTES] {
        let Remote { addr, rkey } = self.remote.unwrap_or(Remote { addr: 0, rkey: 0 });
        let mut bytes = [0; OFFER_BYTES];
        bytes[..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&addr.to_le_bytes());
        bytes[16..20].copy_from_slice(&rkey.to_le_bytes());
        bytes[20..].copy_from_slice(&u32::from(self.remote.is_some()).to_le_bytes());
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`Fault::Field`].
    pub fn decode(body: &[u8]) -> Result<Offer, Fault> {
        let field = Fault::Field { kind: Kind::Offer };
        let (&[len, addr, key], []) = body.as_chunks::<8>() else { return Err(field) };
        let [len, addr, key] = [len, addr, key].map(u64::from_le_bytes);
        let (rkey, is_there) = (key as u32, key >> 32);
        let remote = match is_there {
            0 if addr == 0 && rkey == 0 => None,
            1 => Some(Remote { addr, rkey }),
            _ => return Err(field),
        };
        if len == 0 { Err(field) } else { Ok(Offer { len, remote }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: Header, body: &[u8]) -> Vec<u8> {
        [&header.encode(), body].concat()
    }

    #[test]
    fn what_is_encoded_decodes() {
        let offer = Offer { len: 9, remote: Some(Remote { addr: 1 << 60, rkey: 7 }) };
        for kind in (1..=10).filter_map(Kind::of) {
            let (mut header, mut body) = (Header::new(kind, 0), Vec::new());
            match kind {
                Kind::Credit => header.freed_operations = FREED_OPERATIONS_MAX,
                Kind::Piece => body.push(1),
                Kind::Offer => {
                    (header.more, header.word) = (4, 5);
                    body.extend(offer.encode());
                }
                _ => {}
            }
            assert_eq!(Header::decode(&frame(header, &body)), Ok((header, &body[..])));
        }
        assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        let bare = Offer { remote: None, ..offer };
        assert_eq!(Offer::decode(&bare.encode()), Ok(bare));
    }

    #[test]
    fn each_field_stands_where_the_table_has_it() {
        let (freed_messages, freed_operations, freed_bytes) = (2, 6, 3);
        let freed =
            Header { freed_messages, freed_operations, freed_bytes, ..Header::new(Kind::Offer, 5) };
        let header = Header { more: 4, ..freed };
        assert_eq!(header.encode(), [0x64, 4, 2, 0, 5, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    }

    #[test]
    fn what_does_not_fit_its_kind_is_refused() {
        let is = |header: Header, body: &[u8]| Header::decode(&frame(header, body)).map(drop);
        let of = |kind| Err(Fault::Field { kind });
        assert_eq!(is(Header::new(Kind::Credit, 0), &[]), of(Kind::Credit));
        assert_eq!(is(Header::new(Kind::Piece, 1), &[]), of(Kind::Piece));
        assert_eq!(is(Header::new(Kind::Offer, 1), &[0; 23]), of(Kind::Offer));
        assert_eq!(is(Header { more: 1, ..Header::new(Kind::Eager, 1) }, &[]), of(Kind::Eager));
        assert_eq!(Header::decode(&[1; 15]), Err(Fault::Short { bytes: 15 }));
        let mut bytes = frame(Header::new(Kind::Eager, 1), &[]);
        bytes[1] = 9;
        assert_eq!(Header::decode(&bytes), Err(Fault::Version { version: 9 }));
        // A greeting comes before all messages.
        bytes[0] |= 1 << KIND_BITS;
        assert_eq!(Header::decode(&bytes), Err(Fault::Version { version: 9 }));
        (bytes[0], bytes[1]) = (0x11, MAJOR);
        assert_eq!(Header::decode(&bytes), Err(Fault::Field { kind: Kind::Hello }));
        (bytes[0], bytes[1]) = (11, MAJOR);
        assert_eq!(Header::decode(&bytes), Err(Fault::Kind { kind: 11 }));
        // An offer of nothing, and one whose place is half there.
        let offer = |len: u64, addr: u64, key: u64| [len, addr, key].map(u64::to_le_bytes).concat();
        for body in [offer(0, 0, 0), offer(1, 1, 0), offer(1, 0, 1), offer(1, 1, 2 << 32)] {
            assert_eq!(Offer::decode(&body), Err(Fault::Field { kind: Kind::Offer }));
        }
    }
}
