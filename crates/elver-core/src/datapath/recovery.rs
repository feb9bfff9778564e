//! A failed lane: who is to blame, and how the others go on.
//!
//! When a WR on a lane fails, the device flushes what stands behind it. The WR's own VQP goes to
//! its error state; if its peer does not answer at all, so do the other VQPs with something on the
//! lane to this peer, each of which would wait as long for nothing. The WRs of others that were not
//! executed go back to their rings. Once nothing is outstanding, the lane is set going again, and
//! they are posted anew, in order. [`crate::datapath::outage`] is about what is not set going.
//!
//! # Why nothing is executed twice
//!
//! A flushed WR may have been executed, and its acknowledgement lost with the queue pair. So each
//! place that posts a WR again has a reason why it was not:
//!
//! - The peer has refused a WR that stood before it: a responder that refuses executes nothing after
//!   that, be it an RC QP or a context of a DCT (IBTA vol. 1, 9.9.3). One that finds the memory of a READ
//!   gone when it answers says so by an operation error, and then this is no reason.
//! - It goes to another target than the WR of the same DCI stream that failed, another peer's or the
//!   one that the peer has now: the stream turns to another target only when all that went to the one
//!   before was acknowledged.
//! - It stood on an RC QP, and the peer has told that it did not get so far: [`crate::rc::fate`].
//! - It reads, and reads again: the result of the first READ went nowhere.
//!
//! What is none of these ends with an error. What is *moved* to another lane was never on this one,
//! or completed there: see [`crate::rc::transfer`]. A long message is found out about by its own
//! protocol, see [`crate::messaging::inquiry`]; its header goes to the lane like any WR.

use elver_verbs::{Dest, Device, Time, WcStatus};

use crate::Core;
use crate::ids::{LaneIx, PeerId};
use crate::pool::lane::{LaneKind, LaneState};

/// What a WR that did not succeed means for who posted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It ends like this.
    Guilty(WcStatus),
    /// It was flushed for another's fault, and not executed.
    Innocent,
    /// It was flushed, and nothing will tell whether it was executed: it is posted again only if that
    /// does no harm.
    Repeatable,
    /// It was flushed, and its fate is found out first: see [`crate::rc::fate`].
    Unsure,
}

impl<D: Device> Core<D> {
    /// A WR to `peer`, which went to `dest` there, completed with an error on a lane.
    pub(crate) fn lane_failed(
        &mut self,
        lane: LaneIx,
        status: WcStatus,
        (peer, dest): (PeerId, Option<Dest>),
        now: Time,
    ) -> Verdict {
        let is_past = self.is_past(lane, peer, dest);
        let entry = &mut self.lanes.lanes[lane];
        let rc = matches!(entry.kind, LaneKind::Rc { .. });
        if entry.state == LaneState::Running {
            entry.state = LaneState::Failing;
            // What a peer has refused stopped it: it executed nothing behind that. A failure of this
            // side's, or none at all, says nothing of what was sent.
            entry.unsure = (!refused_by_peer(status)).then_some((peer, dest));
            self.stats.lanes_reset += 1;
            if rc {
                self.lane_broke(lane, now);
            }
        }
        let entry = &mut self.lanes.lanes[lane];
        match status {
            WcStatus::WrFlushErr if entry.dead == Some(peer) => {
                Verdict::Guilty(WcStatus::RetryExcErr)
            }
            // A DCI turns to another target only when all that it sent was acknowledged: what goes
            // elsewhere than the WR that failed was not sent.
            WcStatus::WrFlushErr if entry.unsure != Some((peer, dest)) => Verdict::Innocent,
            WcStatus::WrFlushErr if rc => Verdict::Unsure,
            WcStatus::WrFlushErr => Verdict::Repeatable,
            WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr => {
                // Who is connected by an RC QP to what the peer was has lost it.
                if !is_past || rc {
                    entry.dead = Some(peer);
                }
                if !is_past {
                    self.forget_record(peer);
                }
                Verdict::Guilty(status)
            }
            _ => Verdict::Guilty(status),
        }
    }

    /// Whether a WR went to where its peer is known to be no longer: that nobody answers there says nothing
    /// of the peer.
    fn is_past(&self, lane: LaneIx, peer: PeerId, dest: Option<Dest>) -> bool {
        let Some(record) = self.peers.get(peer).and_then(|entry| entry.record) else {
            return false;
        };
        match dest {
            Some(Dest::Dc { remote_dctn, .. }) => record.dctn != remote_dctn,
            // Over an RC QP that was agreed on with what the peer was.
            _ => self.links.rc.by_lane(lane).and_then(|link| self.links.rc.get(link)).is_some_and(
                |link| {
                    let now = (record.control_qpn, record.control_qkey());
                    (link.control.qpn, link.control.qkey) != now
                },
            ),
        }
    }

    /// Sets a failing lane going again, once nothing is outstanding on it.
    pub(crate) fn try_restart(&mut self, lane: LaneIx, now: Time) {
        let entry = &self.lanes.lanes[lane];
        // What was flushed and may have been executed counts until its fate is known.
        if entry.state != LaneState::Failing || entry.uncompleted as usize > entry.flushed.len() {
            return;
        }
        let (kind, qp) = (entry.kind, entry.qp);
        match kind {
            LaneKind::Dc { stream } => {
                let phys = &mut self.lanes.qps[qp];
                if !phys.broken && self.device.reset_dci_stream(phys.qp, stream).is_ok() {
                    self.lanes.run(lane);
                    return self.resume(lane, now);
                }
                phys.broken = true;
                self.try_restart_dci(qp, now);
            }
            LaneKind::Rc { .. } => {
                if !self.settle_flushed(lane, now) {
                    return;
                }
                self.lanes.lanes[lane].state = LaneState::Gone;
                self.resume(lane, now);
                self.link_broken(lane, now);
            }
        }
    }
}

/// Whether a status says that the peer executed neither the WR nor what stood behind it. An operation
/// error does not: a READ finds its memory gone only when it is answered, and what came behind it was
/// executed before.
fn refused_by_peer(status: WcStatus) -> bool {
    matches!(status, WcStatus::RemInvReqErr | WcStatus::RemAccessErr)
}
