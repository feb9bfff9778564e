use core::num::NonZeroU16;

use elver_verbs::{Mtu, qpn_valid};
use thiserror::Error;

use crate::record::{NODE_RECORD_BYTES, NodeRecord, RecordError};
use elver_verbs::Class;

/// PSNs have 24 bits.
pub const PSN_MASK: u32 = (1 << 24) - 1;
/// Longest control message in bytes.
pub const CONTROL_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX;

const MAGIC: [u8; 4] = *b"ElvC";
const VERSION: u8 = 4;
const HEADER_BYTES: usize = 16;
const CONNECT_BYTES: usize = 12;
/// The body of the longest message: a record.
const BODY_BYTES_MAX: usize = NODE_RECORD_BYTES;
/// Ports that one [`Request::Alive`] asks about, at most.
pub const PORTS_ASKED: usize = 8;
/// A word and two bytes for each port, as question and as answer: nobody is sent more than he sent.
const ALIVE_BYTES: usize = 4 + 2 * PORTS_ASKED;
/// The most READs and atomics that a QP of any device serves at once.
const RD_ATOMIC_MAX: u8 = 128;
/// What stands for no PSN.
const NO_PSN: u32 = u32::MAX;
/// What stands for [`Refusal::Crossed`] where the others have their [`Shortage`].
const CROSSED: u8 = 0xff;

/// A message between two cores over their UD QPs.
///
/// ```text
///   0  magic "ElvC"                           4
///   4  version (4), kind, zero                1, 1, 2
///   8  id of the request                      8
///   16 body, of the length that the kind has
/// ```
///
/// All numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    /// Drawn at random by who asks; the answer repeats it.
    pub id: u64,
    /// What it says.
    pub body: ControlBody,
}

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlBody {
    /// Asks.
    Request(Request),
    /// Answers.
    Answer(Answer),
}

/// What one core asks of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make an RC QP and connect it to this one.
    RcConnect {
        /// The asker's end.
        end: RcEnd,
        /// Whose traffic the QP is for.
        class: Class,
        /// Whether it serves one VQP alone instead of the pool.
        leased: bool,
    },
    /// Move all VQPs off an RC QP, let its work end and destroy it. The answer comes then.
    RcClose {
        /// The asked node's end.
        qpn: u32,
        /// The asker's end.
        peer_qpn: u32,
    },
    /// An end of an RC QP has failed: stop the other one, and tell how far it got. The asked node learns
    /// the same of the asker's.
    RcFate {
        /// The asked node's end.
        qpn: u32,
        /// The asker's end, which is in ERR.
        peer_qpn: u32,
        /// The PSN that the asker's end expects next: all before it was executed there.
        psn: u32,
    },
    /// Tell your record (the RPC that KRCORE compares its meta server with).
    Meta,
    /// Say that you are there, and who has these ports. It is answered whoever asks, so that nobody has to
    /// be looked up for it: who asks says where the answer gets in.
    Alive {
        /// The Q_Key of the UD QP that it comes from.
        qkey: u32,
        /// Ports of the asked node's.
        ports: [Option<NonZeroU16>; PORTS_ASKED],
    },
}

/// One end of an RC connection, as the other must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcEnd {
    /// Its QPN.
    pub qpn: u32,
    /// The PSN that it sends first.
    pub psn: u32,
    /// The largest path MTU that it carries.
    pub mtu: Mtu,
    /// READs and atomics that it serves at once (IBTA vol. 1, 9.4.4): the other end has never more
    /// outstanding.
    pub rd_atomic: u8,
}

