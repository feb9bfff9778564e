//! Lets those go on that wait for room, or ends their wait.

use alloc::vec::Vec;

use elver_verbs::{Class, Device, Time};

use crate::Core;
use crate::ids::PeerId;
use crate::rc::link::Purpose;
use crate::rc::links::waiting::{Unasked, Waiter};

impl<D: Device> Core<D> {
    /// A link has ended, or failed to: who waits for room goes on, others' requests and our own in
    /// turn.
    pub(crate) fn serve_waiting(&mut self, now: Time) {
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
    fn ask_wanted(&mut self, until: Time, peer: PeerId, class: Class, now: Time) -> bool {
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

    /// Ends what has waited for too long, and gives another try to what is wanted.
    pub(crate) fn sweep_waiting(&mut self, now: Time) {
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
}
