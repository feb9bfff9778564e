//! Two nodes tell each other how far the ends of an RC QP got that has failed: see [`crate::rc::fate`].

use elver_control::{Answer, Request, Ticket};
use elver_verbs::{Device, Memory, Time};

use super::{CallFor, ENDED_MAX};
use crate::Core;
use crate::effects::Effect;
use crate::ids::{LaneIx, LinkId, PeerId};
use crate::rc::link::{LinkState, PeerEnd, Reached};
use crate::rc::links::Links;
use crate::rc::links::ended::{Stopped, Unsettled};

/// Time between two looks whether an end has settled.
const SETTLE_NS: u64 = 100_000;

impl<M: Memory> Links<M> {
    /// What an end executed last is not known before a copy of its has ended: once for our question and once for the
    /// peer's, whose last one counts, however often it asks. Whether there is room for that.
    #[cold]
    fn settle_later(&mut self, unsettled: Unsettled, now: Time) -> bool {
        let is_same = |one: &&mut Unsettled| {
            one.qp == unsettled.qp && one.ticket().is_some() == unsettled.ticket().is_some()
        };
        if let Some(same) = self.unsettled.iter_mut().find(is_same) {
            let before = core::mem::replace(same, unsettled);
            if let Some(ticket) = before.ticket() {
                self.control.answer(ticket, Answer::Fate(None), now);
            }
        } else if self.unsettled.len() < ENDED_MAX {
            self.unsettled.push(unsettled);
        } else {
            return false;
        }
        self.sweep_at(now.saturating_add_ns(SETTLE_NS));
        true
    }
}

impl<D: Device> Core<D> {
    /// A lane that is an RC QP has failed.
    #[cold]
    pub(crate) fn lane_broke(&mut self, lane: LaneIx, now: Time) {
        if let Some(id) = self.links.rc.by_lane(lane) {
            self.ask_fate(id, now);
        }
    }

    /// Our end of a link has failed: the peer is told how far it got, and asked for the same. Also if
    /// nothing of ours is on it, since the peer's work would else run into its retries.
    pub(super) fn ask_fate(&mut self, id: LinkId, now: Time) {
        let Some(link) = self.links.rc.get(id) else {
            return bug!("a link that is gone has failed");
        };
        if link.reached != Reached::Unasked || link.state == LinkState::Asking {
            return;
        }
        let (qp, to, peer_qpn) = (link.qp, link.control, link.qpn);
        let Some(PeerEnd { qpn, .. }) = link.peer_end else {
            return bug!("a link has failed that is not connected");
        };
        let stopped = self.stop_end(qp);
        let later = Unsettled { id, qp, asked: None };
        if matches!(stopped, Stopped::Waiting) && self.links.settle_later(later, now) {
            return;
        }
        let stopped = stopped.psn();
        let request = stopped.map(|psn| Request::RcFate { qpn, peer_qpn, psn });
        self.links.set_reached(id, Reached::Asked);
        self.stats.fates_asked += 1;
        let asked = request.is_some_and(|request| {
            self.call(to, request, CallFor::Fate { link: id }, now).is_some()
        });
        if !asked {
            self.fate_told(id, Reached::Unknown { answered: true });
        }
    }

    /// Goes on with ends that were stopped while a copy of theirs was under way.
    pub(super) fn settle_ends(&mut self, now: Time) {
        for Unsettled { id, qp, asked } in core::mem::take(&mut self.links.unsettled) {
            match asked {
                Some((ticket, ends, psn)) => self.serve_fate(ticket, ends, psn, now),
                None if self.links.rc.get(id).is_some_and(|link| link.qp == qp) => {
                    self.ask_fate(id, now);
                }
                None => {}
            }
        }
    }

    /// A request of ours how far the other end of a link got has ended.
    pub(super) fn fate_answered(&mut self, id: LinkId, answer: Option<Answer>) {
        let reached = match answer {
            Some(Answer::Fate(Some(psn))) => Reached::Psn(psn),
            other => Reached::Unknown { answered: other.is_some() },
        };
        self.fate_told(id, reached);
    }

    fn fate_told(&mut self, id: LinkId, reached: Reached) {
        // It may have been closed meanwhile.
        let Some(link) = self.links.rc.get(id) else { return };
        // The peer's own request may have told it before.
        if link.reached != Reached::Asked {
            return;
        }
        let lane = link.lane;
        self.stats.fates_unknown += u64::from(matches!(reached, Reached::Unknown { .. }));
        self.links.set_reached(id, reached);
        if let Some(lane) = lane {
            self.effects.push(Effect::Restart(lane));
        }
    }

    /// A peer's end of a link has failed, having got to `psn`, and it asks how far ours got. From the
    /// answer on ours executes nothing more.
    pub(super) fn serve_fate(
        &mut self,
        ticket: Ticket,
        (qpn, peer_qpn): (u32, u32),
        psn: u32,
        now: Time,
    ) {
        let Some((id, link)) = self.link_between(ticket, qpn, peer_qpn) else {
            let from = ticket.from.gid;
            let of_peer = |peer: PeerId| self.peers.get(peer).is_some_and(|peer| peer.gid == from);
            let ended = self
                .links
                .ended
                .iter()
                .find(|end| (end.qpn, end.peer_qpn) == (qpn, peer_qpn) && of_peer(end.peer));
            let answer = Answer::Fate(ended.map(|end| end.psn));
            return self.links.control.answer(ticket, answer, now);
        };
        let (qp, state, lane) = (link.qp, link.state, link.lane);
        let stopped = self.stop_end(qp);
        let later = Unsettled { id, qp, asked: Some((ticket, (qpn, peer_qpn), psn)) };
        if matches!(stopped, Stopped::Waiting) && self.links.settle_later(later, now) {
            return;
        }
        let reached = stopped.psn();
        if matches!(link_reached(&self.links.rc, id), Reached::Unasked | Reached::Asked) {
            self.links.set_reached(id, Reached::Psn(psn));
        }
        self.links.control.answer(ticket, Answer::Fate(reached), now);
        if matches!(state, LinkState::Ready | LinkState::Listening) {
            self.leave(id, None, now);
        }
        if let Some(lane) = lane {
            self.effects.push(Effect::Restart(lane));
        }
    }
}

fn link_reached(links: &crate::rc::pool::RcPool, id: LinkId) -> Reached {
    links.get(id).map_or(Reached::Unasked, |link| link.reached)
}