/// What a core answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The RC QP is made and connected.
    Accepted(RcEnd),
    /// The RC QP is gone, or there was none.
    Closed,
    /// The end is in ERR, and this is the PSN that it expects next: all before it was executed, and
    /// nothing more will be. None: there is no such end, and nothing is known of it.
    Fate(Option<u32>),
    /// The record.
    Record(NodeRecord),
    /// Too much to do: ask again after so many microseconds.
    Busy {
        /// How long to wait.
        retry_after_us: u32,
    },
    /// No.
    Refused(Refusal),
    /// The request came and is worked on.
    Working,
    /// The node is there.
    Alive {
        /// Whether it turns by itself. One that turns only when its owner calls it may be silent for long,
        /// and is there.
        turns: bool,
        /// For each port that was asked about a number of the binding that it has: another one if somebody
        /// else is bound to it, none if nobody is.
        bound: [Option<NonZeroU16>; PORTS_ASKED],
    },
}

/// Why a core refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has as much of something as it may.
    Short {
        /// Of what.
        of: Shortage,
        /// How much is in use.
        used: u32,
        /// How much may be.
        limit: u32,
    },
    /// It asks the same of the asker, and its own request goes first.
    Crossed,
}

/// What there is too little of for another RC QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Shortage {
    /// RC QPs of the pool.
    Pool = 1,
    /// Send WRs of RC QPs of single VQPs.
    Leased = 2,
    /// RC QPs that one peer may have made.
    Share = 3,
    /// Peers that are remembered.
    Peers = 4,
    /// Queue pairs of the device.
    Device = 5,
}

impl Shortage {
    fn from_code(code: u8) -> Option<Shortage> {
        use Shortage::{Device, Leased, Peers, Pool, Share};
        [Pool, Leased, Share, Peers, Device].into_iter().find(|of| *of as u8 == code)
    }
}

