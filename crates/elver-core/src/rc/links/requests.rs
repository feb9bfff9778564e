//! Requests to peers.

use elver_control::{ControlAddr, Request, Ticket};
use elver_verbs::{Device, Memory, Time};

use crate::ids::{CallId, Id as _, LinkId};
use crate::rc::link::{LinkState, RcLink, Reached};
use crate::rc::links::CallFor;
use crate::rc::links::Links;
use crate::{ConnectError, Core};

impl<M: Memory> Links<M> {
    /// As many requests wait as may.
    pub(crate) fn busy(&self) -> ConnectError {
        let (waiting, limit) = self.control.load();
        ConnectError::Busy { waiting, limit }
    }

    pub(crate) fn set_reached(&mut self, id: LinkId, reached: Reached) {
        if let Some(link) = self.rc.get_mut(id) {
            link.reached = reached;
        }
    }
}

impl<D: Device> Core<D> {
    /// Asks a peer for something, if there is room for that.
    pub(super) fn call(
        &mut self,
        to: ControlAddr,
        request: Request,
        what: CallFor,
        now: Time,
    ) -> Option<CallId> {
        let id = self.links.calls.insert_in_turn(what)?;
        let made = self.links.control.call(to, request, id.bits().into(), &mut self.rng, now);
        if made.is_none() {
            self.links.calls.remove(id);
        }
        // The caller's host may sleep before it polls.
        self.flush_control();
        made.map(|_| id)
    }

    /// The link of which a peer names both ends, ours first. That of one that was just asked for is not known yet.
    pub(super) fn link_between(
        &self,
        ticket: Ticket,
        qpn: u32,
        peer_qpn: u32,
    ) -> Option<(LinkId, &RcLink)> {
        let id = self.links.rc.by_qpn(qpn)?;
        let link = self.links.rc.get(id)?;
        let fits = link.state == LinkState::Asking || link.leads_to(peer_qpn);
        let of_peer = self.peers.get(link.peer).is_some_and(|peer| peer.gid == ticket.from.gid);
        (fits && of_peer).then_some((id, link))
    }

    /// Sends the control messages that are due; whether there were some.
    pub(crate) fn flush_control(&mut self) -> bool {
        let mut busy = false;
        while self.links.ud.can_send()
            && let Some((to, message)) = self.links.control.poll_transmit()
        {
            let taken = self.links.ud.send(&mut self.device, to, &message);
            self.stats.device_refusals += u64::from(!taken);
            busy = true;
        }
        busy
    }
}
