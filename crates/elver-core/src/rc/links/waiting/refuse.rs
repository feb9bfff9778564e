//! Requests of peers that wait for room, and are not granted.

use elver_control::{Answer, NodeRecord, Refusal, Served, Shortage};
use elver_verbs::{Device, Time};

use crate::Core;
use crate::ids::PeerId;

impl<D: Device> Core<D> {
    /// Refuses the requests that wait and that a peer did not make as what it is now: to take up one
    /// of them would be to believe again what it was.
    pub(crate) fn refuse_past(&mut self, peer: PeerId, is: Option<NodeRecord>, now: Time) {
        let Some(gid) = self.peers.get(peer).map(|entry| entry.gid) else {
            return bug!("a peer that is gone is another");
        };
        let past = |served: &Served| {
            let from = served.ticket.from;
            from.gid == gid && is.is_none_or(|record| record.control_qpn != from.qpn)
        };
        let held = core::mem::take(&mut self.links.waiting.held);
        for (until, request) in held {
            if past(&request) {
                self.refuse_held(request, now);
            } else {
                self.links.waiting.held.push_back((until, request));
            }
        }
    }

    pub(crate) fn refuse_held(&mut self, request: Served, now: Time) {
        let limit = self.config.transfer.rc_qps_max;
        let used = self.links.rc.pooled();
        let refusal = Refusal::Short { of: Shortage::Pool, used, limit };
        self.links.control.answer(request.ticket, Answer::Refused(refusal), now);
    }
}
