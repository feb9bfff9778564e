//! The registry's frames over TCP.
//!
//! ```text
//!   0  length of what follows, at least 1 and at most 512    2
//!   2  kind; its highest bit says that the frame is sealed   1
//!   3  body
//!      seal of all before it (see [`super::seal`])          32, if it is sealed
//! ```
//! Numbers are little-endian. A connection begins with [`Frame::Hello`] and is answered with
//! [`Frame::Welcome`]; whatever is not as described here ends it. Where the cluster has a secret:
//!
//! ```text
//! node    Hello(nonce) ─────────────▶               registry
//!         ◀──────────── Challenge(nonce)
//!         Proof, sealed ────────────▶               the node knows the secret
//!         ◀────────────── Welcome, sealed           and the registry does
//! ```
//! From the proof on every frame is sealed, in both directions. Only a refusal need not be while the
//! other end has proven nothing: it could not know the seal.

use elver_core::{META_SERVER_BYTES, MetaServer, NODE_RECORD_BYTES, NodeRecord, RecordError};
use elver_verbs::Gid;
use thiserror::Error;

use super::seal::{NONCE_BYTES, Nonce, SEAL_BYTES, Seals};

/// Bytes of the longest frame, without its length.
const FRAME_BYTES_MAX: usize = 512;
/// Bytes of the longest reason; the rest is cut off.
const REASON_BYTES_MAX: usize = FRAME_BYTES_MAX - 1 - SEAL_BYTES;
const LENGTH_BYTES: usize = 2;
const MAGIC: [u8; 8] = *b"elverreg";
const VERSION: u16 = 3;
/// In a frame's kind: it is sealed.
const SEALED: u8 = 0x80;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A node's first frame, with a nonce of its own.
    Hello { nonce: Nonce },
    /// The server wants a proof that the node knows the secret.
    Challenge { nonce: Nonce },
    /// That proof, by its seal.
    Proof,
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
    #[error("a frame without a right seal: the two ends have not the same secret")]
    Seal,
    #[error("this is not Elver's registry, or another version of it than {VERSION}")]
    Hello,
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl Frame {
    /// Appends the frame as bytes, sealed if there are seals and the other end can know them.
    pub(super) fn encode(&self, to: &mut Vec<u8>, seals: Option<&mut Seals>) {
        let seal = seals.filter(|seals| self.is_sealed(seals)).map(|seals| &mut seals.ours);
        let start = to.len();
        to.extend([0; LENGTH_BYTES]);
        to.push(self.kind() | if seal.is_some() { SEALED } else { 0 });
        match self {
            Frame::Hello { nonce } => {
                to.extend(MAGIC);
                to.extend(VERSION.to_le_bytes());
                to.extend(nonce);
            }
            Frame::Challenge { nonce } => to.extend(nonce),
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
            Frame::Proof
            | Frame::Registered
            | Frame::Heartbeat
            | Frame::ListBegin
            | Frame::Leave => {}
        }
        let sealed = seal.as_ref().map_or(0, |_| SEAL_BYTES);
        let length = to.len() - start - LENGTH_BYTES + sealed;
        debug_assert!(length <= FRAME_BYTES_MAX);
        to[start..start + LENGTH_BYTES].copy_from_slice(&(length as u16).to_le_bytes());
        if let Some(seal) = seal {
            let seal = seal.next(&to[start..]);
            to.extend(seal);
        }
    }

    fn is_sealed(&self, seals: &Seals) -> bool {
        match self {
            // Seals come from these.
            Frame::Hello { .. } | Frame::Challenge { .. } => false,
            Frame::Refused { .. } => !seals.theirs.is_fresh(),
            _ => true,
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Hello { .. } => 1,
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
            Frame::Challenge { .. } => 12,
            Frame::Proof => 13,
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
            1 => {
                let rest = body.strip_prefix(&MAGIC).ok_or(FrameError::Hello)?;
                let nonce = rest.strip_prefix(&VERSION.to_le_bytes()).ok_or(FrameError::Hello)?;
                Ok(Frame::Hello { nonce: nonce.try_into().map_err(|_| wrong)? })
            }
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
            12 => Ok(Frame::Challenge { nonce: body.try_into().map_err(|_| wrong)? }),
            13 => empty(Frame::Proof),
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

    /// Takes out the next frame, if it has come as a whole. With seals each must be sealed, but for a
    /// refusal of one who has proven nothing; without them none may be. After an error the stream has
    /// no meaning.
    pub(super) fn next(&mut self, seals: Option<&mut Seals>) -> Result<Option<Frame>, FrameError> {
        let rest = &self.bytes[self.taken..];
        let Some(length) = rest.first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(*length));
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(FrameError::Length(length));
        }
        let Some(whole) = rest.get(..LENGTH_BYTES + length) else { return Ok(None) };
        let frame = opened(whole, seals)?;
        self.taken += LENGTH_BYTES + length;
        Ok(Some(frame))
    }
}

/// The frame of these bytes: a length, a kind, and what belongs to them.
fn opened(whole: &[u8], seals: Option<&mut Seals>) -> Result<Frame, FrameError> {
    let (kind, body) = (whole[LENGTH_BYTES], &whole[LENGTH_BYTES + 1..]);
    if kind & SEALED != 0 {
        let seal = &mut seals.ok_or(FrameError::Seal)?.theirs;
        let body = body.len().checked_sub(SEAL_BYTES).ok_or(FrameError::Seal)?;
        let (frame, claimed) = whole.split_at(LENGTH_BYTES + 1 + body);
        return match seal.check(frame, claimed) {
            true => Frame::decode(kind & !SEALED, &frame[LENGTH_BYTES + 1..]),
            false => Err(FrameError::Seal),
        };
    }
    match (Frame::decode(kind, body)?, seals) {
        // It is nothing but its seal.
        (Frame::Proof, _) => Err(FrameError::Seal),
        (refusal @ Frame::Refused { .. }, Some(seals)) if seals.theirs.is_fresh() => Ok(refusal),
        (_, Some(_)) => Err(FrameError::Seal),
        (frame, None) => Ok(frame),
    }
}

