//! A send WR as its VQP's ring holds it.

use core::num::NonZeroU8;

use elver_verbs::{
    AccessFault, AccessFlags, MaybeSlot, RemoteAddr, SendFlags, SendOp, SendOpcode, Sge, WcStatus,
};

/// Where the bytes of a WR stand, and who may still read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// In its regions.
    Local,
    /// In the ring: they were copied.
    Inline,
    /// In its regions, which are shared for the receiver of this message to read: it ends with the receiver's
    /// FIN, which is awaited.
    Shared,
    /// They were, until the receiver had read them or was known not to.
    Over,
}

/// A send WR in its ring. Each step of its way looks at one cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SqEntry {
    /// The user's.
    pub(crate) wr_id: u64,
    /// The remote address, of what has one.
    pub(crate) addr: u64,
    /// The user's SGE, if it is the only one.
    pub(crate) sge: Sge,
    /// The remote key.
    pub(crate) rkey: u32,
    /// The immediate data, of what has some.
    pub(crate) imm: u32,
    /// Bytes of the message.
    pub(crate) length: u32,
    /// Local region of the first SGE, whose count of users it holds.
    pub(crate) mr: MaybeSlot,
    /// Send slot that holds a message's header while it is on the lane.
    pub(crate) slot: MaybeSlot,
    /// The user's operation.
    pub(crate) opcode: SendOpcode,
    /// SGEs of the user's.
    pub(crate) num_sge: u8,
    /// The user's flags; signalled if all of the VQP's are.
    pub(crate) flags: SendFlags,
    /// How it ended, once it is done.
    pub(crate) status: WcStatus,
    pub(crate) bytes: Bytes,
    /// The WRITE of a WRITE_WITH_IMM is executed, its message is not.
    pub(crate) first_done: bool,
    /// What it ended for, if that was the access to the peer's memory.
    pub(crate) detail: Option<AccessFault>,
    /// It is plain ([`Plain`]), and ends with the `run - 1` before it, which are as well, use the same region and
    /// are not signalled.
    ///
    /// [`Plain`]: crate::datapath::plain::Plain
    pub(crate) run: Option<NonZeroU8>,
}

const _: () = assert!(size_of::<SqEntry>() == 64);

impl SqEntry {
    /// A WR of no bytes as it is when it comes.
    pub(crate) const BLANK: SqEntry = SqEntry {
        wr_id: 0,
        addr: 0,
        sge: Sge { addr: 0, length: 0, lkey: 0 },
        rkey: 0,
        imm: 0,
        length: 0,
        mr: MaybeSlot::NONE,
        slot: MaybeSlot::NONE,
        opcode: SendOpcode::Send,
        num_sge: 0,
        flags: SendFlags::empty(),
        status: WcStatus::Success,
        bytes: Bytes::Local,
        first_done: false,
        detail: None,
        run: None,
    };

    /// A WR of no bytes that does this. What only atomics have it does not hold.
    #[inline]
    pub(crate) fn new(wr_id: u64, op: &SendOp, flags: SendFlags) -> SqEntry {
        let (remote, imm) = match *op {
            SendOp::Write(remote)
            | SendOp::Read(remote)
            | SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. } => (remote, 0),
            SendOp::WriteWithImm(remote, imm) => (remote, imm),
            SendOp::SendWithImm(imm) => (RemoteAddr { addr: 0, rkey: 0 }, imm),
            _ => (RemoteAddr { addr: 0, rkey: 0 }, 0),
        };
        let RemoteAddr { addr, rkey } = remote;
        SqEntry { wr_id, addr, rkey, imm, opcode: op.opcode(), flags, ..SqEntry::BLANK }
    }

    /// The remote memory that it touches and what that must permit; none for a message.
    #[inline]
    pub(crate) fn remote(&self) -> Option<(RemoteAddr, AccessFlags)> {
        let needs = match self.opcode {
            SendOpcode::Write | SendOpcode::WriteWithImm => AccessFlags::REMOTE_WRITE,
            SendOpcode::Read => AccessFlags::REMOTE_READ,
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => AccessFlags::REMOTE_ATOMIC,
            _ => return None,
        };
        Some((self.remote_addr(), needs))
    }

    #[inline]
    pub(crate) fn remote_addr(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr, rkey: self.rkey }
    }

    /// Whether nothing is left to do for it when it is done but to tell it: it has one piece at most,
    /// nobody else reads that, and it succeeded.
    #[inline]
    pub(crate) fn ends_plainly(&self) -> bool {
        self.num_sge < 2
            && !self.was_shared()
            && self.slot == MaybeSlot::NONE
            && self.status == WcStatus::Success
    }

    /// Whether its regions were shared for the receiver to read.
    #[inline]
    pub(crate) fn was_shared(&self) -> bool {
        matches!(self.bytes, Bytes::Shared | Bytes::Over)
    }

    /// How many WRs, itself included, end with it as one.
    #[inline]
    pub(crate) fn run(&self) -> u32 {
        self.run.map_or(0, NonZeroU8::get).into()
    }

    /// Physical WRs that it takes.
    #[inline]
    pub(crate) fn cost(&self) -> u32 {
        u32::from(self.opcode == SendOpcode::WriteWithImm && !self.first_done) + 1
    }

    /// Whether it travels as a message, alone or behind a WRITE.
    #[inline]
    pub(crate) fn is_message(&self) -> bool {
        self.is_send() || self.opcode == SendOpcode::WriteWithImm
    }

    /// Whether it is a message alone.
    #[inline]
    pub(crate) fn is_send(&self) -> bool {
        matches!(self.opcode, SendOpcode::Send | SendOpcode::SendWithImm)
    }
}
