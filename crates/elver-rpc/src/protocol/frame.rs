//! What goes through a ring: a header of 32 bytes, little-endian, and a body behind it.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 | the version, [`MAJOR`] |
//! | 1 | the kind |
//! | 2 | flags |
//! | 3 | of a response: gRPC's number of its status, 0 for success |
//! | 4 to 7 | of a request: the method |
//! | 8 to 15 | the call: its slot (32 bits), and the slot's turn (32 bits) |
//! | 16 to 23 | of a request: µs until its deadline, or all ones; of a credit: bytes |
//! | 24 to 27 | bytes of the body |
//! | 28 to 31 | of a request and a response: bytes of the whole message |
//!
//! What a kind has no use for is zero. Kinds from [`KIND_OPTIONAL`] on, and the upper four flags, are for
//! later minor versions: who does not know them passes over them. Any other is refused, and ends the
//! connection.

use super::fault::Fault;
use super::kind::{CallId, KINDS, Kind};

/// The version of all that is here. Only ends of the same one understand each other.
pub const MAJOR: u8 = 1;
/// What was added since, which the other end may pass over.
pub const MINOR: u16 = 0;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// From here on are kinds that may be passed over.
pub const KIND_OPTIONAL: u8 = 128;
/// No deadline.
pub const NO_DEADLINE: u64 = u64::MAX;

/// Of a request: a stream follows its message. Of a stream: these are its last bytes.
pub const FLAG_STREAM: u8 = 1;
/// Of a stream: it ends with these bytes.
pub const FLAG_END: u8 = 2;
/// Of a response: the server did nothing for the call.
pub const FLAG_NOT_EXECUTED: u8 = 4;
const FLAGS_KNOWN: u8 = FLAG_STREAM | FLAG_END | FLAG_NOT_EXECUTED;
const FLAGS_REQUIRED: u8 = 0x0f;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// Flags of its kind.
    pub flags: u8,
    /// A status' number, or 0.
    pub code: u8,
    /// The method.
    pub method: u32,
    /// The call.
    pub call: CallId,
    /// The deadline, or credit.
    pub value: u64,
    /// Bytes of the body.
    pub len: u32,
    /// Bytes of the whole message.
    pub total: u32,
}

impl Header {
    /// A header with nothing but a kind and a call.
    pub fn new(kind: Kind, call: CallId) -> Header {
        Header { kind, flags: 0, code: 0, method: 0, call, value: 0, len: 0, total: 0 }
    }

