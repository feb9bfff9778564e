//! What makes progress: looks at the link and at what comes past it, at the clock, and at what waits to be sent.

use elver_rnic::{RxMeta, Time};
use elver_wire::{Flow, IpId};

use super::SoftDevice;
use crate::clock::now;
use crate::inlet::{Inlet, hand};
use crate::publish::PUBLISH_INTERVAL_NS;
use crate::transmit::Send;
use crate::udp::HOP_LIMIT_HIDDEN;

/// Posts after which packets leave even if nobody polls.
const POSTS_PER_FLUSH: u32 = 16;
/// Empty looks at the socket before one at the clock.
const EMPTY_PER_CLOCK: u32 = 8;
/// So many empty looks behind which the next one is one at the clock too.
pub(super) const LOOKS_AT_CLOCK: u32 = EMPTY_PER_CLOCK - 1;
/// Packets that came past the link and are taken at once.
const BESIDE_MAX: u32 = 64;
/// Time between two looks at the link while all comes past it. Looks at what comes past it say nothing of time: who
/// lets others run between them, or polls once a millisecond, would leave the link until its socket overflows.
const LINK_INTERVAL_NS: u64 = 5_000;
/// Looks at the link in vain before it is looked at so seldom.
const LINK_QUIET: u32 = 16;
/// Looks at the socket in a row that found something before what gives way is sent all the same.
const HELD_MAX: u32 = 4;

impl SoftDevice {
    /// Whether something came past the link, which [`SoftDevice::as_fd`] does not tell of.
    pub fn has_beside(&mut self) -> bool {
        self.port.bypass().is_some_and(|(bypass, _)| bypass.has_more())
    }

    /// Takes what came past the link. Whether there was something.
    #[inline]
    fn take_beside(&mut self) -> bool {
        let SoftDevice { rnic, port, beside, .. } = self;
        let Some((bypass, address)) = port.bypass() else { return false };
        if !bypass.has_more() {
            return false;
        }
        let (now, udp_port) = (now(), rnic.config().udp_port);
        for _ in 0..BESIDE_MAX {
            let Some((from, traffic_class, len)) = bypass.take(beside) else { break };
            let flow = Flow { src: (from, udp_port).into(), dst: (address, udp_port).into() };
            let (hop_limit, ip_id) = (HOP_LIMIT_HIDDEN, IpId::Likely(0));
            let meta = RxMeta { flow, traffic_class, hop_limit, ip_id };
            rnic.handle_unsealed(now, &meta, &beside[..len]);
        }
        bypass.took();
        self.transmit(now);
        true
    }

    /// Gives what arrived to the RNIC.
    fn take(&mut self, now: Time, count: usize) {
        let SoftDevice { rnic, port, capture, faults, .. } = self;
        port.take(count, Inlet { now, rnic, capture, faults });
    }

    /// Takes what came before and was to be taken later. Whether there was something.
    #[cold]
    fn take_late(&mut self) -> bool {
        let now = now();
        let SoftDevice { rnic, faults, .. } = self;
        let Some(faults) = faults else { return false };
        let mut any = false;
        while let Some((meta, packet)) = faults.take_due(now) {
            hand(rnic, now, &meta, &packet);
            any = true;
        }
        any && {
            self.transmit(now);
            true
        }
    }

    /// Takes what came for multicast groups. Whether there was something.
    #[cold]
    fn take_groups(&mut self) -> bool {
        let now = now();
        let SoftDevice { rnic, groups, capture, faults, .. } = self;
        let inlet = &mut Inlet { now, rnic, capture, faults };
        groups.as_mut().is_some_and(|groups| groups.take(inlet))
    }

    /// When a packet that came before is to be taken.
    pub(super) fn late_due(&self) -> Option<Time> {
        self.faults.as_ref().and_then(|faults| faults.due())
    }

    /// Whether what came before the clock was last looked at is taken: the socket was asked since, and is
    /// empty, and so is what comes past it.
    fn has_caught_up(&mut self) -> bool {
        self.late_due().is_none() && self.port.look().emptied && !self.has_beside()
    }

    /// Sends what there is to send.
    fn transmit(&mut self, now: Time) -> bool {
        let SoftDevice { rnic, port, capture, .. } = self;
        port.transmit(now, rnic, capture, Send::All)
    }

    /// Sends what does not give way.
    fn transmit_urgent(&mut self, now: Time) {
        let SoftDevice { rnic, port, capture, .. } = self;
        port.transmit(now, rnic, capture, Send::Urgent);
    }

