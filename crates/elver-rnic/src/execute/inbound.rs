//! SENDs and WRITEs: what brings bytes.

use elver_verbs::{AccessFlags, Gid, Memory, Wc, WcFlags, WcOpcode, WcStatus};
use elver_wire::{Reth, Tail};

use super::fault::Fault;
use super::source::Source;
use crate::hw::Hw;
use crate::place::Place;
use crate::qp_core::QpCore;
use crate::recv_queue::Recv;

/// The SEND or WRITE that is arriving, packet by packet or at once.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    state: Incoming,
    recv: Recv,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Incoming {
    #[default]
    None,
    /// A SEND; so many bytes are in the receive.
    Send { received: u32 },
    /// A WRITE, and what is left of it.
    Write { va: u64, rkey: u32, remaining: u32, length: u32 },
}

/// Who sent something: its QPN, and its node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) qpn: u32,
    pub(crate) gid: Gid,
}

/// What the end of a SEND, or of a WRITE with immediate data, tells its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) tail: Tail,
    pub(crate) solicited: bool,
    pub(crate) source: Sender,
}

impl End {
    /// The end of a WRITE, which tells something only if it has immediate data.
    #[inline]
    pub(crate) fn of_write(
        imm: Option<u32>,
        solicited: bool,
        source: impl FnOnce() -> Sender,
    ) -> Option<End> {
        imm.map(|imm| End { tail: Tail::Imm(imm), solicited, source: source() })
    }
}

impl Inbound {
    /// One that uses the buffers of `recv`.
    pub(crate) fn with_buffers(recv: Recv) -> Inbound {
        Inbound { state: Incoming::None, recv }
    }

    pub(crate) fn into_buffers(self) -> Recv {
        self.recv
    }

