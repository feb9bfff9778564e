//! Receiving UC and UD: no answers, and what is out of order is dropped (IBTA vol. 1, 9.8).

use elver_verbs::{Gid, Memory, Wc, WcFlags, WcOpcode, WcStatus};
use elver_wire::{Deth, Headers, Message, Psn, Tail};

use crate::RxMeta;
use crate::execute::{End, Fault, Inbound, Sender, Source};
use crate::grh;
use crate::hw::Hw;
use crate::qp_core::QpCore;
use crate::recv_queue::Recv;
use crate::responder::check_length;

/// The UC message that is arriving.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    epsn: Option<Psn>,
    inbound: Inbound,
}

impl Assembly {
    pub(crate) fn expect(&mut self, psn: Psn) {
        self.epsn = Some(psn);
    }

    /// Gives back the receive of a message that will never end.
    pub(crate) fn take_receive(&mut self) -> Option<&Recv> {
        self.inbound.take_receive()
    }

    /// Takes a UC packet, or says why its message is dropped.
    pub(crate) fn packet<M: Memory>(
        &mut self,
        core: &mut QpCore,
        hw: &mut Hw<M>,
        headers: &Headers,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let message = headers.message();
        let begins = matches!(
            message,
            Message::SendFirst
                | Message::SendOnly(_)
                | Message::WriteFirst(_)
                | Message::WriteOnly(..)
        );
        let expected = self.epsn == Some(headers.psn);
        if (begins || !expected) && !self.inbound.is_idle() {
            hw.counters.drop_unreliable += 1;
            self.abandon(core, hw);
        }
        if begins || expected {
            self.epsn = Some(headers.psn.next());
        }
        let taken = if begins == self.inbound.is_idle() && (begins || expected) {
            check_length(core.attr.path_mtu.bytes(), &message, payload.len() as u32)
                .and_then(|()| self.take(core, hw, headers, payload))
        } else {
            Err(Fault::Invalid)
        };
        if let Err(fault) = taken {
            // Nobody sends it again, and it does not wait.
            hw.regions.desk.clear();
            fault.count_drop(&mut hw.counters);
            self.abandon(core, hw);
        }
        taken
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
    ) -> Result<(), Fault> {
        let inbound = &mut self.inbound;
        let (qpn, gid) = (core.attr.dest_qp_num, core.attr.ah_attr.dgid);
        let (solicited, source) = (headers.solicited, Sender { qpn, gid });
        let end_of_write = |imm| End::of_write(imm, solicited, || source);
        match headers.message() {
            Message::SendFirst | Message::SendMiddle => inbound.send(core, hw, payload, None),
            // UC has no SEND that invalidates, so that none was parsed.
            Message::SendLast(tail) | Message::SendOnly(tail) => {
                inbound.send(core, hw, payload, Some(End { tail, solicited, source }))
            }
            Message::WriteFirst(reth) => {
                inbound.begin_write(core, hw, &reth)?;
                inbound.write(core, hw, payload)
            }
            Message::WriteMiddle => inbound.write(core, hw, payload),
            Message::WriteOnly(reth, imm) => {
                inbound.write_only(core, hw, &reth, reth.len, payload, end_of_write(imm))
            }
            Message::WriteLast(imm) => inbound.end_write(core, hw, payload, end_of_write(imm)),
            _ => Err(Fault::Invalid),
        }
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
    let grh = grh::from_meta(meta, payload.len());
    let source = Sender { qpn: deth.src_qpn.get(), gid: Gid::from(meta.flow.src.ip()) };
    let end = End { tail, solicited: headers.solicited, source };
    if let Err(fault) = receive_datagram(core, hw, &grh, payload, end) {
        fault.count_drop(&mut hw.counters);
    }
}

/// Gives a datagram to the oldest receive, its payload behind its GRH. One that finds no receive,
/// or does not fit it, is dropped: no peer can stop a UD QP.
pub(crate) fn receive_datagram<M: Memory>(
    core: &mut QpCore,
    hw: &mut Hw<M>,
    grh: &[u8; grh::LEN],
    payload: &(impl Source + ?Sized),
    end: End,
) -> Result<(), Fault> {
    let mut recv = core::mem::take(&mut hw.scratch.recv);
    let taken = fill_datagram(core, hw, &mut recv, grh, payload, end);
    hw.scratch.recv = recv;
    taken
}

fn fill_datagram<M: Memory>(
    core: &mut QpCore,
    hw: &mut Hw<M>,
    recv: &mut Recv,
    grh: &[u8; grh::LEN],
    payload: &(impl Source + ?Sized),
    end: End,
) -> Result<(), Fault> {
    if !core.take_receive(hw, recv) {
        return Err(Fault::NotReady);
    }
    let byte_len = grh::LEN as u32 + payload.len();
    if u64::from(byte_len) > recv.capacity {
        core.return_receive(hw, recv);
        return Err(Fault::Length);
    }
    let header = hw.regions.scatter(core.pd, &recv.sges, 0, grh).map_err(|_| Fault::Operation);
    let filled =
        header.and_then(|()| payload.scatter(&hw.regions, core.pd, &recv.sges, grh::LEN as u32));
    let status = match filled {
        Ok(()) => WcStatus::Success,
        Err(fault @ (Fault::Source | Fault::Later)) => {
            core.return_receive(hw, recv);
            return Err(fault);
        }
        Err(_) => WcStatus::LocProtErr,
    };
    let (with_imm, imm_data) = match end.tail {
        Tail::Imm(imm) => (WcFlags::WITH_IMM, imm),
        _ => (WcFlags::empty(), 0),
    };
    let wc = Wc {
        wr_id: recv.wr_id,
        status,
        opcode: WcOpcode::Recv,
        flags: WcFlags::GRH | with_imm,
        byte_len,
        imm_data,
        qp_num: core.qpn.get(),
        src_qp: end.source.qpn,
        vendor_err: 0,
        src_gid: end.source.gid,
    };
    core.complete_receive(hw, wc, end.solicited);
    Ok(())
}
