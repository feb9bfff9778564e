use elver_verbs::{AccessFlags, Class, Gid, Via, VqpState, Wc, WcFlags, WcOpcode, WcStatus};

use crate::fields::{Reader, byte, flag, halves, join, known, port, put_bytes, put_gid};
use crate::layout::ENTRY_WORDS_MAX;
use crate::ring::{Entry, Producer, Violation};

/// Most bytes of a refusal's text; longer ones are cut.
pub const TEXT_MAX: usize = (ENTRY_WORDS_MAX - 2) * 8;

/// What a node puts into the completion ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A WR has completed.
    Completion(Completion),
    /// A command is done.
    Answer {
        /// The request that the client gave the command.
        request: u32,
        /// How it ended.
        answer: Answer<'a>,
    },
    /// Something happened to a VQP that no completion tells.
    VqpFailed {
        /// The VQP, which is in its error state now.
        vqp: u32,
        /// Why.
        cause: Refusal<'a>,
    },
}

/// A completion of a VQP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The VQP.
    pub vqp: u32,
    /// For a message at a bound VQP: a VQP that is connected to the sender.
    pub source: Option<u32>,
    /// The completion with the client's `wr_id`. `qp_num` is the VQP.
    pub wc: Wc,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Done, and nothing to tell.
    Done,
    /// The VQP that was created.
    Vqp(u32),
    /// The port that the VQP is bound to.
    Port(u16),
    /// The VQP is connected.
    Connected(Via),
    /// What `warm` came to.
    Warmed {
        /// Peers whose metadata is at hand.
        ready: u32,
        /// Peers that could not be found.
        failed: u32,
    },
    /// The region that was registered.
    Mr {
        /// Key for local SGEs.
        lkey: u32,
        /// Key for peers.
        rkey: u32,
        /// Bytes of the file that was sent, which may be more than was asked for; 0 for none.
        file_bytes: u64,
    },
    /// How a VQP is.
    Info(VqpInfo),
    /// The set that was begun.
    Prepared {
        /// Its number.
        set: u32,
        /// Bytes of its file.
        file_bytes: u64,
    },
    /// The region that the process may reach itself.
    Reached(Reach),
    /// Refused; nothing changed.
    Refused(Refusal<'a>),
}

/// A region that a process may reach itself, by a door of its session's gate ([`crate::ClientGate`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The door.
    pub door: u32,
    /// The generation that it has while the region is open.
    pub generation: u64,
    /// Address of the region's first byte, as peers name it; the first of its file.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What it permits. Without [`AccessFlags::REMOTE_WRITE`] the file may only be read.
    pub access: AccessFlags,
    /// Bytes of the file that was sent; 0 for none, since the session has it already.
    pub file_bytes: u64,
}

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// The reason, for programs.
    pub code: RefusalCode,
    /// The reason, for people.
    pub text: &'a str,
}

/// Reasons of refusals, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum RefusalCode {
    /// No such node is registered.
    NoSuchNode,
    /// No meta server answers.
    NoMetaServer,
    /// The peer does not answer.
    Unreachable,
    /// Nobody is bound to the port.
    NoSuchPort,
    /// The receiver holds too many messages.
    Overrun,
    /// The VQP that was sent to is gone.
    PeerGone,
    /// Too many wait already.
    Busy,
    /// The VQP was destroyed or connected anew meanwhile.
    Cancelled,
    /// No such VQP of this client.
    NoSuchVqp,
    /// No such region of this client.
    NoSuchMr,
    /// A limit or a quota is reached.
    Limit,
    /// The port is taken.
    PortInUse,
    /// The call does not fit the VQP's state.
    State,
    /// A value is out of its range.
    OutOfRange,
    /// The system does not let the node at the client's memory.
    Permission,
    /// There is not enough memory.
    NoMemory,
    /// The device refused.
    Device,
    /// The node is older than the command.
    Unsupported,
    /// A reason that this version does not know; the text says it.
    Other,
}

/// A VQP as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VqpInfo {
    /// Its state.
    pub state: VqpState,
    /// Priority.
    pub class: Class,
    /// What backs it now.
    pub via: Option<Via>,
    /// The port that it is bound to.
    pub bound: Option<u16>,
    /// The peer and its port.
    pub peer: Option<(Gid, u16)>,
    /// WRs posted and not completed.
    pub outstanding: u32,
    /// Times that it moved between DC and RC.
    pub transfers: u32,
}

/// Kinds of entries in the completion ring.
const COMPLETION: u8 = 128;
const VQP_FAILED: u8 = 129;
const DONE: u8 = 130;
const VQP: u8 = 131;
const PORT: u8 = 132;
const CONNECTED: u8 = 133;
const WARMED: u8 = 134;
const MR: u8 = 135;
const INFO: u8 = 136;
const REFUSED: u8 = 137;
const PREPARED: u8 = 138;
const REACHED: u8 = 139;

