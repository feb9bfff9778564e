use elver_verbs::{
    AccessFlags, BindMw, Mr, Mw, Payload, PostError, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendOpcode, SendWr, Sge,
};

use crate::fields::{Reader, byte, halves, join, put_bytes};
use crate::ring::{Consumer, Entry, Producer, Violation, Writer};

/// Most SGEs that an entry carries; a node may allow fewer ([`crate::Limits`]).
pub const SGES_MAX: usize = 32;
/// Most inline bytes that an entry carries; a node may allow fewer.
pub const INLINE_MAX: usize = 512;
/// Most WRs that are taken at once.
pub const BATCH_MAX: usize = 16;

/// Kind of a send WQE in the command ring; the entry's id is the VQP.
pub(crate) const SEND: u8 = 64;
/// Kind of a posted receive in the receive ring; likewise.
const RECEIVE: u8 = 65;

/// Marks inline bytes in the count of SGEs.
const INLINE: u16 = 1 << 15;

/// Writes a send WR; false if there is no room. Its destination is the VQP's peer: `wr.dest` is
/// not looked at.
///
/// # Errors
/// More than [`SGES_MAX`] SGEs or [`INLINE_MAX`] inline bytes; [`Violation`] inside.
#[inline]
pub(crate) fn push_send(
    to: &mut Producer,
    vqp: u32,
    wr: &SendWr<'_>,
) -> Result<Result<bool, Violation>, PostError> {
    let (count, words) = match wr.payload {
        Payload::Sges(sges) if sges.len() > SGES_MAX => {
            let given = u32::try_from(sges.len()).unwrap_or(u32::MAX);
            return Err(PostError::TooManySges { given, max: SGES_MAX as u32 });
        }
        Payload::Inline(bytes) if bytes.len() > INLINE_MAX => {
            let given = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            return Err(PostError::InlineTooLong { given, max: INLINE_MAX as u32 });
        }
        Payload::Sges(sges) => (sges.len() as u16, 2 * sges.len()),
        Payload::Inline(bytes) => (bytes.len() as u16 | INLINE, bytes.len().div_ceil(8)),
    };
    let (number, operand) = operation(&wr.op);
    let shape = u32::from(number) | u32::from(wr.flags.bits()) << 8 | u32::from(count) << 16;
    Ok(to.push(SEND, vqp, 2 + operands(wr.op.opcode()) + words, |writer| {
        writer.put(wr.wr_id);
        writer.put(join(shape, operand));
        put_operands(writer, &wr.op);
        match wr.payload {
            Payload::Sges(sges) => put_sges(writer, sges),
            Payload::Inline(bytes) => put_bytes(writer, bytes),
        }
    }))
}

/// Writes a receive; false if there is no room.
#[inline]
pub(crate) fn push_receive(
    to: &mut Producer,
    vqp: u32,
    wr: &RecvWr<'_>,
) -> Result<Result<bool, Violation>, PostError> {
    if wr.sges.len() > SGES_MAX {
        let given = u32::try_from(wr.sges.len()).unwrap_or(u32::MAX);
        return Err(PostError::TooManySges { given, max: SGES_MAX as u32 });
    }
    Ok(to.push(RECEIVE, vqp, 2 + 2 * wr.sges.len(), |writer| {
        writer.put(wr.wr_id);
        writer.put(wr.sges.len() as u64);
        put_sges(writer, wr.sges);
    }))
}

/// Send WRs of one VQP that were copied out of a ring, in their order.
#[derive(Default)]
pub struct SendBatch {
    wrs: Vec<Send>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    bytes: Vec<u8>,
}

/// Receives of one VQP that were copied out of a ring, in their order.
#[derive(Default)]
pub struct RecvBatch {
    wrs: Vec<Receive>,
    sges: Vec<Sge>,
}

#[derive(Clone, Copy)]
struct Send {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    inline: bool,
    /// Where its SGEs or its inline bytes stand.
    start: usize,
    end: usize,
}

#[derive(Clone, Copy)]
struct Receive {
    wr_id: u64,
    start: usize,
    end: usize,
}

impl SendBatch {
    /// How many WRs; at most [`BATCH_MAX`].
    pub fn len(&self) -> usize {
        self.wrs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.wrs.is_empty()
    }

