//! VQPs and operations that want a lane to a peer.

use alloc::vec::Vec;

use elver_verbs::{Class, Device, Time};

use crate::Core;
use crate::VqpId;
use crate::discovery::peer::Waiter;
use crate::ids::PeerId;

impl<D: Device> Core<D> {
    /// A connected VQP without a lane has something to post.
    #[cold]
    pub(crate) fn find_lane(&mut self, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get(id) else { return bug!("a VQP that is gone finds a lane") };
        let waiter = Waiter::Lane(vqp.class);
        let Some(peer) = vqp.peer else {
            return bug!("a VQP finds a lane that is connected to nobody");
        };
        if !vqp.accepted.is_some_and(|accepted| accepted.peer_unsure) {
            self.switch_lane(id);
        } else if self.peers.get(peer).is_some_and(|entry| !entry.waiting.contains(&waiter)) {
            self.want_node(peer, waiter, now);
        }
    }

    /// VQPs wait for a lane to a peer. One of which nothing is known may be gone, or another by now:
    /// a meta server tells, and much sooner than a request to a peer that is not there would fail.
    pub(crate) fn want_lane(&mut self, peer: PeerId, class: Class, now: Time) {
        let Some(entry) = self.peers.get(peer) else {
            return bug!("a lane is wanted to a peer that is gone");
        };
        let waiter = Waiter::Lane(class);
        if entry.record.is_some() {
            self.need_link(peer, class, now);
        } else if !entry.waiting.contains(&waiter) {
            self.want_node(peer, waiter, now);
        }
    }

    /// What is known of a peer was looked up for VQPs that wait for a lane to it.
    pub(crate) fn lane_found(&mut self, peer: PeerId, class: Class, found: bool, now: Time) {
        if !found {
            return self.fail_laneless(peer, class, now);
        }
        let waiting = self.vqps_to(peer).filter(|(_, vqp)| vqp.is_laneless(class));
        let waiting: Vec<VqpId> = waiting.map(|(id, _)| id).collect();
        for id in waiting {
            self.switch_lane(id);
        }
        self.ops_go_on(peer, now);
        // What is known of the peer now leads to a link, or to DC.
        if self.links.has_laneless_op(peer, class) {
            self.need_link(peer, class, now);
        }
    }
}