/// Room that any reply fits into, in slots.
pub const REPLY_SLOTS_MAX: u32 = crate::layout::ENTRY_SLOTS_MAX as u32;

impl Completion {
    /// Writes it; false if there is no room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    #[inline]
    pub fn push(&self, to: &mut Producer) -> Result<bool, Violation> {
        let wc = &self.wc;
        let how = u32::from(wc.status as u8)
            | u32::from(wc.opcode as u8) << 8
            | u32::from(self.source.is_some()) << 16;
        to.push(COMPLETION, self.vqp, 5, |writer| {
            writer.put(wc.wr_id);
            writer.put(join(how, wc.byte_len));
            writer.put(join(wc.flags.bits(), wc.imm_data));
            writer.put(join(wc.src_qp, wc.vendor_err));
            writer.put(u64::from(self.source.unwrap_or(0)));
        })
    }

    #[inline]
    fn decode(entry: &Entry) -> Result<Completion, Violation> {
        let mut fields = Reader::new(entry.words());
        let wr_id = fields.word()?;
        let (how, byte_len) = halves(fields.word()?);
        let how = u64::from(how);
        let (flags, imm_data) = halves(fields.word()?);
        let (src_qp, vendor_err) = halves(fields.word()?);
        let source = fields.word()? as u32;
        let wc = Wc {
            wr_id,
            status: WcStatus::from_code(byte(how, 0))
                .ok_or(Violation::Field { field: "status" })?,
            opcode: *WC_OPCODES
                .get(usize::from(byte(how, 1)))
                .ok_or(Violation::Field { field: "opcode" })?,
            flags: WcFlags::from_bits(flags).ok_or(Violation::Field { field: "flags" })?,
            byte_len,
            imm_data,
            qp_num: entry.id,
            src_qp,
            vendor_err,
            ..Wc::default()
        };
        let source = flag(byte(how, 2), "source")?.then_some(source);
        Ok(Completion { vqp: entry.id, source, wc })
    }
}

const WC_OPCODES: [WcOpcode; 9] = [
    WcOpcode::Send,
    WcOpcode::RdmaWrite,
    WcOpcode::RdmaRead,
    WcOpcode::CompSwap,
    WcOpcode::FetchAdd,
    WcOpcode::BindMw,
    WcOpcode::LocalInv,
    WcOpcode::Recv,
    WcOpcode::RecvRdmaWithImm,
];

impl Answer<'_> {
    /// Writes it; false if there is no room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    pub fn push(&self, to: &mut Producer, request: u32) -> Result<bool, Violation> {
        match *self {
            Answer::Done => to.push(DONE, request, 0, |_| {}),
            Answer::Vqp(vqp) => to.push(VQP, request, 1, |writer| writer.put(u64::from(vqp))),
            Answer::Port(port) => to.push(PORT, request, 1, |writer| writer.put(u64::from(port))),
            Answer::Connected(via) => {
                to.push(CONNECTED, request, 1, |writer| writer.put(via.code().into()))
            }
            Answer::Warmed { ready, failed } => {
                to.push(WARMED, request, 1, |writer| writer.put(join(ready, failed)))
            }
            Answer::Mr { lkey, rkey, file_bytes } => to.push(MR, request, 2, |writer| {
                writer.put(join(lkey, rkey));
                writer.put(file_bytes);
            }),
            Answer::Info(info) => info.push(to, request),
            Answer::Prepared { set, file_bytes } => to.push(PREPARED, request, 2, |writer| {
                writer.put(u64::from(set));
                writer.put(file_bytes);
            }),
            Answer::Reached(reach) => reach.push(to, request),
            Answer::Refused(refusal) => refusal.push(to, REFUSED, request),
        }
    }
}

impl Reach {
    fn push(&self, to: &mut Producer, request: u32) -> Result<bool, Violation> {
        to.push(REACHED, request, 5, |writer| {
            writer.put(self.generation);
            writer.put(self.addr);
            writer.put(self.len);
            writer.put(join(self.door, self.access.bits()));
            writer.put(self.file_bytes);
        })
    }

    fn decode(entry: &Entry) -> Result<Reach, Violation> {
        let mut fields = Reader::new(entry.words());
        let (generation, addr, len) = (fields.word()?, fields.word()?, fields.word()?);
        let (door, access) = halves(fields.word()?);
        let access = known(AccessFlags::from_bits(access), "access")?;
        Ok(Reach { door, generation, addr, len, access, file_bytes: fields.word()? })
    }
}

