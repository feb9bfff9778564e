//! The network: packets on their way, in the order of their arrival, and what happens to them.
//!
//! The timing is that of the papers' hardware, as far as they tell it: KRCORE measures 2.15 us for
//! a READ of 8 bytes (USENIX ATC 2022, 5.2, figure 10a) over 100 Gbit/s (5, testbed), and a target
//! that serves 138 M of them a second (5.2, figure 10b).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use elver_rnic::{RxMeta, Transmit};
use elver_wire::{Flow, Headers, IpId, PACKET_MAX, PAYLOAD_MAX, UDP_PORT, icrc};

use crate::faults::{Fault, FaultPlan, Rates};
use crate::rng::Rng;
use crate::trace::{Event, Trace};

/// Time that a device takes for a packet: a second for 138 M of them.
pub(crate) const ENGINE_PACKET_NS: u64 = 7;
/// A READ of 8 bytes.
const READ_NS: u64 = 2_150;
/// Cable and switch, one way: what a READ takes beyond the two devices.
pub(crate) const ONE_WAY_NS: u64 = (READ_NS - 2 * ENGINE_PACKET_NS) / 2;
/// Bytes that 100 Gbit/s carry in 100 ns.
const BYTES_PER_100_NS: u64 = 1_250;
/// No packet is older than this when it arrives.
pub(crate) const LIFETIME_NS: u64 = 100_000;
/// How long a packet is held back that is reordered, at most.
const HOLD_NS: u64 = 20_000;
/// Packets that a replay chooses from.
const HISTORY: usize = 64;
/// Datagrams between hosts that are kept for who listens: the last ones.
const HEARD_MAX: usize = 256;
/// Longest datagram of random bytes.
const GARBAGE_BYTES: u64 = 96;
/// Hop limit of a datagram that no host sent.
const FORGED_HOP_LIMIT: u8 = 64;
/// A queue longer than this marks packets, in nanoseconds.
const ECN_THRESHOLD_NS: u64 = 10_000;
const ECN_MASK: u8 = 0b11;
const ECN_CAPABLE: u8 = 0b10;
const ECN_CE: u8 = 0b11;

/// A packet that is on its way to a host.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) to: usize,
    pub(crate) meta: RxMeta,
    pub(crate) bytes: Vec<u8>,
}

/// A datagram: where it says that it comes from and goes to, and its bytes from the BTH to the ICRC.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Source and destination.
    pub flow: Flow,
    /// IP traffic class, with the ECN bits.
    pub traffic_class: u8,
    /// The UDP payload.
    pub bytes: Vec<u8>,
}

impl Datagram {
    /// One of these headers and this payload, with a good ICRC.
    pub fn sealed(flow: Flow, headers: &Headers, payload: &[u8]) -> Datagram {
        // Fill counts among the headers, and may be as long as a payload.
        let mut bytes = vec![0; PACKET_MAX + PAYLOAD_MAX];
        let len = headers.write(&flow, 0, payload, &mut bytes);
        bytes.truncate(len);
        Datagram { flow, traffic_class: 0, bytes }
    }
}

#[derive(Debug)]
pub(crate) struct Network {
    addresses: Vec<IpAddr>,
    rates: Vec<Rates>,
    queue_ns: u64,
    /// Per sender: when its line is free.
    free_at: Vec<u64>,
    /// Per direction: how much longer its way is than that of others, in nanoseconds.
    distances: Vec<u64>,
    /// Per direction: until when everything is lost.
    partitioned_until: Vec<u64>,
    /// Per direction: until when answers are withheld, and whether they are lost and not late.
    withheld: Vec<(u64, bool)>,
    /// Per direction: whether anything was lost, late or out of order there.
    disturbed: Vec<bool>,
    arrivals: BinaryHeap<Reverse<(u64, u64, usize)>>,
    packets: Vec<Option<Packet>>,
    free: Vec<usize>,
    sequence: u64,
    /// Packets of late, for replays, with the times at which they were sent and arrive.
    history: VecDeque<(u64, u64, Packet)>,
    /// Copies that the network made, by the QPN that they are for.
    copies: BTreeMap<u32, u64>,
    /// Whether devices are told the IP id or have to find it.
    ids_known: bool,
    healed: bool,
    rng: Rng,
    faults: [u64; Fault::ALL.len()],
    sent: u64,
    /// What hosts sent each other of late, and to addresses where no host is; nothing if nobody
    /// listens.
    heard: Option<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    between_hosts: VecDeque<Datagram>,
    to_nobody: Vec<Datagram>,
}

