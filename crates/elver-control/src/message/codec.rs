//! The bytes of control messages, checked where they are read.

use core::num::NonZeroU16;

use elver_verbs::{Class, Mtu, qpn_valid};

use super::{
    Answer, CONTROL_BYTES_MAX, ControlBody, ControlError, ControlMessage, HEADER_BYTES,
    PORTS_ASKED, PSN_MASK, RcEnd, Refusal, Request, Shortage, VERSION,
};
use crate::record::{NODE_RECORD_BYTES, NodeRecord};

const MAGIC: [u8; 4] = *b"ElvC";
const CONNECT_BYTES: usize = 12;
/// A word and two bytes for each port, as question and as answer: nobody is sent more than he sent.
const ALIVE_BYTES: usize = 4 + 2 * PORTS_ASKED;
/// The most READs and atomics that a QP of any device serves at once.
const RD_ATOMIC_MAX: u8 = 128;
/// What stands for no PSN.
const NO_PSN: u32 = u32::MAX;
/// What stands for [`Refusal::Crossed`] where the others have their [`Shortage`].
const CROSSED: u8 = 0xff;

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

    pub(super) fn kind(&self) -> u8 {
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

impl Shortage {
    fn from_code(code: u8) -> Option<Shortage> {
        use Shortage::{Device, Leased, Peers, Pool, Share};
        [Pool, Leased, Share, Peers, Device].into_iter().find(|of| *of as u8 == code)
    }
}
