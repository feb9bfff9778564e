//! Receiving UC and UD: no answers, and what is out of order is dropped (IBTA vol. 1, 9.8).

use elver_verbs::{AccessFlags, Memory, Wc, WcFlags, WcOpcode, WcStatus};
use elver_wire::{Deth, Headers, Message, Psn, Reth, Tail};

use crate::RxMeta;
use crate::grh;
use crate::hw::Hw;
use crate::qp::QpCore;
use crate::recv_queue::Recv;
use crate::responder::check_length;

/// The UC message that is arriving.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    epsn: Option<Psn>,
    message: Incoming,
    recv: Recv,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Incoming {
    #[default]
    None,
    Send {
        received: u32,
    },
    Write {
        va: u64,
        rkey: u32,
        remaining: u32,
        length: u32,
    },
}

/// Why a packet and the message that it belongs to are dropped.
enum Dropped {
    Sequence,
    NoReceive,
    Length,
    Access,
}

impl Assembly {
    pub(crate) fn expect(&mut self, psn: Psn) {
        self.epsn = Some(psn);
    }

    /// Gives back the receive of a message that will never end.
    pub(crate) fn take_receive(&mut self) -> Option<&Recv> {
        let held = matches!(self.message, Incoming::Send { .. });
        self.message = Incoming::None;
        held.then_some(&self.recv)
    }

    /// Takes a UC packet.
    pub(crate) fn packet<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        headers: &Headers,
        payload: &[u8],
    ) {
        let message = headers.message();
        let begins = matches!(
            message,
            Message::SendFirst
                | Message::SendOnly(_)
                | Message::WriteFirst(_)
                | Message::WriteOnly(..)
        );
        let expected = self.epsn == Some(headers.psn);
        if (begins || !expected) && self.message != Incoming::None {
            hw.counters.drop_unreliable += 1;
            self.abandon(core, hw);
        }
        if begins || expected {
            self.epsn = Some(headers.psn.next());
        }
        let taken = if begins == (self.message == Incoming::None) && (begins || expected) {
            check_length(core.attr.path_mtu.bytes(), &message, payload.len() as u32)
                .map_err(|_| Dropped::Length)
                .and_then(|()| self.take(core, hw, headers, payload))
        } else {
            Err(Dropped::Sequence)
        };
        if let Err(reason) = taken {
            match reason {
                Dropped::Sequence | Dropped::Access => hw.counters.drop_unreliable += 1,
                Dropped::NoReceive => hw.counters.drop_no_receive += 1,
                Dropped::Length => hw.counters.drop_length += 1,
            }
            self.abandon(core, hw);
        }
    }

    /// Drops the message that is arriving; its receive serves the next one.
    fn abandon<M: Memory>(&mut self, core: &mut QpCore, hw: &mut Hw<M>) {
        if let Some(recv) = self.take_receive() {
            core.return_receive(hw, recv);
        }
    }

    fn take<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Dropped> {
        match headers.message() {
            Message::SendFirst | Message::SendMiddle => self.send(core, hw, payload),
            Message::SendLast(tail) | Message::SendOnly(tail) => {
                self.send(core, hw, payload)?;
                let Incoming::Send { received } = self.message else {
                    return Err(Dropped::Sequence);
                };
                self.message = Incoming::None;
                let imm = match tail {
                    Tail::Imm(imm) => Some(imm),
                    _ => None,
                };
                self.complete(core, hw, WcOpcode::Recv, received, imm, headers.solicited);
                Ok(())
            }
            Message::WriteFirst(reth) => {
                self.begin_write(core, hw, &reth)?;
                self.write(core, hw, payload)
            }
            Message::WriteMiddle => self.write(core, hw, payload),
            Message::WriteOnly(reth, imm) => {
                self.begin_write(core, hw, &reth)?;
                self.end_write(core, hw, payload, imm, headers.solicited)
            }
            Message::WriteLast(imm) => self.end_write(core, hw, payload, imm, headers.solicited),
            _ => Err(Dropped::Sequence),
        }
    }

    fn send<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        payload: &[u8],
    ) -> Result<(), Dropped> {
        let received = match self.message {
            Incoming::None => {
                if !core.take_receive(hw, &mut self.recv) {
                    return Err(Dropped::NoReceive);
                }
                self.message = Incoming::Send { received: 0 };
                0
            }
            Incoming::Send { received } => received,
            Incoming::Write { .. } => return Err(Dropped::Sequence),
        };
        let total = received + payload.len() as u32;
        if u64::from(total) > self.recv.capacity {
            return Err(Dropped::Length);
        }
        hw.regions
            .scatter(core.pd, &self.recv.sges, received, payload)
            .map_err(|_| Dropped::Access)?;
        self.message = Incoming::Send { received: total };
        Ok(())
    }

    fn begin_write<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        reth: &Reth,
    ) -> Result<(), Dropped> {
        let access = AccessFlags::REMOTE_WRITE;
        if !core.attr.qp_access_flags.contains(access) {
            return Err(Dropped::Access);
        }
        let (qpn, len) = (core.qpn.get(), u64::from(reth.len));
        hw.regions
            .remote(core.pd, qpn, reth.rkey, reth.va, len, access)
            .map_err(|_| Dropped::Access)?;
        let (va, rkey, length) = (reth.va, reth.rkey, reth.len);
        self.message = Incoming::Write { va, rkey, remaining: length, length };
        Ok(())
    }

    fn write<M: Memory>(
        &mut self,
        core: &QpCore,
        hw: &Hw<M>,
        payload: &[u8],
    ) -> Result<(), Dropped> {
        let Incoming::Write { va, rkey, remaining, length } = self.message else {
            return Err(Dropped::Sequence);
        };
        let len = payload.len() as u32;
        if len > remaining {
            return Err(Dropped::Length);
        }
        let access = AccessFlags::REMOTE_WRITE;
        let place = hw
            .regions
            .remote(core.pd, core.qpn.get(), rkey, va, u64::from(len), access)
            .map_err(|_| Dropped::Access)?;
        if let Some(place) = place {
            hw.regions.write(place, payload).map_err(|_| Dropped::Access)?;
        }
        let va = va.wrapping_add(u64::from(len));
        self.message = Incoming::Write { va, rkey, remaining: remaining - len, length };
        Ok(())
    }

    fn end_write<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        payload: &[u8],
        imm: Option<u32>,
        solicited: bool,
    ) -> Result<(), Dropped> {
        let Incoming::Write { remaining, length, .. } = self.message else {
            return Err(Dropped::Sequence);
        };
        if payload.len() as u32 != remaining {
            return Err(Dropped::Length);
        }
        if imm.is_some() && !core.take_receive(hw, &mut self.recv) {
            return Err(Dropped::NoReceive);
        }
        if let Err(dropped) = self.write(core, hw, payload) {
            if imm.is_some() {
                core.return_receive(hw, &self.recv);
            }
            return Err(dropped);
        }
        self.message = Incoming::None;
        if imm.is_some() {
            self.complete(core, hw, WcOpcode::RecvRdmaWithImm, length, imm, solicited);
        }
        Ok(())
    }

    fn complete<M: Memory>(
        &self,
        core: &QpCore,
        hw: &mut Hw<M>,
        opcode: WcOpcode,
        byte_len: u32,
        imm: Option<u32>,
        solicited: bool,
    ) {
        let wc = Wc {
            wr_id: self.recv.wr_id,
            status: WcStatus::Success,
            opcode,
            flags: if imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() },
            byte_len,
            imm_data: imm.unwrap_or(0),
            qp_num: core.qpn.get(),
            src_qp: core.attr.dest_qp_num,
            vendor_err: 0,
        };
        hw.complete(core.init.recv_cq.0, wc, solicited);
    }
}

