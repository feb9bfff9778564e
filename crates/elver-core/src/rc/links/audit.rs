//! Part of [`Core::audit`].

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use elver_verbs::{Class, Device, Memory};

use super::CallFor;
use super::ended::Unsettled;
use crate::Core;
use crate::VqpId;
use crate::discovery::peer::Waiter;
use crate::ids::{LinkId, PeerId};
use crate::pool::lane::{LaneKind, LaneState};
use crate::rc::link::{LinkState, Purpose, RcLink, Reached};
use crate::rc::links::Links;
use crate::vqp::Vqp;
use crate::vqp::phase::Phase;

/// How many links there are of some kinds.
pub(crate) struct Tally {
    /// Being made, left or closed, or asked after.
    pub(crate) changing: u32,
    /// Of single VQPs, here or at the peer.
    pub(crate) leased: u32,
    /// Requests of ours, and of others, that have no answer. That an end of an RC QP has gone is told without waiting
    /// for one.
    pub(crate) requests: u32,
}

impl<M: Memory> Links<M> {
    /// Whether a shared link to a peer is made, or will be: one that works keeps nobody waiting, unless
    /// it is the second end of one to this node itself that goes.
    fn link_comes(&self, peer: PeerId, class: Class) -> bool {
        let goes = |link: &RcLink| {
            let mut others = self.rc.to_peer(peer);
            others.any(|(_, other)| link.leads_to(other.qpn) && other.is_ending())
        };
        let found = self.rc.find(peer, class);
        self.waiting.wants(peer, class)
            || self.waiting.has_lost(peer, class)
            || found.is_some_and(|(_, link)| link.state != LinkState::Ready || goes(link))
    }
}

impl<D: Device> Core<D> {
    /// Counts links anew, and looks for what waits for none.
    pub(crate) fn audit_links(&self) -> Result<Tally, String> {
        let rc = &self.links.rc;
        rc.audit()?;
        let mut tickets = Vec::new();
        for (id, link) in rc.iter() {
            self.audit_link(id, link)?;
            if let LinkState::Leaving(Some(ticket)) = link.state {
                tickets.push(ticket);
            }
        }
        tickets.extend(self.links.waiting.held_tickets());
        tickets.extend(self.links.unsettled.iter().filter_map(Unsettled::ticket));
        let calls = self.links.calls.iter().map(|(_, call)| call);
        let reminders = calls.filter(|call| matches!(call, CallFor::Remind(_))).count() as u32;
        let requests = self.links.control.audit(self.links.calls.len() as usize, &tickets)?;
        if self.links.sweep.is_none() && !self.links.waiting.is_empty() {
            return Err("links are waited for, and nobody looks after that".into());
        }
        let mut awaited = self.links.waiting.awaited(&self.vqps);
        if let Some((peer, class)) =
            awaited.find(|(peer, class)| !self.links.link_comes(*peer, *class))
        {
            return Err(format!("{class:?} connects wait for a link to {peer:#x}, and none comes"));
        }
        for (id, vqp) in self.vqps.iter() {
            if vqp.phase == Phase::Connecting && !self.connects(id, vqp) {
                return Err(format!("VQP {id:#x} connects, and waits for nothing"));
            }
            let laneless = vqp.phase.is_connected() && vqp.lane.is_none();
            if laneless && vqp.sq.unposted() > 0 && !self.lane_comes(vqp) {
                return Err(format!("VQP {id:#x} has something to post, and gets no lane"));
            }
        }
        let settled =
            |link: &RcLink| link.state == LinkState::Ready && link.reached == Reached::Unasked;
        // Of these nobody was asked yet.
        let unsettled = self.links.unsettled.len() as u32;
        let leased = |link: &RcLink| matches!(link.purpose, Purpose::Leased(_));
        Ok(Tally {
            changing: rc.len() - rc.matching(settled).count() as u32 + unsettled,
            leased: rc.matching(leased).count() as u32,
            requests: requests - reminders,
        })
    }

    fn audit_link(&self, id: LinkId, link: &RcLink) -> Result<(), String> {
        let qpn = link.qpn;
        let calls = || self.links.calls.iter().map(|(_, call)| call);
        let goes_on = match link.state {
            LinkState::Asking => {
                calls().any(|call| matches!(call, CallFor::Connect { link, .. } if *link == id))
            }
            LinkState::Closing => {
                calls().any(|call| matches!(call, CallFor::Close { link } if *link == id))
            }
            LinkState::Leaving(_) => self.links.leaving.contains(&id),
            LinkState::Listening => self.links.sweep.is_some(),
            LinkState::Ready => match link.reached {
                Reached::Unasked => true,
                Reached::Asked => {
                    calls().any(|call| matches!(call, CallFor::Fate { link } if *link == id))
                }
                // The work on it ends as was told, and then it goes.
                Reached::Psn(_) | Reached::Unknown { .. } => {
                    let failing = |lane| self.lanes.lanes[lane].state == LaneState::Failing;
                    link.lane.is_none_or(failing)
                }
            },
        };
        if !goes_on {
            return Err(format!("RC QP {qpn:#x} is {:?}, and stays so", link.state));
        }
        let sends = !link.purpose.only_serves();
        if link.state == LinkState::Ready && sends && link.lane.is_none() {
            return Err(format!("RC QP {qpn:#x} works, and has no lane"));
        }
        if let Some(at) = link.lane {
            let lane = &self.lanes.lanes[at];
            let right = lane.kind == LaneKind::Rc { peer: link.peer }
                && self.lanes.qps[lane.qp].qp == link.qp;
            if !right {
                return Err(format!("lane {at} of RC QP {qpn:#x} is another's"));
            }
        }
        if let Purpose::Leased(Some(owner)) = link.purpose
            && matches!(link.state, LinkState::Asking | LinkState::Ready)
        {
            let owned = self.vqps.get(owner).is_some_and(|vqp| vqp.lease == Some(id));
            if !owned && !self.links.ended_leases.contains(&id) {
                return Err(format!("RC QP {qpn:#x} is VQP {owner:#x}'s, which has none"));
            }
        }
        Ok(())
    }

    /// Whether something will end a VQP's `qconnect`.
    fn connects(&self, id: VqpId, vqp: &Vqp) -> bool {
        let waiter = Waiter::Vqp { vqp: id, attempt: vqp.attempt };
        let leased = vqp.lease.and_then(|lease| self.links.rc.get(lease)).is_some_and(|link| {
            link.purpose == Purpose::Leased(Some(id)) && link.state == LinkState::Asking
        });
        leased
            || self.links.waiting.awaits(id, vqp.attempt)
            || self.peers.slots.iter().any(|(_, peer)| peer.waiting.contains(&waiter))
    }

    /// Whether a lane, or the end of all hope for one, will come to a VQP that has none.
    fn lane_comes(&self, vqp: &Vqp) -> bool {
        let waits = |waiter: &Waiter| *waiter == Waiter::Lane(vqp.class);
        let Some(peer) = vqp.peer else { return false };
        let looked_up = self.peers.get(peer).is_some_and(|entry| entry.waiting.iter().any(waits));
        looked_up || self.links.link_comes(peer, vqp.class)
    }
}
