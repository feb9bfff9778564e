//! What links need, once a poll.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use elver_control::{Answer, ControlBody, Request};
use elver_verbs::{AsyncEvent, Class, Device, Time, Wc};

use crate::discovery::peer::{Peer, PeerLookup, Waiter};
use crate::ids::{CallId, Id as _, LaneIx, LinkId, PeerId};
use crate::pool::create::CONTROL_RECVS;
use crate::rc::back_off::BackOff;
use crate::rc::link::{LinkState, Purpose, RcLink};
use crate::rc::links::waiting::Unasked;
use crate::rc::links::{CallFor, GREETING, SILENCE_NS};
use crate::{ConnectError, Core};

impl<D: Device> Core<D> {
    /// Does what links need: once a poll. Returns whether anything happened.
    pub(crate) fn attend_links(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(event) = self.device.poll_async_event() {
            match event {
                AsyncEvent::CommEst(qp) => self.link_heard(qp, now),
                AsyncEvent::QpFatal(qp)
                | AsyncEvent::QpReqErr(qp)
                | AsyncEvent::QpAccessErr(qp) => self.link_errored(qp, now),
                AsyncEvent::CqErr(_) | AsyncEvent::SrqErr(_) => self.stats.device_faults += 1,
                _ => {}
            }
            busy = true;
        }
        if self.links.control.poll_timeout().is_some_and(|due| due <= now) {
            self.links.control.handle_timeout(&mut self.rng, now);
        }
        while let Some((peer, class)) = self.links.hot.pop_front() {
            self.warm_link(peer, class, now);
        }
        while let Some(done) = self.links.control.poll_done() {
            self.call_ended(done.token, done.answer, now);
            busy = true;
        }
        for link in core::mem::take(&mut self.links.ended_leases) {
            self.end_lease(link, now);
        }
        if !self.links.moved.is_empty() {
            self.switch_moved();
            busy = true;
        }
        if !self.links.leaving.is_empty() {
            self.close_left(now);
        }
        if self.links.waiting.stirred && !self.links.waiting.is_empty() {
            self.serve_waiting(now);
            busy = true;
        }
        if self.links.sweep.is_some_and(|due| due <= now) {
            self.sweep_links(now);
        }
        busy | self.flush_control()
    }

    /// A completion of the UD QP's.
    pub(crate) fn complete_control(&mut self, slot: u32, wc: &Wc, now: Time) {
        if slot & GREETING != 0 {
            return self.greeted(LaneIx(slot & !GREETING), wc.status, now);
        }
        let Some(datagram) = self.links.ud.complete(&mut self.device, slot, wc) else {
            // What came, if it is not one that we have sent, is no message.
            self.stats.control_stray += u64::from(slot < CONTROL_RECVS);
            return;
        };
        let from = (datagram.from, datagram.from_qpn);
        let Some(message) = self.links.control.read(datagram.bytes()) else { return };
        self.peer_heard(from, now);
        match message.body {
            ControlBody::Request(Request::Alive { qkey, ports }) => {
                self.answer_alive(from, message.id, qkey, ports);
            }
            ControlBody::Answer(Answer::Alive { turns, bound }) => {
                self.heard_alive(from, message.id, turns, &bound);
            }
            ControlBody::Request(request) => self.take_request(from, message.id, request, now),
            ControlBody::Answer(answer) => {
                let control = &mut self.links.control;
                control.handle_answer(from, message.id, answer, &mut self.rng, now);
            }
        }
    }

    /// A peer became hot: it gets a link in the background, if it has none and there is room. If
    /// there is none the link that was used longest ago makes it, for the next time.
    fn warm_link(&mut self, peer: PeerId, class: Class, now: Time) {
        let own = self.peers.get(peer).is_none_or(|entry| entry.gid == self.gid);
        let held = self.peers.get(peer).is_some_and(|entry| entry.back_off.holds(now).is_some());
        if own || held || self.links.rc.find(peer, class).is_some() {
            return;
        }
        if self.links.rc.has_room(Purpose::Pool, self.config.sq_depth) {
            // If it is not asked for, the VQPs stay where they are.
            let _ = self.ask_link(peer, class, Purpose::Pool, now);
        } else {
            self.make_room(now);
        }
    }

