//! The registry's frames over TCP.
//!
//! ```text
//!   0  length of what follows, at least 1 and at most 512    2
//!   2  kind                                                  1
//!   3  body
//! ```
//! Numbers are little-endian. A connection begins with [`Frame::Hello`] and is answered with
//! [`Frame::Welcome`]; whatever is not as described here ends it.

use elver_core::{META_SERVER_BYTES, MetaServer, NODE_RECORD_BYTES, NodeRecord, RecordError};
use elver_verbs::Gid;
use thiserror::Error;

/// Bytes of the longest frame, without its length.
const FRAME_BYTES_MAX: usize = 512;
/// Bytes of the longest reason; the rest is cut off.
const REASON_BYTES_MAX: usize = FRAME_BYTES_MAX - 1;
const LENGTH_BYTES: usize = 2;
const MAGIC: [u8; 8] = *b"elverreg";
const VERSION: u16 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A node's first frame.
    Hello,
    /// The server's answer: who it is, and after how long of silence it takes a node for dead.
    Welcome { ttl_ms: u32, server: Box<MetaServer> },
    /// The server will not go on, and why.
    Refused { reason: String },
    /// A node makes itself known.
    Register { gid: Gid, record: NodeRecord },
    /// It stands in the table.
    Registered,
    /// Either end is alive; the server answers each.
    Heartbeat,
    /// A node wants to hear of all nodes, or no longer.
    Watch { on: bool },
    /// A node came, changed or went.
    Node { gid: Gid, record: Option<NodeRecord> },
    /// All nodes follow, until [`Frame::ListEnd`].
    ListBegin,
    /// See [`super::News::ListEnd`].
    ListEnd { complete: bool },
    /// A node goes for good.
    Leave,
}

/// Bytes that are no frame.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum FrameError {
    #[error("a frame has 1 to {FRAME_BYTES_MAX} bytes, not {0}")]
    Length(usize),
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    #[error("the body of a frame of kind {kind} has {given} bytes")]
    Body { kind: u8, given: usize },
    #[error("a flag is 0 or 1, not {0}")]
    Flag(u8),
    #[error("this is not Elver's registry, or another version of it than {VERSION}")]
    Hello,
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl Frame {
    /// Appends the frame as bytes.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend([0; LENGTH_BYTES]);
        to.push(self.kind());
        match self {
            Frame::Hello => {
                to.extend(MAGIC);
                to.extend(VERSION.to_le_bytes());
            }
            Frame::Welcome { ttl_ms, server } => {
                to.extend(ttl_ms.to_le_bytes());
                to.extend(server.encode());
            }
            Frame::Refused { reason } => {
                to.extend(reason.bytes().take(REASON_BYTES_MAX));
            }
            Frame::Register { gid, record } | Frame::Node { gid, record: Some(record) } => {
                to.extend(gid.0);
                to.extend(record.encode());
            }
            Frame::Node { gid, record: None } => to.extend(gid.0),
            Frame::Watch { on: flag } | Frame::ListEnd { complete: flag } => {
                to.push(u8::from(*flag));
            }
            Frame::Registered | Frame::Heartbeat | Frame::ListBegin | Frame::Leave => {}
        }
        let length = to.len() - start - LENGTH_BYTES;
        debug_assert!(length <= FRAME_BYTES_MAX);
        to[start..start + LENGTH_BYTES].copy_from_slice(&(length as u16).to_le_bytes());
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Hello => 1,
            Frame::Welcome { .. } => 2,
            Frame::Refused { .. } => 3,
            Frame::Register { .. } => 4,
            Frame::Registered => 5,
            Frame::Heartbeat => 6,
            Frame::Watch { .. } => 7,
            Frame::Node { .. } => 8,
            Frame::ListBegin => 9,
            Frame::ListEnd { .. } => 10,
            Frame::Leave => 11,
        }
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Frame, FrameError> {
        let wrong = FrameError::Body { kind, given: body.len() };
        let empty = |frame| if body.is_empty() { Ok(frame) } else { Err(wrong.clone()) };
        let flag = || match *body {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(FrameError::Flag(other)),
            _ => Err(wrong.clone()),
        };
        match kind {
            1 => match body.strip_prefix(&MAGIC) {
                Some(version) if version == VERSION.to_le_bytes() => Ok(Frame::Hello),
                _ => Err(FrameError::Hello),
            },
            2 => {
                let (ttl, server) = body.split_first_chunk().ok_or(wrong.clone())?;
                if server.len() != META_SERVER_BYTES {
                    return Err(wrong);
                }
                let server = Box::new(MetaServer::decode(server)?);
                Ok(Frame::Welcome { ttl_ms: u32::from_le_bytes(*ttl), server })
            }
            3 => Ok(Frame::Refused { reason: String::from_utf8_lossy(body).into_owned() }),
            4 => {
                let (gid, record) = body.split_first_chunk().ok_or(wrong)?;
                Ok(Frame::Register { gid: Gid(*gid), record: NodeRecord::decode(record)? })
            }
            5 => empty(Frame::Registered),
            6 => empty(Frame::Heartbeat),
            7 => Ok(Frame::Watch { on: flag()? }),
            8 => {
                let (gid, record) = body.split_first_chunk().ok_or(wrong)?;
                let record = match record.len() {
                    0 => None,
                    _ => Some(NodeRecord::decode(record)?),
                };
                Ok(Frame::Node { gid: Gid(*gid), record })
            }
            9 => empty(Frame::ListBegin),
            10 => Ok(Frame::ListEnd { complete: flag()? }),
            11 => empty(Frame::Leave),
            _ => Err(FrameError::Kind(kind)),
        }
    }
}

