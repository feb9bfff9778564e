//! The oldest WR of a lane, and its end when its peer only ever says that it is not ready.

use elver_verbs::{Memory, Qp, SendHead, Time, WcStatus};

use crate::rnic::Rnic;

impl<M: Memory> Rnic<M> {
    /// The oldest WR of a QP's, or of a DCI's stream, that has not ended; see [`elver_verbs::Device::send_head`].
    pub fn send_head(&self, qp: Qp, stream_id: u16) -> Option<SendHead> {
        let queue_pair = self.qps.get(qp.0)?;
        let lane = queue_pair.lanes.get(usize::from(stream_id))?;
        let wqe = queue_pair.pool.get(*lane.queue.front()?);
        Some(SendHead { wr_id: wqe.wr_id, progress: lane.progress() })
    }

    /// Ends that WR as if its peer had never answered; see [`elver_verbs::Device::give_up_head`].
    pub fn give_up_head(&mut self, now: Time, qp: Qp, stream_id: u16, head: SendHead) -> bool {
        // What is being written to its memory ends first.
        let stands = self.send_head(qp, stream_id) == Some(head);
        let Some(queue_pair) = self.qps.get_mut(qp.0).filter(|_| stands) else { return false };
        let lane = usize::from(stream_id);
        if queue_pair.lanes.get(lane).is_none_or(|lane| lane.is_landing()) {
            return false;
        }
        queue_pair.with_lane(lane, &mut self.hw, now, |lane, env| {
            lane.fail_front(env, WcStatus::RetryExcErr);
        });
        self.stop_cut_off(now);
        true
    }
}
