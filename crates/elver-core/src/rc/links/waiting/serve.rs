//! Lets those go on that wait for links.

use alloc::vec::Vec;

use elver_control::Served;
use elver_verbs::{Class, Device, Time, WcStatus};

use crate::VqpId;
use crate::ids::PeerId;
use crate::rc::link::{Purpose, RcLink};
use crate::rc::links::SILENCE_NS;
use crate::rc::links::waiting::{STALE_MAX, Unasked, Waiter};
use crate::vqp::Vqp;
use crate::vqp::phase::Phase;
use crate::{ConnectError, Core};

impl<D: Device> Core<D> {
    /// A connect goes on when there is a link to its peer.
    pub(crate) fn await_link(&mut self, vqp: VqpId, attempt: u32, peer: PeerId, now: Time) {
        let class = self.vqps.get(vqp).map_or(Class::Low, |vqp| vqp.class);
        let until = now.saturating_add_ns(SILENCE_NS);
        let waiting = self.links.waiting.connects.entry((peer, class)).or_default();
        waiting.push_back(Waiter { vqp, attempt, until });
        if waiting.len() > 2 * self.discovery.lookups.waiting as usize + STALE_MAX {
            let vqps = &self.vqps;
            waiting.retain(|waiter| waiter.waits(vqps));
        }
        self.need_link(peer, class, now);
        self.links.sweep_soon(now);
    }

    /// A link to a peer is needed: now, or as soon as there is room.
    pub(crate) fn need_link(&mut self, peer: PeerId, class: Class, now: Time) {
        let asked = self.links.rc.find(peer, class).is_some();
        if asked || self.links.waiting.wants(peer, class) {
            return;
        }
        match self.ask_link(peer, class, Purpose::Pool, now) {
            Ok(_) => {}
            Err(Unasked::NoAddress) => {
                let gid = self.peers.gid_of(peer);
                self.waiters_fail(peer, class, &ConnectError::Unreachable { gid }, now);
            }
            Err(Unasked::Busy | Unasked::Short(..)) => {
                self.links.waiting.want(peer, class, now.saturating_add_ns(SILENCE_NS));
                self.make_room(now);
                self.links.sweep_soon(now);
            }
        }
    }

    /// A connect goes on with an RC QP of its own, as soon as there is room.
    pub(crate) fn lease_link(&mut self, vqp: VqpId, attempt: u32, peer: PeerId, now: Time) {
        let waiter = Waiter { vqp, attempt, until: now.saturating_add_ns(SILENCE_NS) };
        let waiting = &mut self.links.waiting.leases;
        if waiting.is_empty() {
            self.lease_or_wait(waiter, peer, now);
            return;
        }
        waiting.push_back((waiter, peer));
        if waiting.len() > 2 * self.discovery.lookups.waiting as usize + STALE_MAX {
            let vqps = &self.vqps;
            waiting.retain(|(waiter, _)| waiter.waits(vqps));
        }
    }

    /// Returns whether a connect need not wait any longer; else it does, before all others.
    pub(in crate::rc::links) fn lease_or_wait(
        &mut self,
        waiter: Waiter,
        peer: PeerId,
        now: Time,
    ) -> bool {
        let Waiter { vqp: id, until, .. } = waiter;
        if !waiter.waits(&self.vqps) {
            return true;
        }
        let class = self.vqps.get(id).map_or(Class::Low, |vqp| vqp.class);
        match self.ask_link(peer, class, Purpose::Leased(Some(id)), now) {
            Ok(link) => {
                if let Some(vqp) = self.vqps.get_mut(id) {
                    vqp.lease = Some(link);
                }
                true
            }
            Err(Unasked::Short(..)) if until > now && self.lease_room_comes() => {
                self.links.waiting.leases.push_front((waiter, peer));
                self.links.sweep_soon(now);
                false
            }
            Err(why) => {
                let error = self.unasked(why, peer);
                self.connect_ended(id, peer, Err(error), now);
                true
            }
        }
    }

    /// Whether leased links are on the way out, or go with VQPs that do: those have work in flight still.
    fn lease_room_comes(&self) -> bool {
        let ends =
            |vqp: &VqpId| self.vqps.get(*vqp).is_some_and(|vqp| vqp.phase == Phase::Destroyed);
        let goes = |link: &RcLink| matches!(&link.purpose, Purpose::Leased(Some(vqp)) if ends(vqp));
        self.links.rc.leases_ending() > 0
            || !self.links.ended_leases.is_empty()
            || self.links.rc.matching(goes).next().is_some()
    }

    /// What a connect is told that no link was asked for.
    pub(in crate::rc::links) fn unasked(&self, why: Unasked, peer: PeerId) -> ConnectError {
        let gid = self.peers.gid_of(peer);
        match why {
            Unasked::NoAddress => ConnectError::Unreachable { gid },
            Unasked::Busy => self.links.busy(),
            Unasked::Short(of, used, limit) => {
                ConnectError::NoRcQp { gid, here: true, of, used, limit }
            }
        }
    }

    /// A shared link works: who waits for it goes on.
    pub(in crate::rc::links) fn waiters_go_on(&mut self, peer: PeerId, class: Class, now: Time) {
        for waiter in self.links.waiting.connects.remove(&(peer, class)).unwrap_or_default() {
            self.link_found(waiter.vqp, waiter.attempt, peer, Ok(()), now);
        }
        self.ops_go_on(peer, now);
    }

    /// No link to a peer comes: who waits for one fails.
    pub(in crate::rc::links) fn waiters_fail(
        &mut self,
        peer: PeerId,
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
        self.links.sweep_soon(now);
        true
    }

    /// No lane to the peer comes: the VQPs that have something to post fail, and operations.
    pub(crate) fn fail_laneless(&mut self, peer: PeerId, class: Class, now: Time) {
        let waits = |vqp: &Vqp| vqp.is_laneless(class) && vqp.sq.unposted() > 0;
        let found = self.vqps_to(peer).filter(|(_, vqp)| waits(vqp));
        let found: Vec<VqpId> = found.map(|(id, _)| id).collect();
        for id in found {
            self.fail_next(id, WcStatus::RetryExcErr, now);
        }
        self.fail_laneless_ops(peer, class, now);
    }
}
