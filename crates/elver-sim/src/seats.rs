//! What the clock, the network and the devices on it share.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use elver_verbs::Time;

use crate::faults::{Fault, FaultPlan};
use crate::host::INBOX_PACKETS;
use crate::network::{Network, Packet};
use crate::rng::Rng;
use crate::trace::Trace;

/// Arrivals that are kept of each way: the newest.
const MARKS_MAX: usize = 16;
/// Virtual addresses of one host's memory begin this far behind those of the one before.
const HOST_SPAN: u64 = 1 << 40;

#[derive(Debug)]
pub(crate) struct NetState {
    pub(crate) now: Time,
    pub(crate) network: Network,
    pub(crate) seats: Vec<Seat>,
    pub(crate) trace: Trace,
    making: Rng,
    marks: Option<Marks>,
}

/// Tells something of a datagram by its bytes, from the BTH to the ICRC.
pub type Which = fn(&[u8]) -> bool;

/// When datagrams of a kind arrived.
#[derive(Debug)]
struct Marks {
    which: Which,
    /// By the hosts that they say they are from, and that they are for: the newest, oldest first.
    arrivals: BTreeMap<(IpAddr, usize), VecDeque<Time>>,
}

/// A host's place on the network, where one device after the other may stand.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    pub(crate) inbox: VecDeque<Packet>,
    /// Its engine works, or stands still, until then.
    pub(crate) busy_until: u64,
    /// Its engine stands still until then.
    pub(crate) stalled_until: u64,
    /// The device that stands here; 0 for none.
    pub(crate) device: u64,
    /// By how much its clock is ahead of the network's.
    pub(crate) ahead: u64,
    /// Packets that its inbox had no room for, and that the device did not count yet.
    pub(crate) dropped: u64,
    /// Devices so far.
    devices: u64,
    /// Bytes of memory that its devices gave out.
    allocated: u64,
}

impl NetState {
    pub(crate) fn new(addresses: Vec<IpAddr>, plan: &FaultPlan, seed: u64) -> NetState {
        let root = Rng::new(seed);
        NetState {
            now: Time::ZERO,
            seats: addresses.iter().map(|_| Seat::default()).collect(),
            network: Network::new(addresses, plan, root.split("network")),
            trace: Trace::new(false),
            making: root.split("devices"),
            marks: None,
        }
    }

    /// What a host's clock says.
    pub(crate) fn time_at(&self, host: usize) -> Time {
        self.now.saturating_add_ns(self.seats[host].ahead)
    }

    /// Gives a host's place to a new device: which of the host's devices it is, and its seed.
    pub(crate) fn sit(&mut self, host: usize) -> (u64, u64) {
        self.clear(host);
        let seed = self.making.next_u64();
        let seat = &mut self.seats[host];
        seat.devices += 1;
        seat.device = seat.devices;
        (seat.device, seed)
    }

    /// Keeps in mind when datagrams of a kind arrive from now on.
    pub(crate) fn mark(&mut self, which: Which) {
        self.marks = Some(Marks { which, arrivals: BTreeMap::new() });
    }

    /// When they did, from one host at another, oldest first.
    pub(crate) fn marked(&self, from: usize, to: usize) -> Vec<Time> {
        let from = self.network.address_of(from);
        let arrivals = self.marks.as_ref().and_then(|marks| marks.arrivals.get(&(from, to)));
        arrivals.map_or(Vec::new(), |all| all.iter().copied().collect())
    }

    pub(crate) fn arrive(&mut self, packet: Packet) {
        let seat = &mut self.seats[packet.to];
        if seat.device == 0 {
            return;
        }
        if seat.inbox.len() < INBOX_PACKETS {
            if let Some(marks) = &mut self.marks
                && (marks.which)(&packet.bytes)
            {
                let way = (packet.meta.flow.src.ip(), packet.to);
                let arrivals = marks.arrivals.entry(way).or_default();
                if arrivals.len() == MARKS_MAX {
                    arrivals.pop_front();
                }
                arrivals.push_back(self.now);
            }
            seat.inbox.push_back(packet);
            return;
        }
        seat.dropped += 1;
        self.network.disturb(packet.to);
        self.network.count(Fault::QueueDrop);
    }

    /// Takes the device from a host's place, and what waits for it.
    pub(crate) fn clear(&mut self, host: usize) {
        let seat = &mut self.seats[host];
        seat.device = 0;
        seat.inbox.clear();
        seat.busy_until = 0;
        seat.stalled_until = 0;
        seat.dropped = 0;
    }

    /// The virtual address of `len` new bytes of a host: never the same one twice.
    pub(crate) fn allocate(&mut self, host: usize, len: u64) -> u64 {
        const PAGE: u64 = 4_096;
        let seat = &mut self.seats[host];
        let base = (host as u64 + 1) * HOST_SPAN + seat.allocated;
        // A page stays free behind it, so that what runs over its end hits nothing.
        seat.allocated += len.next_multiple_of(PAGE) + PAGE;
        base
    }
}