const _: () = assert!(1 + 4 + META_SERVER_BYTES + SEAL_BYTES <= FRAME_BYTES_MAX);
const _: () = assert!(1 + 16 + NODE_RECORD_BYTES + SEAL_BYTES <= FRAME_BYTES_MAX);
const _: () = assert!(1 + 8 + 2 + NONCE_BYTES <= FRAME_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::super::samples::{meta_server, record};
    use super::super::secret::Secret;
    use super::*;

    fn frames() -> Vec<Frame> {
        let gid = Gid([9; 16]);
        vec![
            Frame::Hello { nonce: [8; NONCE_BYTES] },
            Frame::Challenge { nonce: [7; NONCE_BYTES] },
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
            frame.encode(&mut bytes, None);
        }
        for piece in [1, 2, 3, 7, 100, bytes.len()] {
            let (mut inbox, mut seen) = (Inbox::default(), Vec::new());
            for chunk in bytes.chunks(piece) {
                inbox.push(chunk);
                while let Some(frame) = inbox.next(None).unwrap() {
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
            inbox.next(None).unwrap_err()
        };
        assert_eq!(refused(&[0, 0]), FrameError::Length(0));
        assert_eq!(refused(&[255, 255]), FrameError::Length(65_535));
        assert_eq!(refused(&[1, 0, 99]), FrameError::Kind(99));
        assert_eq!(refused(&[2, 0, 7, 2]), FrameError::Flag(2));
        assert_eq!(refused(&[2, 0, 6, 0]), FrameError::Body { kind: 6, given: 1 });
        assert_eq!(refused(b"\x0b\0\x01elverreg\xff\xff"), FrameError::Hello);
        assert_eq!(refused(&[1, 0, 13]), FrameError::Seal);
        assert_eq!(refused(&[1, 0, 6 | SEALED]), FrameError::Seal);
    }

    /// Every single changed byte gives a frame or an error, and never more than was sent.
    #[test]
    fn changed_bytes_never_harm() {
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes, None);
            for at in 0..bytes.len() {
                for change in 1..=255 {
                    let mut bytes = bytes.clone();
                    bytes[at] ^= change;
                    let mut inbox = Inbox::default();
                    inbox.push(&bytes);
                    for _ in 0..bytes.len() {
                        if !matches!(inbox.next(None), Ok(Some(_))) {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn both() -> (Seals, Seals) {
        let (secret, nonce) = (Secret::new(b"of the cluster"), [0; NONCE_BYTES]);
        (Seals::of_node(&secret, &nonce, &nonce), Seals::of_server(&secret, &nonce, &nonce))
    }

    /// All but those that seals come from.
    fn sealed_frames() -> Vec<Frame> {
        let mut frames = frames();
        frames.retain(|frame| !matches!(frame, Frame::Hello { .. } | Frame::Challenge { .. }));
        frames
    }

    #[test]
    fn sealed_frames_survive_the_round_trip() {
        let (mut node, mut server) = both();
        let mut frames = sealed_frames();
        frames.insert(0, Frame::Proof);
        // As after a proof: else a refusal is plain.
        node.theirs.next(b"");
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.encode(&mut bytes, Some(&mut node));
        }
        let mut inbox = Inbox::default();
        inbox.push(&bytes);
        for frame in frames {
            assert_eq!(inbox.next(Some(&mut server)).unwrap(), Some(frame));
        }
    }

    #[test]
    fn what_is_not_sealed_is_refused_where_seals_are_wanted() {
        let (node, server) = both();
        let given = |frame: &Frame, sealed: bool, by: &mut Seals| {
            let (mut bytes, mut inbox) = (Vec::new(), Inbox::default());
            frame.encode(&mut bytes, sealed.then_some(&mut node.clone()));
            inbox.push(&bytes);
            inbox.next(Some(by))
        };
        for frame in frames() {
            let taken = given(&frame, false, &mut server.clone());
            match frame {
                // Whoever has another secret must be able to hear it.
                Frame::Refused { .. } => assert_eq!(taken, Ok(Some(frame))),
                _ => assert_eq!(taken, Err(FrameError::Seal)),
            }
        }
        let mut server = server;
        given(&Frame::Proof, true, &mut server).unwrap();
        let refusal = Frame::Refused { reason: "a stranger's".to_string() };
        assert_eq!(given(&refusal, false, &mut server), Err(FrameError::Seal));
    }

    /// Every single changed byte of a sealed frame is noticed.
    #[test]
    fn changed_bytes_break_the_seal() {
        let (node, server) = both();
        for frame in sealed_frames() {
            let mut bytes = Vec::new();
            // As after a proof: else a refusal is plain.
            let mut node = node.clone();
            node.theirs.next(b"");
            frame.encode(&mut bytes, Some(&mut node));
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1;
                let mut inbox = Inbox::default();
                inbox.push(&bytes);
                let taken = inbox.next(Some(&mut server.clone()));
                assert!(!matches!(taken, Ok(Some(_))), "{frame:?} at {at}: {taken:?}");
            }
        }
    }
}
