//! SENDs and WRITEs: what brings bytes.

use elver_verbs::{AccessFlags, Gid, Memory, Wc, WcFlags, WcOpcode, WcStatus};
use elver_wire::{Reth, Tail};

use super::{Fault, Source};
use crate::hw::Hw;
use crate::qp::QpCore;
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

/// What the end of a SEND tells its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) tail: Tail,
    pub(crate) solicited: bool,
    pub(crate) source: Sender,
}

/// What the end of a WRITE tells its receiver, if it has immediate data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) imm: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) source: Sender,
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
        if u64::from(total) > self.recv.capacity {
            return Err(self.fail_receive(core, hw, WcStatus::LocLenErr, Fault::Length));
        }
        if let Err(fault) = bytes.scatter(&hw.regions, core.pd, &self.recv.sges, received) {
            return Err(self.fail_receive(core, hw, WcStatus::LocProtErr, fault));
        }
        let Some(end) = end else {
            return Ok(());
        };
        if let Tail::Inv(rkey) = end.tail
            && hw.regions.invalidate(core.pd, core.qpn.get(), rkey).is_err()
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
        core.check_access(AccessFlags::REMOTE_WRITE)?;
        core.place(hw, reth.va, reth.rkey, reth.len, AccessFlags::REMOTE_WRITE)?;
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
        self.put(core, hw, bytes, false)
    }

    /// Takes the last bytes of a WRITE. With immediate data it needs a receive, before any of them
    /// is written; without one, what came before stays as it is, and the end may come again.
    #[inline]
    pub(crate) fn end_write<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        bytes: &(impl Source + ?Sized),
        end: Ended,
    ) -> Result<(), Fault> {
        let Incoming::Write { remaining, length, .. } = self.state else {
            return Err(Fault::Invalid);
        };
        if bytes.len() != remaining {
            return Err(Fault::Length);
        }
        let Some(imm) = end.imm else {
            return self.put(core, hw, bytes, true);
        };
        if !core.take_receive(hw, &mut self.recv) {
            return Err(Fault::NotReady);
        }
        if let Err(fault) = self.put(core, hw, bytes, true) {
            return Err(self.fail_receive(core, hw, WcStatus::LocAccessErr, fault));
        }
        let end = End { tail: Tail::Imm(imm), solicited: end.solicited, source: end.source };
        self.complete(core, hw, WcOpcode::RecvRdmaWithImm, length, &end);
        Ok(())
    }

    /// A WRITE whose first packet is its last: one that must wait has not begun.
    #[inline]
    pub(crate) fn write_only<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        reth: &Reth,
        bytes: &(impl Source + ?Sized),
        end: Ended,
    ) -> Result<(), Fault> {
        self.begin_write(core, hw, reth)?;
        let ended = self.end_write(core, hw, bytes, end);
        if ended.is_err() {
            self.state = Incoming::None;
        }
        ended
    }

    /// Writes bytes to where a WRITE stands. Keys are looked up again: the region may have gone
    /// since the message began.
    #[inline]
    fn put<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        bytes: &(impl Source + ?Sized),
        last: bool,
    ) -> Result<(), Fault> {
        let Incoming::Write { va, rkey, remaining, length } = self.state else {
            return Err(Fault::Invalid);
        };
        let len = bytes.len();
        if len > remaining || (last != (len == remaining)) {
            return Err(Fault::Length);
        }
        if let Some(place) = core.place(hw, va, rkey, len, AccessFlags::REMOTE_WRITE)? {
            bytes.put(&hw.regions, place)?;
        }
        self.state = if last {
            Incoming::None
        } else {
            let va = va.wrapping_add(u64::from(len));
            Incoming::Write { va, rkey, remaining: remaining - len, length }
        };
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
        hw.complete(core.init.recv_cq.0, wc, end.solicited);
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
            let (cq, qpn) = (core.init.recv_cq.0, core.qpn.get());
            hw.complete_failed(cq, qpn, self.recv.wr_id, WcOpcode::Recv, status);
        } else {
            core.return_receive(hw, &self.recv);
        }
        fault
    }
}