/// Bytes that are no control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// Too short, or not as long as its kind is.
    #[error("{given} bytes, but a message of this kind has {expected}")]
    Length {
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// Not of this protocol.
    #[error("no control message")]
    Magic,
    /// Another version of it.
    #[error("control message of version {given}; this side knows version {VERSION} alone")]
    Version {
        /// The version that it names.
        given: u8,
    },
    /// Unknown kind.
    #[error("unknown kind {given:#04x}")]
    Kind {
        /// The kind as given.
        given: u8,
    },
    /// A field holds what it never holds, or a reserved one is not zero.
    #[error("field {name} holds {given:#x}")]
    Field {
        /// Name of the field.
        name: &'static str,
        /// What it holds.
        given: u32,
    },
    /// The record in it is none.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl ControlMessage {
    /// Writes the message to the front of `into`; returns its length.
    pub fn encode(&self, into: &mut [u8; CONTROL_BYTES_MAX]) -> usize {
        let len = HEADER_BYTES + body_bytes(self.kind()).expect("our own kinds are known");
        into[..len].fill(0);
        into[..4].copy_from_slice(&MAGIC);
        into[4] = VERSION;
        into[5] = self.kind();
        into[8..16].copy_from_slice(&self.id.to_le_bytes());
        let body = &mut into[HEADER_BYTES..len];
        match self.body {
            ControlBody::Request(Request::RcConnect { end, class, leased }) => {
                put_end(body, end);
                body[10] = class_code(class);
                body[11] = u8::from(leased);
            }
            ControlBody::Request(Request::RcClose { qpn, peer_qpn }) => {
                put_word(body, 0, qpn);
                put_word(body, 4, peer_qpn);
            }
            ControlBody::Request(Request::RcFate { qpn, peer_qpn, psn }) => {
                put_word(body, 0, qpn);
                put_word(body, 4, peer_qpn);
                put_word(body, 8, psn);
            }
            ControlBody::Answer(Answer::Fate(psn)) => put_word(body, 0, psn.unwrap_or(NO_PSN)),
            ControlBody::Answer(Answer::Accepted(end)) => put_end(body, end),
            ControlBody::Answer(Answer::Record(record)) => body.copy_from_slice(&record.encode()),
            ControlBody::Answer(Answer::Busy { retry_after_us }) => {
                put_word(body, 0, retry_after_us);
            }
            ControlBody::Answer(Answer::Refused(Refusal::Crossed)) => body[0] = CROSSED,
            ControlBody::Answer(Answer::Refused(Refusal::Short { of, used, limit })) => {
                body[0] = of as u8;
                put_word(body, 4, used);
                put_word(body, 8, limit);
            }
            ControlBody::Request(Request::Alive { qkey, ports }) => {
                put_word(body, 0, qkey);
                put_ports(body, ports);
            }
            ControlBody::Answer(Answer::Alive { turns, bound }) => {
                put_word(body, 0, u32::from(turns));
                put_ports(body, bound);
            }
            ControlBody::Request(Request::Meta)
            | ControlBody::Answer(Answer::Closed | Answer::Working) => {}
        }
        len
    }

    /// The message that `bytes` encode, checked: what decodes encodes to the same bytes.
    ///
    /// # Errors
    ///
    /// A [`ControlError`] that says which field cannot be, or that the length is another.
    pub fn decode(bytes: &[u8]) -> Result<ControlMessage, ControlError> {
        let given = bytes.len();
        if given < HEADER_BYTES {
            return Err(ControlError::Length { given, expected: HEADER_BYTES });
        }
        let (header, body) = bytes.split_at(HEADER_BYTES);
        if header[..4] != MAGIC {
            return Err(ControlError::Magic);
        }
        if header[4] != VERSION {
            return Err(ControlError::Version { given: header[4] });
        }
        let kind = header[5];
        let expected = HEADER_BYTES + body_bytes(kind).ok_or(ControlError::Kind { given: kind })?;
        if given != expected {
            return Err(ControlError::Length { given, expected });
        }
        zero("reserved", u32::from(header[6]) | u32::from(header[7]) << 8)?;
        let id = u64::from(word(header, 8)) | u64::from(word(header, 12)) << 32;
        Ok(ControlMessage { id, body: decode_body(kind, body)? })
    }

    fn kind(&self) -> u8 {
        match self.body {
            ControlBody::Request(Request::RcConnect { .. }) => 1,
            ControlBody::Request(Request::RcClose { .. }) => 2,
            ControlBody::Request(Request::Meta) => 3,
            ControlBody::Request(Request::RcFate { .. }) => 4,
            ControlBody::Request(Request::Alive { .. }) => 5,
            ControlBody::Answer(Answer::Accepted(_)) => 0x81,
            ControlBody::Answer(Answer::Closed) => 0x82,
            ControlBody::Answer(Answer::Record(_)) => 0x83,
            ControlBody::Answer(Answer::Busy { .. }) => 0x84,
            ControlBody::Answer(Answer::Refused(_)) => 0x85,
            ControlBody::Answer(Answer::Working) => 0x86,
            ControlBody::Answer(Answer::Fate(_)) => 0x87,
            ControlBody::Answer(Answer::Alive { .. }) => 0x88,
        }
    }
}

/// Length of the body of a kind that there is.
fn body_bytes(kind: u8) -> Option<usize> {
    Some(match kind {
        1 => CONNECT_BYTES,
        2 => 8,
        3 | 0x82 | 0x86 => 0,
        4 | 0x81 | 0x85 => 12,
        0x83 => NODE_RECORD_BYTES,
        0x84 | 0x87 => 4,
        5 | 0x88 => ALIVE_BYTES,
        _ => return None,
    })
}