    /// Hands the WRs to `use_them` as the verbs have them.
    #[inline]
    pub fn with<R>(&self, use_them: impl FnOnce(&[SendWr<'_>]) -> R) -> R {
        match self.wrs.len() {
            0 => use_them(&[]),
            1 => use_them(&[self.wr(0)]),
            len => {
                let wrs: [SendWr<'_>; BATCH_MAX] =
                    std::array::from_fn(|index| self.wr(index.min(len - 1)));
                use_them(&wrs[..len])
            }
        }
    }

    /// Hands the WRs from the `first` on to `use_them`: what is left after a refused one.
    pub fn with_from<R>(&self, first: usize, use_them: impl FnOnce(&[SendWr<'_>]) -> R) -> R {
        self.with(|wrs| use_them(wrs.get(first..).unwrap_or(&[])))
    }

    #[inline]
    fn wr(&self, index: usize) -> SendWr<'_> {
        let Send { wr_id, op, flags, inline, start, end } = self.wrs[index];
        let payload = if inline {
            Payload::Inline(&self.inline[start..end])
        } else {
            Payload::Sges(&self.sges[start..end])
        };
        SendWr { wr_id, op, flags, payload, dest: None }
    }

    /// Takes the WRs at the front of the ring that are of the VQP of the first.
    pub(crate) fn fill(
        &mut self,
        from: &mut Consumer,
        entry: &mut Entry,
    ) -> Result<u32, Violation> {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        let vqp = entry.id;
        self.add(entry)?;
        while self.wrs.len() < BATCH_MAX
            && from.pop_if(entry, |kind, id| kind == SEND && id == vqp)?
        {
            self.add(entry)?;
        }
        Ok(vqp)
    }

    #[inline]
    fn add(&mut self, entry: &Entry) -> Result<(), Violation> {
        let mut fields = Reader::new(entry.words());
        let wr_id = fields.word()?;
        let (shape, operand) = halves(fields.word()?);
        let shape = u64::from(shape);
        let opcode = opcode(byte(shape, 0))?;
        let flags =
            SendFlags::from_bits(byte(shape, 1)).ok_or(Violation::Field { field: "flags" })?;
        let op = take_operation(opcode, operand, &mut fields)?;
        let count = (shape >> 16) as u16;
        let len = usize::from(count & !INLINE);
        let inline = count & INLINE != 0;
        let (start, end) = if inline {
            if len > INLINE_MAX {
                return Err(Violation::Field { field: "inline length" });
            }
            fields.bytes(len, &mut self.bytes)?;
            let start = self.inline.len();
            self.inline.extend_from_slice(&self.bytes);
            (start, self.inline.len())
        } else {
            take_sges(&mut fields, len, &mut self.sges)?
        };
        self.wrs.push(Send { wr_id, op, flags, inline, start, end });
        Ok(())
    }
}

impl RecvBatch {
    /// How many WRs; at most [`BATCH_MAX`].
    pub fn len(&self) -> usize {
        self.wrs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.wrs.is_empty()
    }

    /// Hands the WRs to `use_them` as the verbs have them.
    #[inline]
    pub fn with<R>(&self, use_them: impl FnOnce(&[RecvWr<'_>]) -> R) -> R {
        let Some(last) = self.wrs.len().checked_sub(1) else { return use_them(&[]) };
        let wrs: [RecvWr<'_>; BATCH_MAX] = std::array::from_fn(|index| {
            let Receive { wr_id, start, end } = self.wrs[index.min(last)];
            RecvWr { wr_id, sges: &self.sges[start..end] }
        });
        use_them(&wrs[..=last])
    }

    /// Takes the receives at the front of the ring that are of the VQP of the first; `None` if
    /// there are none.
    pub(crate) fn fill(
        &mut self,
        from: &mut Consumer,
        entry: &mut Entry,
    ) -> Result<Option<u32>, Violation> {
        self.wrs.clear();
        self.sges.clear();
        if !from.pop(entry)? {
            return Ok(None);
        }
        let vqp = entry.id;
        self.add(entry)?;
        while self.wrs.len() < BATCH_MAX && from.pop_if(entry, |_, id| id == vqp)? {
            self.add(entry)?;
        }
        Ok(Some(vqp))
    }

    fn add(&mut self, entry: &Entry) -> Result<(), Violation> {
        if entry.kind != RECEIVE {
            return Err(Violation::Kind { kind: entry.kind });
        }
        let mut fields = Reader::new(entry.words());
        let wr_id = fields.word()?;
        let count = usize::try_from(fields.word()?).unwrap_or(usize::MAX);
        let (start, end) = take_sges(&mut fields, count, &mut self.sges)?;
        self.wrs.push(Receive { wr_id, start, end });
        Ok(())
    }
}

#[inline]
fn put_sges(writer: &mut Writer<'_>, sges: &[Sge]) {
    for sge in sges {
        writer.put(sge.addr);
        writer.put(join(sge.length, sge.lkey));
    }
}

#[inline]
fn take_sges(
    fields: &mut Reader<'_>,
    count: usize,
    into: &mut Vec<Sge>,
) -> Result<(usize, usize), Violation> {
    if count > SGES_MAX {
        return Err(Violation::Field { field: "number of SGEs" });
    }
    let start = into.len();
    for _ in 0..count {
        let addr = fields.word()?;
        let (length, lkey) = halves(fields.word()?);
        into.push(Sge { addr, length, lkey });
    }
    Ok((start, into.len()))
}

/// Number of an operation, and the operand that finds place beside it.
#[inline]
fn operation(op: &SendOp) -> (u8, u32) {
    let operand = match *op {
        SendOp::Send => 0,
        SendOp::SendWithImm(value) | SendOp::SendWithInv(value) | SendOp::LocalInv(value) => value,
        SendOp::Write(remote)
        | SendOp::WriteWithImm(remote, _)
        | SendOp::Read(remote)
        | SendOp::CompareSwap { remote, .. }
        | SendOp::FetchAdd { remote, .. } => remote.rkey,
        SendOp::BindMw(bind) => bind.rkey,
    };
    (op.opcode() as u8, operand)
}

fn opcode(number: u8) -> Result<SendOpcode, Violation> {
    SendOpcode::ALL.get(usize::from(number)).copied().ok_or(Violation::Field { field: "opcode" })
}

/// Words that an operation's other operands take.
#[inline]
fn operands(opcode: SendOpcode) -> usize {
    match opcode {
        SendOpcode::Send
        | SendOpcode::SendWithImm
        | SendOpcode::SendWithInv
        | SendOpcode::LocalInv => 0,
        SendOpcode::Write | SendOpcode::Read => 1,
        SendOpcode::WriteWithImm | SendOpcode::FetchAdd => 2,
        SendOpcode::CompareSwap => 3,
        SendOpcode::BindMw => 4,
    }
}

#[inline]
fn put_operands(writer: &mut Writer<'_>, op: &SendOp) {
    match *op {
        SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInv(_) | SendOp::LocalInv(_) => {}
        SendOp::Write(remote) | SendOp::Read(remote) => writer.put(remote.addr),
        SendOp::WriteWithImm(remote, imm) => {
            writer.put(remote.addr);
            writer.put(u64::from(imm));
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            writer.put(remote.addr);
            writer.put(compare);
            writer.put(swap);
        }
        SendOp::FetchAdd { remote, add } => {
            writer.put(remote.addr);
            writer.put(add);
        }
        SendOp::BindMw(bind) => {
            writer.put(join(bind.mw.0, bind.mr.0));
            writer.put(bind.addr);
            writer.put(bind.length);
            writer.put(u64::from(bind.access.bits()));
        }
    }
}

#[inline]
fn take_operation(
    opcode: SendOpcode,
    operand: u32,
    fields: &mut Reader<'_>,
) -> Result<SendOp, Violation> {
    let rkey = operand;
    Ok(match opcode {
        SendOpcode::Send => SendOp::Send,
        SendOpcode::SendWithImm => SendOp::SendWithImm(operand),
        SendOpcode::SendWithInv => SendOp::SendWithInv(operand),
        SendOpcode::LocalInv => SendOp::LocalInv(operand),
        SendOpcode::Write => SendOp::Write(RemoteAddr { addr: fields.word()?, rkey }),
        SendOpcode::Read => SendOp::Read(RemoteAddr { addr: fields.word()?, rkey }),
        SendOpcode::WriteWithImm => {
            let remote = RemoteAddr { addr: fields.word()?, rkey };
            SendOp::WriteWithImm(remote, fields.word()? as u32)
        }
        SendOpcode::CompareSwap => {
            let remote = RemoteAddr { addr: fields.word()?, rkey };
            SendOp::CompareSwap { remote, compare: fields.word()?, swap: fields.word()? }
        }
        SendOpcode::FetchAdd => {
            let remote = RemoteAddr { addr: fields.word()?, rkey };
            SendOp::FetchAdd { remote, add: fields.word()? }
        }
        SendOpcode::BindMw => {
            let (mw, mr) = halves(fields.word()?);
            let (addr, length) = (fields.word()?, fields.word()?);
            let access = AccessFlags::from_bits(fields.word()? as u32)
                .ok_or(Violation::Field { field: "access" })?;
            SendOp::BindMw(BindMw { mw: Mw(mw), rkey, mr: Mr(mr), addr, length, access })
        }
    })
}
