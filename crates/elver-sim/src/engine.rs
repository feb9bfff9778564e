//! The clock: packets come, and hosts do what is due.

use elver_rnic::DropReason;

use crate::faults::Fault;
use crate::host::INBOX_PACKETS;
use crate::model::Violation;
use crate::network::{ENGINE_PACKET_NS, Packet, peek};
use crate::trace::Event;
use crate::world::World;

/// Packets that a device may send at one moment: more means that it never stops.
const BURST_MAX: u64 = 100_000;

impl World {
    /// Runs until nothing is due before or at `until`.
    pub(crate) fn run_until(&mut self, until: u64) -> Result<(), Violation> {
        while let Some(at) = self.next_event().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            while let Some(packet) = self.network.pop(self.now) {
                self.arrive(packet);
            }
            for host in 0..self.hosts.len() {
                if self.hosts[host].wake_at.is_some_and(|wake| wake <= self.now) {
                    self.run_engine(host)?;
                }
            }
        }
        self.now = self.now.max(until);
        Ok(())
    }

    /// When something happens next.
    pub(crate) fn next_event(&self) -> Option<u64> {
        let wakes = self.hosts.iter().filter_map(|host| host.wake_at);
        wakes.chain(self.network.next()).min()
    }

    fn arrive(&mut self, packet: Packet) {
        let to = packet.to;
        let host = &mut self.hosts[to];
        if host.inbox.len() >= INBOX_PACKETS {
            host.rnic.count_drop(DropReason::Driver);
            self.network.disturb(to);
            self.network.count(Fault::QueueDrop);
            return;
        }
        host.inbox.push_back(packet);
        host.wake(self.now);
    }

    /// Lets a host take what came, do what is due and send what it has.
    fn run_engine(&mut self, number: usize) -> Result<(), Violation> {
        let (now, time) = (self.now, self.time(number));
        let host = &mut self.hosts[number];
        host.wake_at = None;
        host.look(now);
        let mut packets = 0;
        while let Some(mut packet) = host.inbox.pop_front() {
            let forged = self.planter.packet(&mut packet);
            for packet in [Some(packet), forged].into_iter().flatten() {
                let (opcode, qpn, psn) = peek(&packet.bytes);
                let len = packet.bytes.len();
                self.trace.add(now, Event::Delivered { to: number, len, opcode, qpn, psn });
                host.rnic.handle_datagram(time, &packet.meta, &packet.bytes);
                packets += 1;
            }
        }
        host.rnic.caught_up(time);
        host.looked_at = now;
        if host.rnic.poll_timeout().is_some_and(|due| due <= time) {
            host.rnic.handle_timeout(time);
        }
        loop {
            while let Some(transmit) = host.rnic.poll_transmit(time, &mut self.buffer) {
                let bytes = self.buffer[..transmit.len].to_vec();
                self.network.send(now, number, &transmit, bytes, &mut self.trace);
                packets += 1;
                if packets > BURST_MAX {
                    return Err(Violation::new(format!("host {number} never stops sending")));
                }
            }
            let mut hasty = || self.planter.hurries();
            if !host.errands.run(time, &mut host.rnic, &mut hasty) {
                break;
            }
        }
        host.busy_until = host.busy_until.max(now + packets * ENGINE_PACKET_NS);
        for due in host.rnic.poll_timeout().into_iter().chain(host.errands.due()) {
            // A timer that is due and was not acted upon must not stop the clock.
            host.wake(due.0.saturating_sub(host.ahead).max(now + 1));
        }
        if self.healed || self.polling.percent(self.plan.poll_percent) {
            self.poll(number)?;
        }
        self.take_events(number)
    }

    /// A program waits until nothing is copied any more, for a QP or memory that it wants to give up.
    pub(crate) fn finish_errands(&mut self, number: usize) -> Result<(), Violation> {
        let (now, time) = (self.now, self.time(number));
        let host = &mut self.hosts[number];
        host.errands.finish(time, &mut host.rnic);
        host.wake(now);
        self.poll(number)?;
        self.take_events(number)
    }
}
