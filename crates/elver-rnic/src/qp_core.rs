use elver_verbs::{
    AsyncEvent, Cq, Memory, Qp, QpAttr, QpInit, QpState, QpType, Srq, Wc, WcOpcode, WcStatus,
};
use elver_wire::Qpn;

use crate::hw::Hw;
use crate::maybe_pd::MaybePd;
use crate::recv_queue::{Recv, RecvQueue};
use crate::route::Route;

/// What every part of a QP reads.
#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    /// Whose memory it works with. An XRC target has that of the queue which is named.
    pub(crate) pd: MaybePd,
    /// Where receives complete; of an XRC target as well.
    pub(crate) recv_cq: Option<Cq>,
    pub(crate) state: QpState,
    pub(crate) attr: QpAttr,
    pub(crate) init: QpInit,
    /// The way to the peer of a connected QP; of a DCT, the way of no one.
    pub(crate) remote: Option<Route>,
    pub(crate) rq: RecvQueue,
    /// Longest message in bytes.
    pub(crate) max_message: u32,
    /// A packet came since the QP went to RTR, and an event told of it.
    pub(crate) established: bool,
}

impl QpCore {
    pub(crate) fn dest_qpn(&self) -> Qpn {
        Qpn::from_wrapping(self.attr.dest_qp_num)
    }

    /// The Q_Key that a datagram carries: with its high bit set a WR's gives way to the QP's own
    /// (IBTA vol. 1, 10.2.5).
    pub(crate) fn effective_qkey(&self, qkey: u32) -> u32 {
        if qkey >> 31 == 1 { self.attr.qkey } else { qkey }
    }

    /// Tells once that the first packet arrived at a connected QP in RTR, so that its owner may go
    /// to RTS without a word from the peer (IBTA vol. 1, 11.6.3.1, communication established).
    #[inline]
    pub(crate) fn heard<M: Memory>(&mut self, hw: &mut Hw<M>) {
        if self.state == QpState::Rtr && self.qp_type.is_connected() {
            self.heard_in_rtr(hw);
        }
    }

    #[cold]
    fn heard_in_rtr<M: Memory>(&mut self, hw: &mut Hw<M>) {
        if !self.established {
            self.established = true;
            hw.event(AsyncEvent::CommEst(Qp(self.qpn.get())));
        }
    }

    /// Takes the oldest receive, from the SRQ if the QP has one.
    pub(crate) fn take_receive<M: Memory>(&mut self, hw: &mut Hw<M>, recv: &mut Recv) -> bool {
        match self.init.srq {
            Some(Srq(srq)) => hw.take_shared(srq, recv),
            None => self.rq.pop(recv),
        }
    }

    /// Completes a receive.
    #[inline]
    pub(crate) fn complete_receive<M: Memory>(&self, hw: &mut Hw<M>, wc: Wc, solicited: bool) {
        match self.recv_cq {
            Some(Cq(cq)) => hw.complete(cq, wc, solicited),
            None => bug!("an XRC target has a receive of no queue"),
        }
    }

    /// The same of one that ends with an error.
    pub(crate) fn complete_failed<M: Memory>(&self, hw: &mut Hw<M>, wr_id: u64, status: WcStatus) {
        let (opcode, qp_num) = (WcOpcode::Recv, self.qpn.get());
        self.complete_receive(hw, Wc { wr_id, status, opcode, qp_num, ..Wc::default() }, true);
    }

    /// Puts back a receive whose message will never end.
    pub(crate) fn return_receive<M: Memory>(&mut self, hw: &mut Hw<M>, recv: &Recv) {
        match self.init.srq {
            Some(Srq(srq)) => {
                if let Some(shared) = hw.srqs.get_mut(srq) {
                    shared.queue.unpop(recv);
                }
            }
            None => self.rq.unpop(recv),
        }
    }
}