/// The body of a kind that there is, whose length was checked.
fn decode_body(kind: u8, body: &[u8]) -> Result<ControlBody, ControlError> {
    Ok(match kind {
        1 => {
            let end = get_end(body)?;
            let class = match body[10] {
                0 => Class::Low,
                1 => Class::High,
                given => return Err(ControlError::Field { name: "class", given: given.into() }),
            };
            let leased = match body[11] {
                flag @ (0 | 1) => flag == 1,
                given => return Err(ControlError::Field { name: "leased", given: given.into() }),
            };
            ControlBody::Request(Request::RcConnect { end, class, leased })
        }
        2 => ControlBody::Request(Request::RcClose {
            qpn: number(body, 0, "qpn")?,
            peer_qpn: number(body, 4, "peer_qpn")?,
        }),
        3 => ControlBody::Request(Request::Meta),
        4 => ControlBody::Request(Request::RcFate {
            qpn: number(body, 0, "qpn")?,
            peer_qpn: number(body, 4, "peer_qpn")?,
            psn: psn(body, 8)?,
        }),
        5 => {
            let (qkey, ports) = (word(body, 0), get_ports(body));
            ControlBody::Request(Request::Alive { qkey, ports })
        }
        0x88 => {
            let turns = match word(body, 0) {
                flag @ (0 | 1) => flag == 1,
                given => return Err(ControlError::Field { name: "turns", given }),
            };
            ControlBody::Answer(Answer::Alive { turns, bound: get_ports(body) })
        }
        0x87 if word(body, 0) == NO_PSN => ControlBody::Answer(Answer::Fate(None)),
        0x87 => ControlBody::Answer(Answer::Fate(Some(psn(body, 0)?))),
        0x81 => {
            let end = get_end(body)?;
            zero("reserved", u32::from(body[10]) | u32::from(body[11]) << 8)?;
            ControlBody::Answer(Answer::Accepted(end))
        }
        0x82 => ControlBody::Answer(Answer::Closed),
        0x83 => ControlBody::Answer(Answer::Record(NodeRecord::decode(body)?)),
        0x84 => ControlBody::Answer(Answer::Busy { retry_after_us: word(body, 0) }),
        0x85 => ControlBody::Answer(Answer::Refused(get_refusal(body)?)),
        0x86 => ControlBody::Answer(Answer::Working),
        given => return Err(ControlError::Kind { given }),
    })
}

fn put_end(body: &mut [u8], end: RcEnd) {
    put_word(body, 0, end.qpn);
    put_word(body, 4, end.psn);
    body[8] = end.mtu.code();
    body[9] = end.rd_atomic;
}

fn get_end(body: &[u8]) -> Result<RcEnd, ControlError> {
    let mtu = Mtu::from_code(body[8])
        .ok_or(ControlError::Field { name: "mtu", given: body[8].into() })?;
    let rd_atomic = match body[9] {
        count @ 1..=RD_ATOMIC_MAX => count,
        given => return Err(ControlError::Field { name: "rd_atomic", given: given.into() }),
    };
    Ok(RcEnd { qpn: number(body, 0, "qpn")?, psn: number(body, 4, "psn")?, mtu, rd_atomic })
}

fn get_refusal(body: &[u8]) -> Result<Refusal, ControlError> {
    let (used, limit) = (word(body, 4), word(body, 8));
    zero("reserved", u32::from(body[1]) | u32::from(body[2]) << 8 | u32::from(body[3]) << 16)?;
    if body[0] == CROSSED {
        zero("reserved", used | limit)?;
        return Ok(Refusal::Crossed);
    }
    let of = Shortage::from_code(body[0]);
    let of = of.ok_or(ControlError::Field { name: "refusal", given: body[0].into() })?;
    Ok(Refusal::Short { of, used, limit })
}

fn put_ports(body: &mut [u8], ports: [Option<NonZeroU16>; PORTS_ASKED]) {
    for (into, port) in body[4..ALIVE_BYTES].chunks_exact_mut(2).zip(ports) {
        into.copy_from_slice(&port.map_or(0, NonZeroU16::get).to_le_bytes());
    }
}

fn get_ports(body: &[u8]) -> [Option<NonZeroU16>; PORTS_ASKED] {
    let port = |n| u16::from_le_bytes([body[4 + 2 * n], body[5 + 2 * n]]);
    core::array::from_fn(|n| NonZeroU16::new(port(n)))
}