    /// Its bytes.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let Header { kind, flags, code, method, call, value, len, total } = *self;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&[MAJOR, kind as u8, flags, code]);
        bytes[4..8].copy_from_slice(&method.to_le_bytes());
        bytes[8..12].copy_from_slice(&call.slot.to_le_bytes());
        bytes[12..16].copy_from_slice(&call.turn.to_le_bytes());
        bytes[16..24].copy_from_slice(&value.to_le_bytes());
        bytes[24..28].copy_from_slice(&len.to_le_bytes());
        bytes[28..].copy_from_slice(&total.to_le_bytes());
        bytes
    }

    /// The header of a frame; none of a kind that is to be passed over.
    ///
    /// # Errors
    /// [`Fault`] says what is wrong with it.
    #[inline]
    pub fn decode(frame: &[u8]) -> Result<Option<Header>, Fault> {
        let Some((bytes, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Fault::Short { bytes: frame.len() });
        };
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let [version, kind, flags, code] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if version != MAJOR {
            return Err(Fault::Version { version });
        }
        let len = word(24);
        if len as usize != body.len() {
            return Err(Fault::Length { claimed: len, bytes: body.len() });
        }
        if kind >= KIND_OPTIONAL {
            return Ok(None);
        }
        let known = usize::from(kind).checked_sub(1).and_then(|at| KINDS.get(at).copied());
        let kind = known.ok_or(Fault::Kind { kind })?;
        if flags & FLAGS_REQUIRED & !FLAGS_KNOWN != 0 {
            return Err(Fault::Flags { kind, flags });
        }
        let flags = flags & FLAGS_KNOWN;
        let value = u64::from(word(16)) | u64::from(word(20)) << 32;
        let call = CallId { slot: word(8), turn: word(12) };
        let header =
            Header { kind, flags, code, method: word(4), call, value, len, total: word(28) };
        header.check()?;
        Ok(Some(header))
    }

    /// Whether what stands in it fits its kind.
    #[inline]
    fn check(&self) -> Result<(), Fault> {
        let Header { kind, flags, code, method, call, value, len, total } = *self;
        let allowed = match kind {
            Kind::Request => FLAG_STREAM,
            Kind::Response => FLAG_NOT_EXECUTED,
            Kind::Stream => FLAG_END,
            _ => 0,
        };
        if flags & !allowed != 0 {
            return Err(Fault::Flags { kind, flags });
        }
        let has_total = matches!(kind, Kind::Request | Kind::Response);
        let fits = (code == 0 || matches!(kind, Kind::Response | Kind::Refused))
            && (method == 0 || kind == Kind::Request)
            && (value == 0 || matches!(kind, Kind::Request | Kind::Credit))
            && (total == 0 || has_total)
            && (!has_total || len <= total)
            && (len == 0 || !matches!(kind, Kind::Credit | Kind::Cancel))
            && (call == CallId::default()
                || !matches!(kind, Kind::Hello | Kind::Welcome | Kind::Refused))
            && (kind != Kind::Response || code == 0 || len == total)
            && (kind != Kind::Refused || code != 0);
        if fits { Ok(()) } else { Err(Fault::Field { kind }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Header {
        let call = CallId { slot: 3, turn: 1 << 31 };
        let header = Header::new(Kind::Request, call);
        Header { flags: FLAG_STREAM, method: 7, value: 1 << 40, len: 2, total: 9, ..header }
    }

    fn frame(header: Header) -> Vec<u8> {
        let mut bytes = header.encode().to_vec();
        bytes.resize(HEADER_BYTES + header.len as usize, 5);
        bytes
    }

    #[test]
    fn what_is_encoded_decodes() {
        for kind in KINDS {
            let mut header = Header::new(kind, CallId::default());
            header.code = u8::from(kind == Kind::Refused);
            assert_eq!(Header::decode(&frame(header)), Ok(Some(header)));
        }
        assert_eq!(Header::decode(&frame(request())), Ok(Some(request())));
    }

    #[test]
    fn each_field_stands_where_the_table_has_it() {
        let bytes = frame(request());
        let expected = [
            [1, 4, 1, 0, 7, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 128],
            [0, 0, 0, 0, 0, 1, 0, 0],
            [2, 0, 0, 0, 9, 0, 0, 0],
        ];
        assert_eq!(bytes[..HEADER_BYTES], expected.concat());
    }

    #[test]
    fn what_later_versions_add_is_passed_over_and_all_else_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = frame(request());
            bytes[at] = byte;
            Header::decode(&bytes)
        };
        assert_eq!(with(1, 128), Ok(None));
        assert_eq!(with(2, FLAG_STREAM | 0x80), Ok(Some(request())));
        assert_eq!(with(0, 2), Err(Fault::Version { version: 2 }));
        assert_eq!(with(1, 0), Err(Fault::Kind { kind: 0 }));
        assert_eq!(with(1, 10), Err(Fault::Kind { kind: 10 }));
        assert_eq!(with(2, 8), Err(Fault::Flags { kind: Kind::Request, flags: 8 }));
        assert_eq!(with(2, 2), Err(Fault::Flags { kind: Kind::Request, flags: 2 }));
        assert_eq!(with(3, 1), Err(Fault::Field { kind: Kind::Request }));
        assert_eq!(with(24, 3), Err(Fault::Length { claimed: 3, bytes: 2 }));
        assert_eq!(with(28, 1), Err(Fault::Field { kind: Kind::Request }));
        assert_eq!(Header::decode(&[1; 31]), Err(Fault::Short { bytes: 31 }));
    }
}
