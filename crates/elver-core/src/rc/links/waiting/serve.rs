//! Lets those go on that wait for links.

use alloc::vec::Vec;

use elver_control::{Answer, Class, ControlAddr, NodeRecord, Refusal, Served, Shortage};
use elver_verbs::{Device, Time};

use super::{STALE_MAX, Unasked, Waiter};
use crate::rc::Purpose;
use crate::rc::links::SILENCE_NS;
use crate::{ConnectError, Core};

impl<D: Device> Core<D> {
    /// A connect goes on when there is a link to its peer.
    pub(crate) fn await_link(&mut self, vqp: u32, attempt: u32, peer: u32, now: Time) {
        let class = self.vqps.get(vqp).map_or(Class::Low, |vqp| vqp.class);
        let until = now.saturating_add_ns(SILENCE_NS);
        let waiting = self.links.waiting.connects.entry((peer, class)).or_default();
        waiting.push_back(Waiter { vqp, attempt, until });
        if waiting.len() > 2 * self.lookups.waiting as usize + STALE_MAX {
            let vqps = &self.vqps;
            waiting.retain(|waiter| waiter.waits(vqps));
        }
        self.need_link(peer, class, now);
        self.sweep_soon(now);
    }

    /// A link to a peer is needed: now, or as soon as there is room.
    pub(crate) fn need_link(&mut self, peer: u32, class: Class, now: Time) {
        let asked = self.links.rc.find(peer, class).is_some();
        if asked || self.links.waiting.wants(peer, class) {
            return;
        }
        match self.ask_link(peer, class, Purpose::Pool, now) {
            Ok(_) => {}
            Err(Unasked::NoAddress) => {
                let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
                self.waiters_fail(peer, class, &ConnectError::Unreachable { gid }, now);
            }
            Err(Unasked::Busy | Unasked::Short(..)) => {
                self.links.waiting.want(peer, class, now.saturating_add_ns(SILENCE_NS));
                self.make_room(now);
                self.sweep_soon(now);
            }
        }
    }

    /// A connect goes on with an RC QP of its own, as soon as there is room.
    pub(crate) fn lease_link(&mut self, vqp: u32, attempt: u32, peer: u32, now: Time) {
        let waiter = Waiter { vqp, attempt, until: now.saturating_add_ns(SILENCE_NS) };
        let waiting = &mut self.links.waiting.leases;
        if waiting.is_empty() {
            self.lease_or_wait(waiter, peer, now);
            return;
        }
        waiting.push_back((waiter, peer));
        if waiting.len() > 2 * self.lookups.waiting as usize + STALE_MAX {
            let vqps = &self.vqps;
            waiting.retain(|(waiter, _)| waiter.waits(vqps));
        }
    }

    /// Returns whether a connect need not wait any longer; else it does, before all others.
    fn lease_or_wait(&mut self, waiter: Waiter, peer: u32, now: Time) -> bool {
        let Waiter { vqp: id, until, .. } = waiter;
        if !waiter.waits(&self.vqps) {
            return true;
        }
        let class = self.vqps.get(id).map_or(Class::Low, |vqp| vqp.class);
        match self.ask_link(peer, class, Purpose::Leased(Some(id)), now) {
            Ok(link) => {
                if let Some(vqp) = self.vqps.get_mut(id) {
                    vqp.lease = link;
                }
                true
            }
            Err(Unasked::Short(..)) if until > now && self.lease_room_comes() => {
                self.links.waiting.leases.push_front((waiter, peer));
                self.sweep_soon(now);
                false
            }
            Err(why) => {
                let error = self.unasked(why, peer);
                self.connect_ended(id, peer, Err(error), now);
                true
            }
        }
    }

    /// Whether leased links are on the way out.
    fn lease_room_comes(&self) -> bool {
        self.links.rc.leases_ending() > 0 || !self.links.ended_leases.is_empty()
    }

    /// What a connect is told that no link was asked for.
    fn unasked(&self, why: Unasked, peer: u32) -> ConnectError {
        let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
        match why {
            Unasked::NoAddress => ConnectError::Unreachable { gid },
            Unasked::Busy => self.busy(),
            Unasked::Short(of, used, limit) => {
                ConnectError::NoRcQp { gid, here: true, of, used, limit }
            }
        }
    }

    /// As many requests wait as may.
    pub(in crate::rc::links) fn busy(&self) -> ConnectError {
        let (waiting, limit) = self.links.control.load();
        ConnectError::Busy { waiting, limit }
    }

    /// A link goes. If it is waited for another comes: at the peer's request, which may be on its
    /// way, or else at ours.
    pub(in crate::rc::links) fn link_lost(&mut self, peer: u32, class: Class, now: Time) {
        let lost = &self.links.waiting.lost;
        if !lost.contains(&(peer, class)) && self.is_link_needed(peer, class) {
            self.links.waiting.lost.push((peer, class));
            self.sweep_soon(now);
        }
    }

    /// A shared link works: who waits for it goes on.
    pub(in crate::rc::links) fn waiters_go_on(&mut self, peer: u32, class: Class, now: Time) {
        for waiter in self.links.waiting.connects.remove(&(peer, class)).unwrap_or_default() {
            self.link_found(waiter.vqp, waiter.attempt, peer, Ok(()), now);
        }
        self.ops_go_on(peer, now);
    }