fn class_code(class: Class) -> u8 {
    match class {
        Class::Low => 0,
        Class::High => 1,
    }
}

/// A number of 24 bits in four bytes.
fn number(bytes: &[u8], at: usize, name: &'static str) -> Result<u32, ControlError> {
    let given = word(bytes, at);
    if qpn_valid(given) { Ok(given) } else { Err(ControlError::Field { name, given }) }
}

/// A PSN, of 24 bits in four bytes.
fn psn(bytes: &[u8], at: usize) -> Result<u32, ControlError> {
    let given = word(bytes, at);
    if given <= PSN_MASK { Ok(given) } else { Err(ControlError::Field { name: "psn", given }) }
}

fn zero(name: &'static str, given: u32) -> Result<(), ControlError> {
    if given == 0 { Ok(()) } else { Err(ControlError::Field { name, given }) }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::Terms;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    pub(crate) fn end(qpn: u32) -> RcEnd {
        RcEnd { qpn, psn: 0xab_cdef, mtu: Mtu::Mtu4096, rd_atomic: 16 }
    }

    pub(crate) fn record(n: u32) -> NodeRecord {
        NodeRecord {
            dctn: n,
            dc_key: u64::from(n),
            control_qpn: n,
            mrs_rkey: n,
            log_mrs_max: 7,
            terms: Terms::default(),
        }
    }

    fn bodies() -> Vec<ControlBody> {
        let connect =
            |class, leased| ControlBody::Request(Request::RcConnect { end: end(7), class, leased });
        let mut all: Vec<ControlBody> = [
            Answer::Accepted(end(9)),
            Answer::Closed,
            Answer::Fate(Some(0xff_fffe)),
            Answer::Fate(None),
            Answer::Record(record(2)),
            Answer::Busy { retry_after_us: u32::MAX },
            Answer::Refused(Refusal::Crossed),
            Answer::Refused(Refusal::Short { of: Shortage::Pool, used: 32, limit: 33 }),
            Answer::Refused(Refusal::Short { of: Shortage::Leased, used: 0, limit: u32::MAX }),
            Answer::Refused(Refusal::Short { of: Shortage::Share, used: 8, limit: 8 }),
            Answer::Refused(Refusal::Short { of: Shortage::Peers, used: 9, limit: 9 }),
            Answer::Refused(Refusal::Short { of: Shortage::Device, used: 1, limit: 2 }),
            Answer::Working,
            Answer::Alive { turns: true, bound: numbers([0, 1, 2, 3, 4, 5, 0xff00, 0xffff]) },
        ]
        .map(ControlBody::Answer)
        .into();
        all.extend([connect(Class::Low, false), connect(Class::High, true)]);
        let close = Request::RcClose { qpn: 0xff_ffff, peer_qpn: 2 };
        let fate = Request::RcFate { qpn: 3, peer_qpn: 0xff_ffff, psn: PSN_MASK };
        let ports = numbers([0xffff, 7, 0, 0, 0, 0, 0, 1]);
        let alive = Request::Alive { qkey: 0x7fff_fffe, ports };
        all.extend([close, fate, Request::Meta, alive].map(ControlBody::Request));
        all
    }

    fn numbers(all: [u16; PORTS_ASKED]) -> [Option<NonZeroU16>; PORTS_ASKED] {
        all.map(NonZeroU16::new)
    }

    fn encoded(body: ControlBody) -> Vec<u8> {
        let mut bytes = [0xaa; CONTROL_BYTES_MAX];
        let message = ControlMessage { id: 0x0102_0304_0506_0708, body };
        let len = message.encode(&mut bytes);
        bytes[..len].to_vec()
    }

    #[test]
    fn messages_survive_the_round_trip() {
        for body in bodies() {
            let message = ControlMessage::decode(&encoded(body)).unwrap();
            assert_eq!(message.body, body);
            assert_eq!(message.id, 0x0102_0304_0506_0708);
        }
    }

    #[test]
    fn every_other_length_is_refused() {
        for body in bodies() {
            let mut bytes = encoded(body);
            for len in 0..bytes.len() {
                let cut = ControlMessage::decode(&bytes[..len]);
                assert!(matches!(cut, Err(ControlError::Length { .. })), "{body:?} cut to {len}");
            }
            bytes.push(0);
            let long = ControlMessage::decode(&bytes);
            assert!(matches!(long, Err(ControlError::Length { .. })), "{body:?}");
        }
    }

    #[test]
    fn fields_that_never_hold_it_are_named() {
        let kind = |body: &ControlBody| ControlMessage { id: 0, body: *body }.kind();
        let find = |wanted| bodies().into_iter().find(|body| kind(body) == wanted).unwrap();
        let connect = encoded(find(1));
        let field = |at: usize, value: u8| {
            let mut bytes = connect.clone();
            bytes[at] = value;
            ControlMessage::decode(&bytes).unwrap_err()
        };
        assert_eq!(field(0, 0), ControlError::Magic);
        assert_eq!(field(4, 1), ControlError::Version { given: 1 });
        assert_eq!(field(5, 6), ControlError::Kind { given: 6 });
        assert_eq!(field(6, 1), ControlError::Field { name: "reserved", given: 1 });
        assert_eq!(field(19, 1), ControlError::Field { name: "qpn", given: 0x0100_0007 });
        assert_eq!(field(24, 6), ControlError::Field { name: "mtu", given: 6 });
        assert_eq!(field(25, 0), ControlError::Field { name: "rd_atomic", given: 0 });
        assert_eq!(field(25, 129), ControlError::Field { name: "rd_atomic", given: 129 });
        assert_eq!(field(26, 2), ControlError::Field { name: "class", given: 2 });
        assert_eq!(field(27, 2), ControlError::Field { name: "leased", given: 2 });
        let told = encoded(find(0x83));
        let mut bytes = told.clone();
        bytes[34..38].fill(0);
        assert!(matches!(ControlMessage::decode(&bytes), Err(ControlError::Record(_))));
        let refused = encoded(ControlBody::Answer(Answer::Refused(Refusal::Crossed)));
        let field = |at: usize, value: u8| {
            let mut bytes = refused.clone();
            bytes[at] = value;
            ControlMessage::decode(&bytes).unwrap_err()
        };
        assert_eq!(field(16, 0), ControlError::Field { name: "refusal", given: 0 });
        assert_eq!(field(17, 1), ControlError::Field { name: "reserved", given: 1 });
        assert_eq!(field(20, 3), ControlError::Field { name: "reserved", given: 3 });
    }

    #[test]
    fn who_asks_whether_a_node_is_there_sends_as_much_as_he_is_sent() {
        let alive =
            |body: &&ControlBody| matches!(body, ControlBody::Request(Request::Alive { .. }));
        let answer =
            |body: &&ControlBody| matches!(body, ControlBody::Answer(Answer::Alive { .. }));
        let all = bodies();
        let [asked, told] =
            [encoded(*all.iter().find(alive).unwrap()), encoded(*all.iter().find(answer).unwrap())];
        assert_eq!(asked.len(), told.len());
        let mut bytes = told;
        bytes[17] = 1;
        let refused = ControlMessage::decode(&bytes).unwrap_err();
        assert_eq!(refused, ControlError::Field { name: "turns", given: 0x101 });
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same(
            which in 0..bodies().len(),
            at in 6..CONTROL_BYTES_MAX,
            value: u8,
        ) {
            let mut bytes = encoded(bodies()[which]);
            let at = at.min(bytes.len() - 1);
            bytes[at] = value;
            if let Ok(message) = ControlMessage::decode(&bytes) {
                let mut again = [0; CONTROL_BYTES_MAX];
                let len = message.encode(&mut again);
                prop_assert_eq!(&again[..len], &bytes[..]);
            }
        }
    }
}