/// Takes a UD packet: its GRH and its payload go into one receive.
pub(crate) fn datagram<M: Memory>(
    core: &mut QpCore,
    hw: &mut Hw<M>,
    meta: &RxMeta,
    deth: &Deth,
    headers: &Headers,
    payload: &[u8],
) {
    if deth.qkey != core.attr.qkey {
        hw.counters.drop_qkey += 1;
        return;
    }
    let Message::SendOnly(tail) = headers.message() else {
        // UD has no other message, so that none of it was parsed.
        hw.counters.drop_opcode += 1;
        return;
    };
    let imm = match tail {
        Tail::Imm(imm) => Some(imm),
        _ => None,
    };
    let source = deth.src_qpn.get();
    let grh = grh::from_meta(meta, payload.len());
    receive_datagram(
        core,
        hw,
        &grh,
        source,
        imm,
        headers.solicited,
        payload.len(),
        |core, hw, recv| hw.regions.scatter(core.pd, &recv.sges, grh::LEN as u32, payload).is_ok(),
    );
}

/// Gives a datagram to the oldest receive; `fill` puts its payload behind the GRH. One that finds
/// no receive, or does not fit it, is dropped: no peer can stop a UD QP.
#[allow(clippy::too_many_arguments, reason = "one call site each for packets and local copies")]
pub(crate) fn receive_datagram<M: Memory>(
    core: &mut QpCore,
    hw: &mut Hw<M>,
    grh: &[u8; grh::LEN],
    src_qp: u32,
    imm: Option<u32>,
    solicited: bool,
    payload_len: usize,
    fill: impl FnOnce(&QpCore, &mut Hw<M>, &Recv) -> bool,
) {
    let mut recv = core::mem::take(&mut hw.scratch.recv);
    let byte_len = (grh::LEN + payload_len) as u32;
    if !core.take_receive(hw, &mut recv) {
        hw.counters.drop_no_receive += 1;
    } else if u64::from(byte_len) > recv.capacity {
        hw.counters.drop_length += 1;
        core.return_receive(hw, &recv);
    } else {
        let filled =
            hw.regions.scatter(core.pd, &recv.sges, 0, grh).is_ok() && fill(core, hw, &recv);
        let status = if filled { WcStatus::Success } else { WcStatus::LocProtErr };
        let with_imm = if imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        let wc = Wc {
            wr_id: recv.wr_id,
            status,
            opcode: WcOpcode::Recv,
            flags: WcFlags::GRH | with_imm,
            byte_len,
            imm_data: imm.unwrap_or(0),
            qp_num: core.qpn.get(),
            src_qp,
            vendor_err: 0,
        };
        hw.complete(core.init.recv_cq.0, wc, solicited);
    }
    hw.scratch.recv = recv;
}
