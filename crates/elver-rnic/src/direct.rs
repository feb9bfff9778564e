//! WRs that who posts them executes himself, since he reaches the peer's memory: the checks of what is
//! this device's, and the completion. What the peer grants he must know ([`crate::Reach`]).

use elver_verbs::{
    Memory, Payload, Qp, QpState, QpType, SendFlags, SendOp, SendWr, Wc, WcFlags, WcStatus,
};

use crate::Rnic;

impl<M: Memory> Rnic<M> {
    /// Whether a WR may be executed by who posts it, behind `ahead` others that are, once nothing of its QP is
    /// on its way ([`Rnic::outstanding`]), so that the order holds: the device would have executed it.
    /// `piece` is told of each piece of local memory that is not inline, and may refuse it. Returns the WR's length in bytes. Where it is none the WR is posted, and the device
    /// says what is wrong with it.
    #[inline]
    pub fn check_direct(
        &mut self,
        qp: Qp,
        wr: &SendWr<'_>,
        ahead: usize,
        mut piece: impl FnMut(&M, u64, u32) -> bool,
    ) -> Option<u32> {
        let Rnic { qps, hw, .. } = self;
        let queue_pair = qps.get(qp.0)?;
        let core = &queue_pair.core;
        let writes = match wr.op {
            SendOp::Write(_) => false,
            SendOp::Read(_) if core.attr.max_rd_atomic > 0 => true,
            _ => return None,
        };
        if core.qp_type != QpType::Rc || core.state != QpState::Rts {
            return None;
        }
        let length = queue_pair.would_take(hw, wr, ahead).ok()?;
        let cq = hw.cqs.get(core.init.send_cq.0)?;
        let signals = wr.flags.contains(SendFlags::SIGNALED) || core.init.sq_sig_all;
        if cq.failed || signals && cq.room() <= ahead {
            return None;
        }
        if let Payload::Sges(sges) = wr.payload {
            let regions = &hw.regions;
            let walked =
                regions.walk(core.pd, sges, 0, length, writes, |regions, place, length| {
                    let memory = regions.memory(place.region).map_err(|_| Stop)?;
                    if piece(memory, place.offset, length) { Ok(()) } else { Err(Stop) }
                });
            walked.ok()?;
        }
        Some(length)
    }

    /// A WR was executed that [`Rnic::check_direct`] let pass.
    #[inline]
    pub fn end_direct(&mut self, qp: Qp, wr_id: u64, op: &SendOp, flags: SendFlags, length: u32) {
        let Rnic { qps, hw, .. } = self;
        let Some(queue_pair) = qps.get(qp.0) else {
            return bug!("a WR is executed directly on a QP that is gone");
        };
        let core = &queue_pair.core;
        let reads = matches!(op, SendOp::Read(_));
        hw.counters.direct_reads += u64::from(reads);
        hw.counters.direct_writes += u64::from(!reads);
        hw.counters.direct_bytes += u64::from(length);
        if flags.contains(SendFlags::SIGNALED) || core.init.sq_sig_all {
            let wc = Wc {
                wr_id,
                status: WcStatus::Success,
                opcode: op.opcode().wc_opcode(),
                flags: WcFlags::empty(),
                byte_len: if reads { length } else { 0 },
                qp_num: core.qpn.get(),
                ..Wc::default()
            };
            hw.complete(core.init.send_cq.0, wc, false);
        }
    }

    /// How many WRs that were posted are still on their way, which those behind them may not overtake.
    #[inline]
    pub fn outstanding(&self, qp: Qp) -> usize {
        self.qps.get(qp.0).map_or(0, |queue_pair| queue_pair.pool.len())
    }

    /// How often QPs went to ERR or SQE of themselves: who told peers of their state must look again
    /// when it has risen.
    #[inline]
    pub fn failures(&self) -> u64 {
        self.hw.failures
    }

    /// Counts WRs that could have been executed by who posted them, had the peer granted it, and peers
    /// that do not let themselves be reached.
    #[inline]
    pub fn count_direct_refused(&mut self, wrs: u64, peers: u64) {
        self.hw.counters.direct_refused += wrs;
        self.hw.counters.direct_peers_refused += peers;
    }
}

/// Local memory is not granted, or not at hand.
struct Stop;

impl From<crate::place::Refused> for Stop {
    fn from(_: crate::place::Refused) -> Stop {
        Stop
    }
}
