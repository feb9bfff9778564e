//! The end of leased links, and of all that lead to a peer which has gone.

use alloc::vec::Vec;

use elver_control::NodeRecord;
use elver_verbs::{Device, Time, Via};

use crate::VqpId;
use crate::ids::{LaneIx, LinkId, PeerId};
use crate::rc::link::{LinkState, RcLink};
use crate::vqp::phase::Phase;
use crate::{ConnectError, Core};

impl<D: Device> Core<D> {
    /// A VQP's own link works, or will not come.
    pub(crate) fn lease_ended(
        &mut self,
        id: VqpId,
        link: LinkId,
        found: Result<LaneIx, ConnectError>,
        now: Time,
    ) {
        let entry = self.vqps.get_mut(id).filter(|vqp| vqp.lease == Some(link));
        let Some(vqp) = entry.filter(|vqp| vqp.phase == Phase::Connecting) else {
            return self.end_lease(link, now);
        };
        if found.is_err() {
            vqp.lease = None;
        }
        let Some(peer) = self.links.rc.get(link).map(|link| link.peer) else {
            return bug!("a VQP's own link is gone when it is told of");
        };
        let found = found.map(|lane| (Via::Leased, Some(lane)));
        self.connect_ended(id, peer, found, now);
    }

    /// The link of a VQP alone is not needed any longer.
    pub(crate) fn end_lease(&mut self, link: LinkId, now: Time) {
        match self.links.rc.get(link).map(|link| link.state) {
            Some(LinkState::Ready) => self.leave(link, None, now),
            Some(LinkState::Asking) => self.drop_link(link, now),
            _ => {}
        }
    }

    /// A peer went away, or is another now: nobody takes the links to it any longer, and what it
    /// asked for before means nothing.
    pub(crate) fn leave_links_to(&mut self, peer: PeerId, is: Option<NodeRecord>, now: Time) {
        self.refuse_past(peer, is, now);
        self.drop_laneless_ops(peer);
        let taken = |link: &RcLink| matches!(link.state, LinkState::Ready | LinkState::Listening);
        let links = self.links.rc.to_peer(peer).filter(|(_, link)| taken(link));
        let links: Vec<LinkId> = links.map(|(id, _)| id).collect();
        for id in links {
            self.leave(id, None, now);
        }
    }
}