    /// Asks a peer for its record (the RPC that KRCORE compares its meta server with), once for all
    /// who wait.
    pub(crate) fn ask_meta(&mut self, peer: PeerId, waiter: Waiter, now: Time) {
        let to = self.peers.control_addr(peer);
        let Some(entry) = self.peers.get_mut(peer) else {
            return bug!("a peer that is gone is asked");
        };
        let gid = entry.gid;
        entry.waiting.push(waiter);
        if entry.lookup != PeerLookup::None {
            return;
        }
        let call = to.and_then(|to| self.call(to, Request::Meta, CallFor::Meta { peer }, now));
        let Some(call) = call else {
            let error =
                if to.is_some() { self.links.busy() } else { ConnectError::Unreachable { gid } };
            return self.look_up_ended(peer, Err(error));
        };
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.lookup = PeerLookup::Asked(call);
        }
        self.stats.meta_calls += 1;
    }

    /// A peer has told its record, or did not answer.
    fn meta_answered(&mut self, peer: PeerId, call: CallId, answer: Option<Answer>) {
        // A meta server may have been asked instead, and the peer be forgotten by now.
        let waits = |entry: &&Peer| entry.lookup == PeerLookup::Asked(call);
        let Some(gid) = self.peers.get(peer).filter(waits).map(|entry| entry.gid) else { return };
        let found = match answer {
            Some(Answer::Record(record)) => Ok(record),
            _ => {
                self.doubt(peer);
                Err(ConnectError::Unreachable { gid })
            }
        };
        self.look_up_ended(peer, found);
    }

    /// A request of ours has ended.
    fn call_ended(&mut self, token: u64, answer: Option<Answer>, now: Time) {
        let id = NonZeroU32::new(token as u32).map(CallId::of);
        let ended = id.and_then(|id| Some((id, self.links.calls.remove(id)?)));
        let Some((id, what)) = ended else {
            return bug!("a request has ended that was not made");
        };
        // There is room for another call.
        self.links.waiting.stirred = true;
        match what {
            CallFor::Connect { link, qpn, to } => self.link_answered(link, qpn, to, answer, now),
            CallFor::Close { link } => self.close_ended(link, answer, now),
            CallFor::Fate { link } => self.fate_answered(link, answer),
            CallFor::Remind(reminder) if answer.is_none() => self.remind_later(reminder, now),
            CallFor::Remind(_) => {}
            CallFor::Past { peer } => self.past_answered(peer, answer, now),
            CallFor::Meta { peer } => self.meta_answered(peer, id, answer),
        }
    }

    /// The meta servers are others now: without DC, links to them are made at once, and those to the
    /// old ones closed.
    pub(crate) fn link_meta_servers(&mut self, now: Time) {
        let servers = &self.discovery.lookups.servers;
        let old = |link: &RcLink| {
            link.purpose == Purpose::Meta
                && link.state == LinkState::Ready
                && !servers.peers().any(|peer| peer == link.peer)
        };
        let old = self.links.rc.shared().filter(|(_, link)| old(link));
        let old: Vec<LinkId> = old.map(|(id, _)| id).collect();
        for id in old {
            self.leave(id, None, now);
        }
        for peer in self.discovery.lookups.servers.peers() {
            if let Some(entry) = self.peers.get_mut(peer) {
                entry.back_off = BackOff::default();
            }
        }
        self.sweep_links(now);
    }

    /// Looks after what has no moment of its own: links that are wanted, that meta servers lack, or
    /// that nobody uses, and connects that wait for too long.
    pub(crate) fn sweep_links(&mut self, now: Time) {
        self.links.sweep = None;
        let due = self.links.meta_link_due.take();
        self.sweep_waiting(now);
        for index in 0..self.discovery.lookups.servers.len() {
            let Some((peer, _)) = self.discovery.lookups.servers.get(index) else {
                bug!("a meta server is gone");
                break;
            };
            // Over DC it is asked without one. If it cannot be asked for a link now, the next sweep
            // tries again.
            if self.looks_up_over_rc_at(peer) && self.links.rc.find(peer, Class::Low).is_none() {
                let asked = self.ask_link(peer, Class::Low, Purpose::Meta, now);
                if matches!(asked, Err(Unasked::Busy)) && due.is_none_or(|until| now < until) {
                    self.links.meta_link_due = due;
                    self.links.await_meta_link(now);
                }
                self.links.sweep_soon(now);
            }
        }
        // Its peer may have given up what it has asked for. Who waits for it here has time left then to ask
        // for another.
        let (waiting, heard) = (&self.links.waiting, self.arrivals.heard.until());
        let silent = |link: &RcLink| {
            let waited_for =
                link.purpose.is_shared() && waiting.is_waited_for(link.peer, link.class);
            let bound = if waited_for { SILENCE_NS / 2 } else { SILENCE_NS };
            link.state == LinkState::Listening && heard.ns_since(link.since) >= bound
        };
        let silent: Vec<LinkId> = self.links.rc.matching(silent).collect();
        for id in silent {
            self.leave(id, None, now);
        }
        self.remind(now);
        self.settle_ends(now);
        self.sweep_laneless(now);
        let listening = |link: &RcLink| link.state == LinkState::Listening;
        let listening = self.links.rc.matching(listening).next().is_some();
        if listening || !self.links.waiting.is_empty() {
            self.links.sweep_soon(now);
        }
        if due.is_some() {
            self.start_lookups(now);
        }
    }
}
