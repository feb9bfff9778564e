//! Which links are needed, and when they are looked after.

use elver_verbs::{Class, Device, Time};

use crate::Core;
use crate::ids::PeerId;
use crate::rc::link::{LinkState, RcLink};

impl<D: Device> Core<D> {
    /// Whether connects, VQPs or operations wait for a link.
    pub(crate) fn is_link_needed(&self, peer: PeerId, class: Class) -> bool {
        self.links.waiting.connects.contains_key(&(peer, class))
            || self.is_laneless(peer, class)
            || self.links.has_laneless_op(peer, class)
    }

    /// Whether a VQP to the peer waits for a lane. One that has nothing to post finds its lane when
    /// it has: it may be connected to what is long gone.
    pub(crate) fn is_laneless(&self, peer: PeerId, class: Class) -> bool {
        self.vqps_to(peer).any(|(_, vqp)| vqp.is_laneless(class) && vqp.sq.unposted() > 0)
    }

    /// A link goes. If it is waited for another comes: at the peer's request, which may be on its
    /// way, or else at ours.
    pub(crate) fn link_lost(&mut self, peer: PeerId, class: Class, now: Time) {
        let lost = &self.links.waiting.lost;
        if !lost.contains(&(peer, class)) && self.is_link_needed(peer, class) {
            self.links.waiting.lost.push((peer, class));
            self.links.sweep_soon(now);
        }
    }

    pub(crate) fn reaches_meta_server(&self) -> bool {
        let servers = &self.discovery.lookups.servers;
        servers.peers().any(|peer| self.op_lane(peer, Class::Low).is_some())
    }

    /// Whether no meta server can be asked yet, but one can as soon as the link to it is there.
    pub(crate) fn awaits_meta_link(&self) -> bool {
        // Also one that the meta server asked for: it refuses ours then. One that ends has a successor.
        let comes =
            |link: &RcLink| link.state != LinkState::Ready && self.is_way_to_meta_server(link);
        !self.reaches_meta_server()
            && (self.links.meta_link_due.is_some()
                || self.links.rc.shared().any(|(_, link)| comes(link)))
    }

    /// Whether look-ups go over a link, if it is ready.
    pub(crate) fn is_way_to_meta_server(&self, link: &RcLink) -> bool {
        link.purpose.is_shared()
            && link.class == Class::Low
            && self.discovery.is_meta_server(link.peer)
    }
}