/// Bytes of a stream, as they come, until they make frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Inbox {
    /// Takes what came. The caller takes out all frames before it gives more.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes out the next frame, if it has come as a whole. After an error the stream has no meaning.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.bytes[self.taken..];
        let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(*length));
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(FrameError::Length(length));
        }
        let Some([kind, body @ ..]) = rest.get(..length) else { return Ok(None) };
        let frame = Frame::decode(*kind, body)?;
        self.taken += LENGTH_BYTES + length;
        Ok(Some(frame))
    }
}

const _: () = assert!(1 + 4 + META_SERVER_BYTES <= FRAME_BYTES_MAX);
const _: () = assert!(1 + 16 + NODE_RECORD_BYTES <= FRAME_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::super::samples::{meta_server, record};
    use super::*;

    fn frames() -> Vec<Frame> {
        let gid = Gid([9; 16]);
        vec![
            Frame::Hello,
            Frame::Welcome { ttl_ms: 3_000, server: Box::new(meta_server(1)) },
            Frame::Refused { reason: "no".to_string() },
            Frame::Register { gid, record: record(5) },
            Frame::Registered,
            Frame::Heartbeat,
            Frame::Watch { on: true },
            Frame::Node { gid, record: Some(record(6)) },
            Frame::Node { gid, record: None },
            Frame::ListBegin,
            Frame::ListEnd { complete: false },
            Frame::Leave,
        ]
    }

    #[test]
    fn frames_survive_the_round_trip_in_pieces_of_any_size() {
        let mut bytes = Vec::new();
        for frame in frames() {
            frame.encode(&mut bytes);
        }
        for piece in [1, 2, 3, 7, 100, bytes.len()] {
            let (mut inbox, mut seen) = (Inbox::default(), Vec::new());
            for chunk in bytes.chunks(piece) {
                inbox.push(chunk);
                while let Some(frame) = inbox.next().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, frames());
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let refused = |bytes: &[u8]| {
            let mut inbox = Inbox::default();
            inbox.push(bytes);
            inbox.next().unwrap_err()
        };
        assert_eq!(refused(&[0, 0]), FrameError::Length(0));
        assert_eq!(refused(&[255, 255]), FrameError::Length(65_535));
        assert_eq!(refused(&[1, 0, 99]), FrameError::Kind(99));
        assert_eq!(refused(&[2, 0, 7, 2]), FrameError::Flag(2));
        assert_eq!(refused(&[2, 0, 6, 0]), FrameError::Body { kind: 6, given: 1 });
        assert_eq!(refused(b"\x0b\0\x01elverreg\xff\xff"), FrameError::Hello);
    }

    /// Every single changed byte gives a frame or an error, and never more than was sent.
    #[test]
    fn changed_bytes_never_harm() {
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            for at in 0..bytes.len() {
                for change in 1..=255 {
                    let mut bytes = bytes.clone();
                    bytes[at] ^= change;
                    let mut inbox = Inbox::default();
                    inbox.push(&bytes);
                    for _ in 0..bytes.len() {
                        if !matches!(inbox.next(), Ok(Some(_))) {
                            break;
                        }
                    }
                }
            }
        }
    }
}
