//! Every failure has a cause.

use elver_verbs::{QpState, QpType, SendOpcode, WcStatus};

use elver_wire::Timeout;

use super::{Endpoint, EndpointId, Model, OpId, Planted, Room, Violation};
use crate::network::Network;
use crate::plan::LATE_NS;

/// Pieces of memory that a peer waits for one after the other, at most, before he can say that he
/// got further.
const PIECES_WAITED_FOR: u64 = 16;

impl Model {
    /// A bad WR must not succeed, where somebody can tell.
    pub(super) fn check_may_succeed(&self, id: OpId) -> Result<(), Violation> {
        let Some(planted) = self.ops[id].planted else { return Ok(()) };
        let local =
            matches!(planted, Planted::LocalKey | Planted::BindRange | Planted::InvalidateLocally);
        if local || self.source(id).qp_type.is_reliable() {
            return Err(Violation::new(format!("WR {id} succeeded in spite of {planted:?}")));
        }
        Ok(())
    }

    /// Checks that a WR may fail with `status`; its QP is in `state` now.
    pub(super) fn justify(
        &self,
        id: OpId,
        status: WcStatus,
        state: QpState,
        network: &Network,
    ) -> Result<(), Violation> {
        let op = &self.ops[id];
        let lane = &self.lanes[op.lane];
        if lane.failed && status != WcStatus::WrFlushErr {
            return Err(Violation::new(format!(
                "WR {id} fails with {status} instead of being flushed: its queue had failed before"
            )));
        }
        let (source, target) = (self.source(id), self.target(id));
        let justified = match status {
            WcStatus::WrFlushErr => {
                lane.failed || state == QpState::Err && self.may_be_stopped(lane.endpoint)
            }
            WcStatus::RetryExcErr => {
                source.qp_type.is_reliable()
                    && (network.disturbed(source.host, target.host)
                        || self.may_be_deaf(op.dest)
                        || self.may_overtake(id, network)
                        || source.impatient
                        || self.may_be_kept_waiting(source)
                        || self.crowded && source.qp_type == QpType::Dci)
            }
            WcStatus::RnrRetryExcErr => {
                let late =
                    op.takes_receive() && target.queue.is_some_and(|queue| self.queues[queue].late);
                let crowded = self.crowded && source.qp_type == QpType::Dci;
                source.qp_type.is_reliable() && source.rnr_bounded && (late || crowded)
            }
            WcStatus::RemAccessErr if self.was_bereft_by(op, Room::Dead) => true,
            WcStatus::RemOpErr if self.was_bereft_by(op, Room::Vanished) => true,
            // Its answer waited for memory, and what stood behind it was executed meanwhile.
            WcStatus::RemOpErr
                if self.late_memory && op.opcode == SendOpcode::Read && op.planted.is_none() =>
            {
                self.was_bereft(op)
            }
            _ => op.planted.is_some_and(|planted| leads_to(planted) == Some(status)),
        };
        if justified {
            return Ok(());
        }
        let planted = match op.planted {
            Some(planted) => format!("{planted:?}"),
            None => String::from("nothing"),
        };
        Err(Violation::new(format!(
            "WR {id}, {:?} from host {} to host {} on {}, failed with {status} without a cause \
             (wrong on purpose: {planted}; its QP is in {state})",
            op.opcode, source.host, target.host, source.qp_type,
        )))
    }

    /// Whether a WR may wait without end, so that its QP must be stopped for it to complete.
    pub(crate) fn may_wait_forever(&self, id: OpId, network: &Network) -> bool {
        let (source, target) = (self.source(id), self.target(id));
        source.setup.timeout == 0
            && source.qp_type.is_reliable()
            && (network.disturbed(source.host, target.host) || self.may_be_deaf(self.ops[id].dest))
    }

    /// Checks that receives of an endpoint may be flushed.
    pub(super) fn justify_flush(&self, id: EndpointId, state: QpState) -> Result<(), Violation> {
        if state == QpState::Err && self.may_be_stopped(id) {
            return Ok(());
        }
        let endpoint = &self.endpoints[id];
        Err(Violation::new(format!(
            "receives of {} QPN {:#x} on host {} are flushed without a cause (it is in {state})",
            endpoint.qp_type, endpoint.qpn, endpoint.host
        )))
    }

    /// Whether an endpoint may be in ERR.
    fn may_be_stopped(&self, id: EndpointId) -> bool {
        let endpoint = &self.endpoints[id];
        let failed = endpoint.lanes.iter().filter(|lane| self.lanes[**lane].failed).count();
        endpoint.may_fail
            || match endpoint.qp_type {
                QpType::Rc | QpType::XrcSend => failed > 0,
                QpType::Dci => failed as u32 >= endpoint.errored_streams_max,
                QpType::Uc | QpType::Ud | QpType::XrcRecv | QpType::Dct => false,
            }
    }

    /// Whether a request may be met by an older copy of itself while it waits for a receive: what comes
    /// next is then out of sequence, which counts among its retries (IBTA vol. 1, 9.9.2.4.2).
    fn may_overtake(&self, id: OpId, network: &Network) -> bool {
        let target = self.target(id);
        let late = target.queue.is_some_and(|queue| self.queues[queue].late);
        late && network.copies(target.qpn) > 0
    }

    /// Whether an endpoint's retries may run out while its peer waits for memory, which is more than
    /// one piece's for all that came before.
    fn may_be_kept_waiting(&self, endpoint: &Endpoint) -> bool {
        let setup = endpoint.setup;
        let timeout = Timeout::duration_ns(setup.timeout);
        let patience = timeout.map(|timeout| timeout * (u64::from(setup.retry_cnt) + 1));
        self.late_memory && patience.is_some_and(|patience| patience < PIECES_WAITED_FOR * LATE_NS)
    }

    /// Whether an endpoint may not answer.
    fn may_be_deaf(&self, id: EndpointId) -> bool {
        let endpoint = &self.endpoints[id];
        !endpoint.phase.is_up() || endpoint.interrupted || self.may_be_stopped(id)
    }
}

/// The status that a bad WR gets, if its sender hears of it.
fn leads_to(planted: Planted) -> Option<WcStatus> {
    Some(match planted {
        Planted::RemoteKey
        | Planted::RemoteRange
        | Planted::RemoteRights
        | Planted::RemoteDomain
        | Planted::RemoteDeregistered
        | Planted::StaleWindow
        | Planted::AccessKey
        | Planted::InvalidateNothing => WcStatus::RemAccessErr,
        Planted::RemoteVanished => WcStatus::RemOpErr,
        Planted::TooLong | Planted::Misaligned => WcStatus::RemInvReqErr,
        Planted::LocalKey | Planted::InvalidateLocally => WcStatus::LocProtErr,
        Planted::BindRange => WcStatus::MwBindErr,
        Planted::QKey => return None,
    })
}