    pub(super) fn drive(&mut self) -> bool {
        let late = self.faults.is_some() && self.take_late();
        let taken = self.groups.is_some() && self.take_groups();
        let acted = self.look_around() || late || taken;
        if self.rnic.has_errands() || self.errands.any() {
            self.run_errands() | acted
        } else {
            acted
        }
    }

    /// Has copies made that could have to wait.
    #[cold]
    fn run_errands(&mut self) -> bool {
        let now = now();
        let SoftDevice { rnic, errands, .. } = self;
        errands.run(now, rnic) && {
            self.transmit(now);
            true
        }
    }

    fn look_around(&mut self) -> bool {
        self.posts = 0;
        self.polls = 0;
        if self.beside.is_empty()
            || !self.port.bypass().is_some_and(|(bypass, _)| bypass.has_peers())
        {
            return self.look_at_link();
        }
        let beside = self.take_beside();
        // A look at the socket costs more than all else: one where nothing has come for long is rare.
        let waits = self.port.is_waiting() || self.rnic.wants_to_transmit();
        if self.quiet >= LINK_QUIET && !waits {
            let now = now();
            if now.ns_since(self.link_looked_at) < LINK_INTERVAL_NS {
                return beside;
            }
            self.link_looked_at = now;
        }
        let acted = self.look_at_link();
        self.quiet = if acted { 0 } else { self.quiet.saturating_add(1) };
        acted | beside
    }

    fn look_at_link(&mut self) -> bool {
        let sends = self.port.is_waiting() || self.rnic.wants_to_transmit();
        let holds = self.rnic.gives_way() && self.held < HELD_MAX;
        let mut sent = sends && !holds && self.transmit(now());
        let count = self.port.receive();
        self.taken.add(self.port.look());
        if count == 0 {
            self.held = 0;
            sent |= holds && self.transmit(now());
            // Looking at the clock costs a good part of an empty look at the socket.
            self.empty = self.empty.wrapping_add(1);
            if self.empty.is_multiple_of(EMPTY_PER_CLOCK) {
                if self.has_caught_up() {
                    self.rnic.caught_up(self.looked_at);
                }
                self.looked_at = now();
                return self.attend(self.looked_at) || sent;
            }
            return sent;
        }
        let now = now();
        self.looked_at = now;
        self.take(now, count);
        if holds {
            self.held += 1;
            self.transmit_urgent(now);
        } else {
            self.held = 0;
            self.transmit(now);
        }
        self.attend(now);
        true
    }

    /// Does what is due by the clock.
    fn attend(&mut self, now: Time) -> bool {
        if now.ns_since(self.published_at) >= PUBLISH_INTERVAL_NS {
            self.published_at = now;
            self.publish();
        }
        let asks = self.port.handle_timeout(now);
        if self.rnic.poll_timeout().is_none_or(|due| due > now) {
            return asks && self.transmit(now);
        }
        self.rnic.handle_timeout(now);
        self.transmit(now)
    }

    /// Lets posted packets leave at once when the device is idle, and in trains when posts come
    /// faster than polls.
    #[inline]
    pub(super) fn posted(&mut self, now: Time) {
        if self.posts.is_multiple_of(POSTS_PER_FLUSH) {
            self.transmit(now);
        }
        self.posts += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::{Bypass, Carried, SoftConfig};

    /// So many packets that mean nothing.
    struct Waiting(u32);

    impl Bypass for Waiting {
        fn carry(&mut self, _: IpAddr, _: u8, _: &[u8]) -> Carried {
            Carried::ByLink
        }
        fn ring(&mut self) {}
        fn has_peers(&mut self) -> bool {
            true
        }
        fn has_more(&mut self) -> bool {
            self.0 > 0
        }
        fn take(&mut self, _: &mut [u8]) -> Option<(IpAddr, u8, usize)> {
            self.0 = self.0.checked_sub(1)?;
            Some((Ipv4Addr::LOCALHOST.into(), 0, 0))
        }
        fn took(&mut self) {}
    }

    /// An initiator whose packets waited past the link counted as silent while the socket was empty.
    #[test]
    fn nobody_has_caught_up_while_packets_wait_beside_the_socket() {
        let config = SoftConfig::for_address(Ipv4Addr::new(127, 0, 79, 1).into());
        let mut device = SoftDevice::open(config).unwrap();
        device.set_bypass(Box::new(Waiting(3 * BESIDE_MAX)));
        for look in 1..=3 {
            device.drive();
            assert_eq!(device.has_caught_up(), look == 3, "after look {look}");
        }
    }
}