/// Opcode, destination QPN and PSN of a packet; zeros where it is too short.
pub(crate) fn peek(bytes: &[u8]) -> (u8, u32, u32) {
    let wide = |at: usize| {
        bytes
            .get(at..at + 3)
            .map_or(0, |b| u32::from(b[0]) << 16 | u32::from(b[1]) << 8 | u32::from(b[2]))
    };
    (bytes.first().copied().unwrap_or(0), wide(5), wide(9))
}

/// Whether a packet answers requests, of whatever transport: the low five bits of an opcode say what it
/// does (IBTA vol. 1, 9.2.1, table 38).
fn is_answer(opcode: u8) -> bool {
    const RESPONSE_FIRST: u8 = 0x0d;
    const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    (RESPONSE_FIRST..=ATOMIC_ACKNOWLEDGE).contains(&(opcode & 0x1f))
}

impl Network {
    pub(crate) fn new(addresses: Vec<IpAddr>, plan: &FaultPlan, mut rng: Rng) -> Network {
        let hosts = addresses.len();
        let rates: Vec<Rates> = (0..hosts * hosts).map(|_| plan.direction(&mut rng)).collect();
        let damages = rates.iter().any(|rates| rates.corrupt > 0 || rates.truncate > 0);
        Network {
            queue_ns: plan.queue_ns,
            free_at: vec![0; hosts],
            distances: vec![0; hosts * hosts],
            partitioned_until: vec![0; hosts * hosts],
            withheld: vec![(0, false); hosts * hosts],
            disturbed: vec![false; hosts * hosts],
            arrivals: BinaryHeap::new(),
            packets: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            history: VecDeque::new(),
            copies: BTreeMap::new(),
            // A device that solves for the id checks 16 bits only: fine, unless bits flip.
            ids_known: damages || rng.percent(50),
            healed: false,
            rng,
            faults: [0; Fault::ALL.len()],
            sent: 0,
            heard: None,
            addresses,
            rates,
        }
    }

    pub(crate) fn address(&self, host: usize) -> IpAddr {
        self.addresses[host]
    }

    /// Faults so far, in the order of [`Fault::ALL`].
    pub(crate) fn faults(&self) -> &[u64; Fault::ALL.len()] {
        &self.faults
    }

    /// Packets that hosts sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn count(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// Whether anything between two hosts, in either direction, was lost, late or out of order.
    pub(crate) fn disturbed(&self, a: usize, b: usize) -> bool {
        self.disturbed[self.direction(a, b)] || self.disturbed[self.direction(b, a)]
    }

    /// Marks all directions from and to a host as disturbed.
    pub(crate) fn disturb(&mut self, host: usize) {
        for other in 0..self.addresses.len() {
            let (out, back) = (self.direction(host, other), self.direction(other, host));
            self.disturbed[out] = true;
            self.disturbed[back] = true;
        }
    }

    /// Copies that the network made of packets for a QPN.
    pub(crate) fn copies(&self, qpn: u32) -> u64 {
        self.copies.get(&qpn).copied().unwrap_or(0)
    }

    pub(crate) fn partition(&mut self, from: usize, to: usize, until: u64) {
        let direction = self.direction(from, to);
        self.partitioned_until[direction] = until;
        self.disturbed[direction] = true;
        self.count(Fault::Partition);
    }

    /// Makes the way between two hosts longer than that between others, by so much each way.
    pub(crate) fn set_distance(&mut self, a: usize, b: usize, one_way_ns: u64) {
        for direction in [self.direction(a, b), self.direction(b, a)] {
            self.distances[direction] = one_way_ns;
        }
    }

    pub(crate) fn withhold_answers(&mut self, from: usize, to: usize, until: u64, lost: bool) {
        let direction = self.direction(from, to);
        self.withheld[direction] = (until, lost);
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
        self.partitioned_until.fill(0);
        self.withheld.fill((0, false));
    }

    fn direction(&self, from: usize, to: usize) -> usize {
        from * self.addresses.len() + to
    }