    /// No link to a peer comes: who waits for one fails.
    pub(in crate::rc::links) fn waiters_fail(
        &mut self,
        peer: u32,
        class: Class,
        error: &ConnectError,
        now: Time,
    ) {
        for waiter in self.links.waiting.connects.remove(&(peer, class)).unwrap_or_default() {
            self.link_found(waiter.vqp, waiter.attempt, peer, Err(error.clone()), now);
        }
        self.fail_laneless(peer, class, now);
    }

    /// A peer's request that there is no room for is answered when room comes. Returns whether it
    /// does: something is on the way out.
    pub(in crate::rc::links) fn hold_request(&mut self, served: Served, now: Time) -> bool {
        self.make_room(now);
        if self.links.rc.ending() == 0 {
            return false;
        }
        let until = now.saturating_add_ns(SILENCE_NS);
        self.links.waiting.held.push_back((until, served));
        self.sweep_soon(now);
        true
    }

    /// A link has ended, or failed to: who waits for room goes on, others' requests and our own in
    /// turn.
    pub(in crate::rc::links) fn serve_waiting(&mut self, now: Time) {
        self.links.waiting.stirred = false;
        while let Some((waiter, peer)) = self.links.waiting.leases.pop_front() {
            if !self.lease_or_wait(waiter, peer, now) {
                break;
            }
        }
        let depth = self.config.sq_depth;
        let mut served = true;
        while served && self.links.rc.has_room(Purpose::Pool, depth) {
            served = false;
            if let Some((_, request)) = self.links.waiting.held.pop_front() {
                self.serve(request, now);
                served = true;
            }
            if self.links.rc.has_room(Purpose::Pool, depth)
                && let Some((until, peer, class)) = self.links.waiting.next_wanted()
            {
                served = self.ask_wanted(until, peer, class, now) || served;
            }
        }
        // Nothing else makes room: they need not wait.
        if self.links.rc.ending() == 0 {
            for (_, request) in core::mem::take(&mut self.links.waiting.held) {
                self.refuse_held(request, now);
            }
        }
    }

    /// Asks for a link that was wanted, if it still is. Returns whether others may go on.
    fn ask_wanted(&mut self, until: Time, peer: u32, class: Class, now: Time) -> bool {
        if !self.is_link_needed(peer, class) || self.links.rc.find(peer, class).is_some() {
            return true;
        }
        match self.ask_link(peer, class, Purpose::Pool, now) {
            Ok(_) => true,
            Err(Unasked::NoAddress) => {
                let error = self.unasked(Unasked::NoAddress, peer);
                self.waiters_fail(peer, class, &error, now);
                true
            }
            Err(_) => {
                self.links.waiting.want(peer, class, until);
                false
            }
        }
    }

    /// Whether connects, VQPs or operations wait for a link.
    fn is_link_needed(&self, peer: u32, class: Class) -> bool {
        self.links.waiting.connects.contains_key(&(peer, class))
            || self.is_laneless(peer, class)
            || self.has_laneless_op(peer, class)
    }

    /// Refuses the requests that wait and that a peer did not make as what it is now: to take up one
    /// of them would be to believe again what it was.
    pub(crate) fn refuse_past(&mut self, peer: u32, is: Option<NodeRecord>, now: Time) {
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

    fn refuse_held(&mut self, request: Served, now: Time) {
        let limit = self.config.transfer.rc_qps_max;
        let used = self.links.rc.pooled();
        let refusal = Refusal::Short { of: Shortage::Pool, used, limit };
        self.links.control.answer(request.ticket, Answer::Refused(refusal), now);
    }

    /// Ends what has waited for too long, and gives another try to what is wanted.
    pub(in crate::rc::links) fn sweep_waiting(&mut self, now: Time) {
        for (peer, class) in core::mem::take(&mut self.links.waiting.lost) {
            let works =
                self.peers.get(peer).is_some_and(|entry| entry.rc[class as usize].is_some());
            if works {
                self.waiters_go_on(peer, class, now);
            } else if self.is_link_needed(peer, class) {
                self.need_link(peer, class, now);
            }
        }
        self.serve_waiting(now);
        while let Some(&(until, request)) = self.links.waiting.held.front()
            && until <= now
        {
            self.links.waiting.held.pop_front();
            self.refuse_held(request, now);
        }
        while let Some(&(until, peer, class)) = self.links.waiting.wanted.front()
            && until <= now
        {
            self.links.waiting.next_wanted();
            let error = match self.links.rc.shortage(Purpose::Pool, self.config.sq_depth) {
                Some((of, used, limit)) => self.unasked(Unasked::Short(of, used, limit), peer),
                None => self.unasked(Unasked::NoAddress, peer),
            };
            self.waiters_fail(peer, class, &error, now);
        }
        if !self.links.waiting.wanted.is_empty() {
            self.make_room(now);
        }
        let mut late = Vec::new();
        self.links.waiting.connects.retain(|&(peer, _), waiting| {
            while let Some(waiter) = waiting.front().filter(|waiter| waiter.until <= now) {
                late.push((*waiter, peer));
                waiting.pop_front();
            }
            !waiting.is_empty()
        });
        for (Waiter { vqp, attempt, .. }, peer) in late {
            let error = self.unasked(Unasked::NoAddress, peer);
            self.link_found(vqp, attempt, peer, Err(error), now);
        }
    }

    /// Where a peer takes control messages, if that is known.
    pub(crate) fn control_addr(&self, peer: u32) -> Option<ControlAddr> {
        let entry = self.peers.get(peer)?;
        let (qpn, qkey) = entry.control?;
        Some(ControlAddr { gid: entry.gid, qpn, qkey })
    }
}