    /// Whether no message has begun that has not ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.state == Incoming::None
    }

    /// Whether a SEND has begun and not ended; its receive is taken.
    pub(crate) fn holds_receive(&self) -> bool {
        matches!(self.state, Incoming::Send { .. })
    }

    /// Gives back the receive of a message that will never end.
    pub(crate) fn take_receive(&mut self) -> Option<&Recv> {
        let held = self.holds_receive();
        self.state = Incoming::None;
        held.then_some(&self.recv)
    }

    /// The message that has just begun has not: its first bytes must wait.
    #[cold]
    pub(crate) fn undo(&mut self) {
        self.state = Incoming::None;
    }

    // ---- SEND ----

    /// Takes bytes of a SEND, the first of which take a receive; its last come with `end`.
    #[inline]
    pub(crate) fn send<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        bytes: &(impl Source + ?Sized),
        end: Option<End>,
    ) -> Result<(), Fault> {
        let received = match self.state {
            Incoming::None => {
                if !core.take_receive(hw, &mut self.recv) {
                    return Err(Fault::NotReady);
                }
                0
            }
            Incoming::Send { received } => received,
            Incoming::Write { .. } => return Err(Fault::Invalid),
        };
        let total = received.saturating_add(bytes.len());
        self.state = Incoming::Send { received: total };
        if u64::from(total) > self.recv.capacity || total > core.max_message {
            return Err(self.fail_receive(core, hw, WcStatus::LocLenErr, Fault::Length));
        }
        if let Err(fault) = bytes.scatter(&hw.regions, core.pd, &self.recv.sges, received) {
            if fault == Fault::Later {
                // Only within a device, where all comes at once.
                self.undo();
                core.return_receive(hw, &self.recv);
                return Err(fault);
            }
            return Err(self.fail_receive(core, hw, WcStatus::LocProtErr, fault));
        }
        let Some(end) = end else {
            return Ok(());
        };
        if let Tail::Inv(rkey) = end.tail
            && hw.regions.keys.invalidate(core.pd, core.qpn.get(), rkey).is_err()
        {
            return Err(self.fail_receive(core, hw, WcStatus::LocAccessErr, Fault::Access));
        }
        self.state = Incoming::None;
        self.complete(core, hw, WcOpcode::Recv, total, &end);
        Ok(())
    }

    // ---- WRITE ----

    /// Checks a WRITE as a whole, before its first byte.
    #[inline]
    pub(crate) fn begin_write<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        reth: &Reth,
    ) -> Result<(), Fault> {
        grant_write(core, hw, reth)?;
        let Reth { va, rkey, len } = *reth;
        self.state = Incoming::Write { va, rkey, remaining: len, length: len };
        Ok(())
    }

    /// Takes bytes of a WRITE that are not its last.
    #[inline]
    pub(crate) fn write<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        bytes: &(impl Source + ?Sized),
    ) -> Result<(), Fault> {
        let Incoming::Write { va, rkey, remaining, length } = self.state else {
            return Err(Fault::Invalid);
        };
        let len = bytes.len();
        if len >= remaining {
            return Err(Fault::Length);
        }
        store(hw, write_place(core, hw, va, rkey, len)?, bytes)?;
        let va = va.wrapping_add(u64::from(len));
        self.state = Incoming::Write { va, rkey, remaining: remaining - len, length };
        Ok(())
    }

    /// Takes the last bytes of a WRITE. Keys are looked up again: the region may have gone since the
    /// message began, and then no receive is taken for its immediate data. Without a receive for its immediate data, what came before stays as it is, and
    /// the end may come again.
    #[inline]
    pub(crate) fn end_write<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        bytes: &(impl Source + ?Sized),
        end: Option<End>,
    ) -> Result<(), Fault> {
        let Incoming::Write { va, rkey, remaining, length } = self.state else {
            return Err(Fault::Invalid);
        };
        if bytes.len() != remaining {
            return Err(Fault::Length);
        }
        let place = write_place(core, hw, va, rkey, remaining)?;
        self.finish_write(core, hw, place, bytes, length, end)?;
        self.state = Incoming::None;
        Ok(())
    }

    /// A WRITE whose first packet is its last: one that must wait has not begun. Its end says that it was of `total` bytes.
    #[inline]
    pub(crate) fn write_only<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        reth: &Reth,
        total: u32,
        bytes: &(impl Source + ?Sized),
        end: Option<End>,
    ) -> Result<(), Fault> {
        let place = grant_write(core, hw, reth)?;
        if bytes.len() != reth.len {
            return Err(Fault::Length);
        }
        self.finish_write(core, hw, place, bytes, total, end)
    }

    /// Writes the last bytes of a WRITE of `length`, and tells its end. With immediate data it needs
    /// a receive, before any of them is written.
    #[inline]
    fn finish_write<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        place: Option<Place>,
        bytes: &(impl Source + ?Sized),
        length: u32,
        end: Option<End>,
    ) -> Result<(), Fault> {
        let Some(end) = end else {
            return store(hw, place, bytes);
        };
        if !core.take_receive(hw, &mut self.recv) {
            return Err(Fault::NotReady);
        }
        if let Err(fault) = store(hw, place, bytes) {
            if fault == Fault::Later {
                core.return_receive(hw, &self.recv);
                return Err(fault);
            }
            return Err(self.fail_receive(core, hw, WcStatus::LocAccessErr, fault));
        }
        self.complete(core, hw, WcOpcode::RecvRdmaWithImm, length, &end);
        Ok(())
    }

    // ---- receives ----

    fn complete<M: Memory>(
        &self,
        core: &QpCore,
        hw: &mut Hw<M>,
        opcode: WcOpcode,
        byte_len: u32,
        end: &End,
    ) {
        let (flags, imm_data) = match end.tail {
            Tail::Plain => (WcFlags::empty(), 0),
            Tail::Imm(imm) => (WcFlags::WITH_IMM, imm),
            Tail::Inv(rkey) => (WcFlags::WITH_INV, rkey),
        };
        let wc = Wc {
            wr_id: self.recv.wr_id,
            status: WcStatus::Success,
            opcode,
            flags,
            byte_len,
            imm_data,
            qp_num: core.qpn.get(),
            src_qp: end.source.qpn,
            vendor_err: 0,
            src_gid: end.source.gid,
        };
        core.complete_receive(hw, wc, end.solicited);
    }

    /// Ends a message that had a receive. On a reliable transport the receive completes with an
    /// error, since its sender is told as well; an unreliable one drops the message, and the
    /// receive serves the next (IBTA vol. 1, 9.8.2.2.8).
    #[cold]
    fn fail_receive<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        status: WcStatus,
        fault: Fault,
    ) -> Fault {
        self.state = Incoming::None;
        if core.qp_type.is_reliable() && fault != Fault::Source {
            core.complete_failed(hw, self.recv.wr_id, status);
        } else {
            core.return_receive(hw, &self.recv);
        }
        fault
    }
}

/// What a QP and a region grant of a WRITE.
#[inline]
fn grant_write<M: Memory>(core: &QpCore, hw: &Hw<M>, reth: &Reth) -> Result<Option<Place>, Fault> {
    core.check_access(AccessFlags::REMOTE_WRITE)?;
    if reth.len > core.max_message {
        return Err(Fault::Length);
    }
    write_place(core, hw, reth.va, reth.rkey, reth.len)
}

#[inline]
fn write_place<M: Memory>(
    core: &QpCore,
    hw: &Hw<M>,
    va: u64,
    rkey: u32,
    len: u32,
) -> Result<Option<Place>, Fault> {
    core.place(hw, va, rkey, len, AccessFlags::REMOTE_WRITE)
}

/// Writes bytes where they were granted; none need no place.
#[inline(always)]
fn store<M: Memory>(
    hw: &Hw<M>,
    place: Option<Place>,
    bytes: &(impl Source + ?Sized),
) -> Result<(), Fault> {
    match place {
        Some(place) => bytes.put(&hw.regions, place),
        None => Ok(()),
    }
}