    /// Takes a packet that a host sends. It need not be sealed yet.
    pub(crate) fn send(
        &mut self,
        now: u64,
        from: usize,
        transmit: &Transmit,
        mut bytes: Vec<u8>,
        trace: &mut Trace,
    ) {
        self.sent += 1;
        let ip_id = self.rng.next_u64() as u16;
        icrc::seal(&transmit.flow, ip_id, &mut bytes);
        let to = self.host_at(transmit.flow.dst.ip());
        if let Some(heard) = &mut self.heard {
            let Transmit { flow, traffic_class, .. } = *transmit;
            heard.add(to.is_some(), Datagram { flow, traffic_class, bytes: bytes.clone() });
        }
        let Some(to) = to else { return };
        let (opcode, qpn, psn) = peek(&bytes);
        let len = bytes.len();
        trace.add(now, Event::Sent { from, to, len, opcode, qpn, psn });

        let depart = self.free_at[from].max(now) + len as u64 * 100 / BYTES_PER_100_NS;
        let backlog = depart - now;
        if backlog > self.queue_ns && !self.healed {
            return self.disturb_by(now, Fault::QueueDrop, from, to, trace);
        }
        self.free_at[from] = depart;
        let direction = self.direction(from, to);
        let rates = self.rates[direction];
        let mut meta = RxMeta {
            flow: transmit.flow,
            traffic_class: transmit.traffic_class,
            hop_limit: transmit.hop_limit.saturating_sub(1),
            ip_id: if self.ids_known { IpId::Exact(ip_id) } else { IpId::Likely(0) },
        };
        let mut arrives = depart + ONE_WAY_NS + self.distances[direction];
        if !self.healed {
            if self.partitioned_until[direction] > now {
                return self.disturb_by(now, Fault::Partition, from, to, trace);
            }
            let (until, lost) = self.withheld[direction];
            if until > now && is_answer(opcode) {
                if lost {
                    return self.disturb_by(now, Fault::Loss, from, to, trace);
                }
                self.disturb_by(now, Fault::Reorder, from, to, trace);
                arrives = arrives.max(until.min(now + LIFETIME_NS));
            }
            if self.rng.chance(rates.loss) {
                return self.disturb_by(now, Fault::Loss, from, to, trace);
            }
            if meta.traffic_class & ECN_MASK == ECN_CAPABLE
                && (backlog > ECN_THRESHOLD_NS || self.rng.chance(rates.ecn_mark))
            {
                self.count(Fault::EcnMark);
                meta.traffic_class |= ECN_CE;
            }
            if rates.jitter_ns > 0 {
                self.disturb_by(now, Fault::Jitter, from, to, trace);
                arrives += self.rng.below(rates.jitter_ns);
            }
            if self.rng.chance(rates.reorder) {
                self.disturb_by(now, Fault::Reorder, from, to, trace);
                arrives += self.rng.between(1, HOLD_NS);
            }
        }
        let mut packet = Packet { to, meta, bytes };
        if !self.healed {
            self.copy(now, from, arrives, &packet, &rates, trace);
            self.damage(now, from, &mut packet, &rates, trace);
        }
        self.push(arrives, packet);
    }

    pub(crate) fn address_of(&self, host: usize) -> IpAddr {
        self.addresses[host]
    }

    pub(crate) fn host_at(&self, address: IpAddr) -> Option<usize> {
        self.addresses.iter().position(|host| *host == address)
    }

    /// Takes a datagram that no host sends: sealed if it is to be, and never lost.
    pub(crate) fn inject(&mut self, at: u64, datagram: Datagram) {
        let Datagram { flow, traffic_class, bytes } = datagram;
        let Some(to) = self.host_at(flow.dst.ip()) else { return };
        let meta =
            RxMeta { flow, traffic_class, hop_limit: FORGED_HOP_LIMIT, ip_id: IpId::Exact(0) };
        self.push(at, Packet { to, meta, bytes });
    }

    /// Keeps what is sent from now on.
    pub(crate) fn overhear(&mut self) {
        self.heard.get_or_insert_default();
    }

    /// What hosts sent each other since the last call, the newest of it.
    pub(crate) fn take_heard(&mut self) -> Vec<Datagram> {
        self.heard.as_mut().map_or_else(Vec::new, |heard| heard.between_hosts.drain(..).collect())
    }

