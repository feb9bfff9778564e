//! The end of a link: its VQPs leave, then both sides let go of it.

use elver_control::{Answer, Request, Ticket};
use elver_verbs::{Device, Gid, Memory, Qp, QpAttr, QpState, Time, Wc};

use crate::Core;
use crate::effects::Effect;
use crate::ids::{LaneIx, LinkId, PeerId};
use crate::rc::link::{LinkState, Purpose, RcLink, Reached};
use crate::rc::links::Links;
use crate::rc::links::ended::{Ended, Stopped};
use crate::rc::links::reminders::Reminder;
use crate::rc::links::{CallFor, ENDED_MAX};

/// Completions that are taken in one call before a QP is destroyed.
const KEPT_AT_ONCE: usize = 16;

impl<M: Memory> Links<M> {
    fn sweep_for_reminders(&mut self) {
        if let Some(due) = self.reminders.poll_timeout() {
            self.sweep_at(due);
        }
    }
}

impl<D: Device> Core<D> {
    /// Has the link that was used longest ago closed, if none is being closed and one may be.
    pub(super) fn make_room(&mut self, now: Time) {
        if self.links.rc.ending() > 0 {
            return;
        }
        let peers = &self.peers;
        // Without DC, a VQP has nowhere to go.
        let dc = self.pool.dct.is_some();
        let lanes = &self.lanes.lanes;
        let used = |link: &RcLink| {
            let free = dc || link.lane.is_none_or(|lane| lanes[lane].vqps == 0);
            let heat = peers.get(link.peer).map(|peer| peer.heat[link.class as usize].last());
            free.then(|| link.since.max(heat.unwrap_or_default()))
        };
        if let Some(victim) = self.links.rc.victim(now, used) {
            self.stats.links_reclaimed += 1;
            self.leave(victim, None, now);
        }
    }

    /// Takes the VQPs off a link and closes it when they and their work are gone.
    pub(super) fn leave(&mut self, id: LinkId, ticket: Option<Ticket>, now: Time) {
        self.links.rc.set_leaving(id, ticket);
        let Some(link) = self.links.rc.get(id) else { return bug!("a link that is gone leaves") };
        let (peer, class, lane, qpn) = (link.peer, link.class, link.lane, link.qpn);
        // Both sides may have made one; but the second end of one to this node itself goes too.
        let works = |link: &RcLink| link.state == LinkState::Ready && !link.leads_to(qpn);
        let other = self.links.rc.find(peer, class).filter(|(_, link)| works(link));
        let other = other.and_then(|(_, link)| link.lane);
        if let Some(entry) = self.peers.get_mut(peer)
            && entry.rc[class as usize] == lane
            && lane.is_some()
        {
            entry.rc[class as usize] = other;
        }
        self.link_lost(peer, class, now);
        if let Some(lane) = lane {
            self.move_off(lane);
        }
        // Who had left this one, since it failed, and has no lane yet takes the other, too.
        if other.is_some() {
            self.move_onto_link(peer, class);
        }
        if !self.close_if_left(id, now) {
            self.links.leaving.push(id);
        }
    }

    /// Closes the links that everything has left.
    pub(super) fn close_left(&mut self, now: Time) {
        for id in core::mem::take(&mut self.links.leaving) {
            if !self.close_if_left(id, now) {
                self.links.leaving.push(id);
            }
        }
    }

    /// Closes a link on the way out, if everything has left it; returns false if not.
    fn close_if_left(&mut self, id: LinkId, now: Time) -> bool {
        let Some(link) = self.links.rc.get(id) else {
            bug!("a link that leaves is gone");
            return true;
        };
        if link.lane.is_some_and(|lane| !self.lanes.lanes[lane].is_left()) {
            return false;
        }
        match link.state {
            LinkState::Leaving(Some(ticket)) => {
                self.drop_link(id, now);
                self.links.control.answer(ticket, Answer::Closed, now);
            }
            // It would not answer that either.
            LinkState::Leaving(None) if link.reached == (Reached::Unknown { answered: false }) => {
                self.close_ended(id, None, now);
            }
            LinkState::Leaving(None) => self.ask_close(id, now),
            _ => {}
        }
        true
    }