impl Refusal<'_> {
    /// Writes that a VQP failed; false if there is no room.
    ///
    /// # Errors
    ///
    /// [`Violation::Head`] if the other end has put the ring's head where it cannot be: the session is to end.
    pub fn push_failed(&self, to: &mut Producer, vqp: u32) -> Result<bool, Violation> {
        self.push(to, VQP_FAILED, vqp)
    }

    fn push(&self, to: &mut Producer, kind: u8, id: u32) -> Result<bool, Violation> {
        let text = &self.text[..self.text.floor_char_boundary(TEXT_MAX)];
        to.push(kind, id, 1 + text.len().div_ceil(8), |writer| {
            writer.put(join(self.code as u32, text.len() as u32));
            put_bytes(writer, text.as_bytes());
        })
    }

    fn decode<'a>(entry: &Entry, text: &'a mut Vec<u8>) -> Result<Refusal<'a>, Violation> {
        let mut fields = Reader::new(entry.words());
        let (code, len) = halves(fields.word()?);
        let code = RefusalCode::ALL.get(code as usize).copied().unwrap_or(RefusalCode::Other);
        fields.bytes(len as usize, text)?;
        let text = str::from_utf8(text).map_err(|_| Violation::Field { field: "text" })?;
        Ok(Refusal { code, text })
    }
}

impl RefusalCode {
    /// Every code, by number.
    pub const ALL: [RefusalCode; 19] = [
        RefusalCode::NoSuchNode,
        RefusalCode::NoMetaServer,
        RefusalCode::Unreachable,
        RefusalCode::NoSuchPort,
        RefusalCode::Overrun,
        RefusalCode::PeerGone,
        RefusalCode::Busy,
        RefusalCode::Cancelled,
        RefusalCode::NoSuchVqp,
        RefusalCode::NoSuchMr,
        RefusalCode::Limit,
        RefusalCode::PortInUse,
        RefusalCode::State,
        RefusalCode::OutOfRange,
        RefusalCode::Permission,
        RefusalCode::NoMemory,
        RefusalCode::Device,
        RefusalCode::Unsupported,
        RefusalCode::Other,
    ];
}

/// What a word of its own names.
fn via(code: u64) -> Option<Via> {
    u8::try_from(code).ok().and_then(Via::from_code)
}

/// Stands for what is not there.
const NONE: u8 = u8::MAX;

impl VqpInfo {
    fn push(&self, to: &mut Producer, request: u32) -> Result<bool, Violation> {
        let via = self.via.map_or(NONE, |via| via.code());
        let how = u64::from(self.state.code())
            | u64::from(self.class.code()) << 8
            | u64::from(via) << 16
            | u64::from(self.bound.is_some()) << 24
            | u64::from(self.peer.is_some()) << 32;
        let (gid, port) = self.peer.unwrap_or_default();
        to.push(INFO, request, 5, |writer| {
            writer.put(how);
            writer.put(join(u32::from(self.bound.unwrap_or(0)), u32::from(port)));
            writer.put(join(self.outstanding, self.transfers));
            put_gid(writer, &gid);
        })
    }

    fn decode(entry: &Entry) -> Result<VqpInfo, Violation> {
        let mut fields = Reader::new(entry.words());
        let how = fields.word()?;
        let via = match byte(how, 2) {
            NONE => None,
            code => Some(known(Via::from_code(code), "via")?),
        };
        let (bound, peer) = halves(fields.word()?);
        let (outstanding, transfers) = halves(fields.word()?);
        let (bound, peer) = (port(bound, "bound")?, (fields.gid()?, port(peer, "port")?));
        Ok(VqpInfo {
            state: known(VqpState::from_code(byte(how, 0)), "state")?,
            class: known(Class::from_code(byte(how, 1)), "class")?,
            via,
            bound: flag(byte(how, 3), "bound")?.then_some(bound),
            peer: flag(byte(how, 4), "peer")?.then_some(peer),
            outstanding,
            transfers,
        })
    }
}

/// Reads a reply back; `text` takes that of a refusal.
#[inline]
pub(crate) fn decode<'a>(entry: &Entry, text: &'a mut Vec<u8>) -> Result<Reply<'a>, Violation> {
    let id = entry.id;
    if entry.kind == COMPLETION {
        return Ok(Reply::Completion(Completion::decode(entry)?));
    }
    let mut fields = Reader::new(entry.words());
    let answer = match entry.kind {
        VQP_FAILED => {
            return Ok(Reply::VqpFailed { vqp: id, cause: Refusal::decode(entry, text)? });
        }
        DONE => Answer::Done,
        VQP => Answer::Vqp(fields.word()? as u32),
        PORT => Answer::Port(port(fields.word()? as u32, "port")?),
        CONNECTED => Answer::Connected(known(via(fields.word()?), "via")?),
        WARMED => {
            let (ready, failed) = halves(fields.word()?);
            Answer::Warmed { ready, failed }
        }
        MR => {
            let (lkey, rkey) = halves(fields.word()?);
            Answer::Mr { lkey, rkey, file_bytes: fields.word()? }
        }
        INFO => Answer::Info(VqpInfo::decode(entry)?),
        PREPARED => Answer::Prepared { set: fields.word()? as u32, file_bytes: fields.word()? },
        REACHED => Answer::Reached(Reach::decode(entry)?),
        REFUSED => Answer::Refused(Refusal::decode(entry, text)?),
        kind => return Err(Violation::Kind { kind }),
    };
    Ok(Reply::Answer { request: id, answer })
}