    /// What hosts sent to where no host is.
    pub(crate) fn take_strays(&mut self) -> Vec<Datagram> {
        self.heard.as_mut().map_or_else(Vec::new, |heard| std::mem::take(&mut heard.to_nobody))
    }

    /// Makes the copies that duplication and replay make, and garbage.
    fn copy(
        &mut self,
        now: u64,
        from: usize,
        arrives: u64,
        packet: &Packet,
        rates: &Rates,
        trace: &mut Trace,
    ) {
        let to = packet.to;
        if self.rng.chance(rates.duplicate) {
            self.count(Fault::Duplicate);
            trace.add(now, Event::Fault { what: "duplicate", from, to });
            let again = arrives + self.rng.below(HOLD_NS);
            self.push_copy(again, packet.clone());
        }
        if rates.replay == 0 && rates.garbage == 0 {
            return;
        }
        while self.history.front().is_some_and(|(sent, ..)| now > sent + LIFETIME_NS) {
            self.history.pop_front();
        }
        if self.history.len() == HISTORY {
            let victim = self.rng.index(HISTORY);
            self.history.remove(victim);
        }
        self.history.push_back((now, arrives, packet.clone()));
        if self.rng.chance(rates.replay) {
            let chosen = self.rng.index(self.history.len());
            let (sent, arrived, old) = self.history[chosen].clone();
            // It comes again: before the first time would be out of order.
            let earliest = now.max(arrived);
            let at = self.rng.between(earliest, earliest.max(sent + LIFETIME_NS));
            self.count(Fault::Replay);
            trace.add(now, Event::Fault { what: "replay", from, to: old.to });
            self.push_copy(at, old);
        }
        if self.rng.chance(rates.garbage) {
            self.count(Fault::Garbage);
            trace.add(now, Event::Fault { what: "garbage", from, to });
            let len = self.rng.below(GARBAGE_BYTES) as usize;
            let bytes = (0..len).map(|_| self.rng.next_u64() as u8).collect();
            let flow = Flow {
                src: SocketAddr::new(self.addresses[from], UDP_PORT),
                dst: SocketAddr::new(self.addresses[to], UDP_PORT),
            };
            let garbage = Packet { to, meta: RxMeta { flow, ..packet.meta }, bytes };
            self.push(arrives, garbage);
        }
    }

    fn damage(
        &mut self,
        now: u64,
        from: usize,
        packet: &mut Packet,
        rates: &Rates,
        trace: &mut Trace,
    ) {
        let to = packet.to;
        if self.rng.chance(rates.corrupt) {
            self.disturb_by(now, Fault::Corrupt, from, to, trace);
            for _ in 0..self.rng.between(1, 3) {
                let bit = self.rng.index(packet.bytes.len() * 8);
                packet.bytes[bit / 8] ^= 1 << (bit % 8);
            }
        } else if self.rng.chance(rates.truncate) {
            self.disturb_by(now, Fault::Truncate, from, to, trace);
            let len = self.rng.index(packet.bytes.len());
            packet.bytes.truncate(len);
        }
    }

    /// Counts a fault that loses, delays or reorders, and remembers where.
    fn disturb_by(&mut self, now: u64, fault: Fault, from: usize, to: usize, trace: &mut Trace) {
        if fault != Fault::Partition {
            self.count(fault);
        }
        let direction = self.direction(from, to);
        self.disturbed[direction] = true;
        if fault != Fault::Jitter {
            trace.add(now, Event::Fault { what: fault.name(), from, to });
        }
    }

    fn push_copy(&mut self, at: u64, packet: Packet) {
        let (_, qpn, _) = peek(&packet.bytes);
        *self.copies.entry(qpn).or_default() += 1;
        self.push(at, packet);
    }

    fn push(&mut self, at: u64, packet: Packet) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.packets[slot] = Some(packet);
                slot
            }
            None => {
                self.packets.push(Some(packet));
                self.packets.len() - 1
            }
        };
        self.sequence += 1;
        self.arrivals.push(Reverse((at, self.sequence, slot)));
    }

    /// When the next packet arrives.
    pub(crate) fn next(&self) -> Option<u64> {
        self.arrivals.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the packet that arrives next, if that is not after `now`.
    pub(crate) fn pop(&mut self, now: u64) -> Option<Packet> {
        if self.next()? > now {
            return None;
        }
        let Reverse((_, _, slot)) = self.arrivals.pop()?;
        self.free.push(slot);
        self.packets[slot].take()
    }
}