    /// Asks the peer to leave a link that nothing of ours is on.
    pub(super) fn ask_close(&mut self, id: LinkId, now: Time) {
        self.links.rc.set_closing(id);
        self.links.waiting.stirred = true;
        let Some(link) = self.links.rc.get(id) else { return bug!("a link that is gone closes") };
        let Some(end) = link.peer_end else {
            bug!("a link is closed that is not connected");
            return self.drop_link(id, now);
        };
        let request = Request::RcClose { qpn: end.qpn, peer_qpn: link.qpn };
        if self.call(link.control, request, CallFor::Close { link: id }, now).is_none() {
            self.close_ended(id, None, now);
        }
    }

    /// A peer has left a link, or did not answer when it was asked to: then it is told again, but the
    /// link need not wait for that.
    pub(super) fn close_ended(&mut self, id: LinkId, answer: Option<Answer>, now: Time) {
        let unanswered = self.links.rc.get(id).filter(|_| answer.is_none());
        let Some(&RcLink { control: to, peer, peer_end: Some(end), qpn, .. }) = unanswered else {
            return self.drop_link(id, now);
        };
        let peer_qpn = end.qpn;
        // How far this end got, if that is known: what the peer has posted since it posts again elsewhere.
        let request = match self.remember_end(id) {
            Some(psn) => Request::RcFate { qpn: peer_qpn, peer_qpn: qpn, psn },
            None => Request::RcClose { qpn: peer_qpn, peer_qpn: qpn },
        };
        self.links.reminders.add(to, request, now);
        self.links.sweep_for_reminders();
        self.drop_link(id, now);
        self.leave_second_end(peer, (peer_qpn, qpn));
    }

    /// An end of a link went. If the other is this node's own, too, it goes without being asked, which
    /// it never hears of if this node does not reach itself: nobody uses it any longer, so that it would
    /// not fail either, and be in the way of another.
    fn leave_second_end(&mut self, peer: PeerId, (qpn, peer_qpn): (u32, u32)) {
        if self.peers.get(peer).is_none_or(|entry| entry.gid != self.gid) {
            return;
        }
        let second = self.links.rc.by_qpn(qpn).and_then(|id| self.links.rc.get(id));
        if let Some(link) = second.filter(|link| link.leads_to(peer_qpn)) {
            self.effects.push(Effect::LinkErrored(link.qp));
        }
    }

    /// A peer has not answered when it was told that an end of a link has gone.
    pub(super) fn remind_later(&mut self, reminder: Reminder, now: Time) {
        self.links.reminders.unanswered(reminder, now);
        self.links.sweep_for_reminders();
    }

    /// A peer is there, by its GID and its control QP: it is told at once which ends of links have gone here, before
    /// anybody there uses its own.
    pub(crate) fn peer_heard(&mut self, peer: (Gid, u32), now: Time) {
        if self.links.reminders.len() > 0 {
            self.links.reminders.heard(peer, now);
            self.links.sweep_for_reminders();
        }
    }

    /// Tells peers which ends of links have gone here. Who is known to have started anew does not answer for what it
    /// was, and is told if that was false.
    pub(super) fn remind(&mut self, now: Time) {
        while let Some(reminder) = self.links.reminders.next_due(now) {
            let to = reminder.to();
            let there = self.peers.find(&to.gid).and_then(|peer| self.peers.control_addr(peer));
            let is_other = there.is_some_and(|there| there != to);
            if is_other {
                self.links.reminders.hold(reminder);
            } else if self.call(to, reminder.request(), CallFor::Remind(reminder), now).is_none() {
                self.links.reminders.unanswered(reminder, now);
            }
        }
        self.links.sweep_for_reminders();
    }

    /// Takes what has completed before a QP is destroyed: the device then forgets what has completed on
    /// it (IBTA vol. 1, 10.2.4.4), and with that the receive that a message had begun to fill, and messages
    /// of which their senders have been told that they came.
    fn keep_completions(&mut self) {
        let mut wcs = [Wc::default(); KEPT_AT_ONCE];
        // It ends: meanwhile nothing is posted that could complete, neither sends nor receives.
        while let Ok(count) = self.device.poll_cq(self.pool.cq, &mut wcs) {
            self.links.kept.extend_from_slice(&wcs[..count]);
            if count < wcs.len() {
                break;
            }
        }
    }

    /// Destroys a link's QP. Nothing of ours is on it.
    pub(super) fn drop_link(&mut self, id: LinkId, now: Time) {
        // That of a VQP which waits no longer went when it was told that the link does not come.
        let Some(link) = self.links.rc.remove(id) else { return };
        self.keep_completions();
        if self.device.destroy_qp(link.qp).is_err() {
            self.stats.device_refusals += 1;
        }
        if let Some(lane) = link.lane {
            self.lanes.remove_rc(lane);
        }
        if link.is_ending() && self.links.waiting.has_lost_any(link.peer) {
            // There is room for another one at its peer.
            self.links.sweep_at(now);
        }
        self.link_lost(link.peer, link.class, now);
        let shared = link.purpose.is_shared();
        if let Some(entry) = self.peers.get_mut(link.peer).filter(|_| shared) {
            entry.back_off.link_ended(link.since, now);
        }
        self.peers.unpin(link.peer);
        self.links.waiting.stirred = true;
        if link.purpose == Purpose::Meta || self.is_way_to_meta_server(&link) {
            // Look-ups that have waited for its end wait for its successor.
            if matches!(link.state, LinkState::Leaving(_) | LinkState::Closing) {
                self.links.await_meta_link(now);
            }
            self.links.sweep_soon(now);
        }
    }

    /// An RC QP went to its error state, and all that was on it has come back: it goes, and the peer
    /// is told.
    pub(crate) fn link_broken(&mut self, lane: LaneIx, now: Time) {
        let Some(id) = self.links.rc.by_lane(lane) else {
            return bug!("a lane of an RC QP is of no link");
        };
        let waits = matches!(
            self.links.rc.get(id).map(|link| link.state),
            Some(LinkState::Leaving(_) | LinkState::Closing)
        );
        if !waits {
            self.leave(id, None, now);
        }
    }

    /// A link goes though its peer has not agreed. How far its end got, which is final then, if that is known.
    fn remember_end(&mut self, id: LinkId) -> Option<u32> {
        let Some(link) = self.links.rc.get(id) else {
            bug!("a link that is gone ends");
            return None;
        };
        let (&RcLink { qp, peer, qpn, .. }, peer_qpn) = (link, link.peer_end?.qpn);
        let psn = self.stop_end(qp).psn()?;
        if self.links.ended.len() >= ENDED_MAX {
            self.links.ended.pop_front();
        }
        self.links.ended.push_back(Ended { peer, peer_qpn, qpn, psn });
        Some(psn)
    }

    /// Takes a link's QP to ERR; the PSN that it expects next is final then.
    pub(super) fn stop_end(&mut self, qp: Qp) -> Stopped {
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        let running = match self.device.query_qp(qp) {
            Ok((attr, _)) => attr.qp_state != QpState::Err,
            Err(_) => return Stopped::Unknown,
        };
        if running && self.device.advance_qp(qp, &attr).is_err() {
            return Stopped::Unknown;
        }
        match self.device.query_qp(qp) {
            Ok((attr, _)) if attr.rq_waiting => Stopped::Waiting,
            Ok((attr, _)) => Stopped::At(attr.rq_psn),
            Err(_) => Stopped::Unknown,
        }
    }
}