impl Heard {
    fn add(&mut self, to_host: bool, datagram: Datagram) {
        if !to_host {
            return self.to_nobody.push(datagram);
        }
        if self.between_hosts.len() == HEARD_MAX {
            self.between_hosts.pop_front();
        }
        self.between_hosts.push_back(datagram);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(plan: &FaultPlan) -> Network {
        let addresses = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        Network::new(addresses, plan, Rng::new(1))
    }

    fn send(network: &mut Network, now: u64, mark: u8) {
        let flow =
            Flow { src: "10.0.0.1:4791".parse().unwrap(), dst: "10.0.0.2:4791".parse().unwrap() };
        let bytes = vec![mark; 100];
        let transmit =
            Transmit { len: bytes.len(), flow, traffic_class: 2, hop_limit: 64, ends_piece: false };
        network.send(now, 0, &transmit, bytes, &mut Trace::new(false));
    }

    #[test]
    fn a_longer_way_takes_longer() {
        let mut network = network(&FaultPlan::default());
        send(&mut network, 0, 1);
        let near = network.next().unwrap();
        assert!(network.pop(near).is_some());
        network.set_distance(1, 0, 70_000);
        send(&mut network, 1_000_000, 2);
        assert_eq!(network.next(), Some(1_000_000 + near + 70_000));
    }

    #[test]
    fn a_network_without_faults_keeps_order_and_time() {
        let mut network = network(&FaultPlan::default());
        for mark in 0..10 {
            send(&mut network, 0, mark);
        }
        let on_the_line = 100 * 100 / BYTES_PER_100_NS;
        assert_eq!(network.next(), Some(on_the_line + ONE_WAY_NS));
        for mark in 0..10 {
            let at = network.next().unwrap();
            assert_eq!(at, (u64::from(mark) + 1) * on_the_line + ONE_WAY_NS);
            assert!(network.pop(at - 1).is_none());
            assert_eq!(network.pop(at).unwrap().bytes[0], mark);
        }
        assert!(!network.disturbed(0, 1));
    }

    #[test]
    fn a_partition_lasts_until_it_heals() {
        let mut network = network(&FaultPlan::default());
        network.partition(0, 1, 1_000_000);
        send(&mut network, 0, 1);
        assert_eq!(network.next(), None);
        network.heal();
        send(&mut network, 10, 2);
        assert!(network.next().is_some());
        assert!(network.disturbed(1, 0));
    }

    #[test]
    fn answers_alone_are_withheld() {
        let mut network = network(&FaultPlan::default());
        network.withhold_answers(0, 1, 20_000, false);
        send(&mut network, 0, 0x11);
        send(&mut network, 0, 0x04);
        assert_eq!(network.pop(20_000).unwrap().bytes[0], 0x04, "it overtakes the other");
        assert_eq!(network.pop(20_000).unwrap().bytes[0], 0x11);
        network.withhold_answers(0, 1, 60_000, true);
        send(&mut network, 30_000, 0xd1);
        send(&mut network, 30_000, 0xc4);
        send(&mut network, 60_000, 0xd1);
        assert_eq!(network.pop(50_000).unwrap().bytes[0], 0xc4);
        assert_eq!(network.pop(90_000).unwrap().bytes[0], 0xd1);
        assert!(network.next().is_none() && network.disturbed(0, 1));
    }

    #[test]
    fn nothing_outlives_a_packets_lifetime() {
        let plans = (0..100).map(|seed| FaultPlan::generate(&mut Rng::new(seed)));
        let replays = |plan: &FaultPlan| plan.direction(&mut Rng::new(1)).replay > 0;
        let plan = plans.into_iter().find(replays).unwrap();
        let mut network = network(&plan);
        for at in 0..2_000 {
            send(&mut network, at * 100, 0);
        }
        let last = std::iter::from_fn(|| {
            let at = network.next()?;
            network.pop(at).map(|_| at)
        });
        let backlog = 2_000 * 100 * 100 / BYTES_PER_100_NS;
        assert!(last.max().unwrap() <= 2_000 * 100 + backlog + LIFETIME_NS);
    }
}
