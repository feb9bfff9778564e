use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use elver_rnic::Config;
use elver_verbs::{Gid, Time, VerbsError};

use crate::device::SimDevice;
use crate::faults::{Fault, FaultPlan};
use crate::network::Datagram;
use crate::seats::{NetState, Which};
use crate::trace::Trace;

/// A clock, and a network of hosts on it that loses, delays and damages packets. A clone is the
/// same network.
///
/// Whoever runs devices on it, in the order that the clock gives, does this until nothing is due:
/// - find the earliest of [`SimNet::next_arrival`], of each [`SimDevice::wake_at`] and of what the
///   programs on the devices wait for;
/// - [`SimNet::advance`] to it;
/// - drive what is due.
///
/// What happens is then a function of the seed and of the calls alone.
#[derive(Clone, Debug)]
pub struct SimNet {
    state: Rc<RefCell<NetState>>,
}

impl SimNet {
    /// A network of hosts at these addresses, with the faults that `plan` allows. Each direction
    /// between two hosts has rates of its own.
    pub fn new(addresses: Vec<IpAddr>, plan: &FaultPlan, seed: u64) -> SimNet {
        SimNet { state: Rc::new(RefCell::new(NetState::new(addresses, plan, seed))) }
    }

    /// Keeps the whole trace, not only its end.
    pub fn keep_whole_trace(&self) {
        self.state.borrow_mut().trace = Trace::new(true);
    }

    /// A new device at a host, with the host's address. One that stands there already is cut off,
    /// as in a crash: it hears nothing any more and nothing that it sends leaves.
    ///
    /// # Errors
    /// What the configuration has that no device can bear.
    pub fn device(&self, host: usize, config: Config) -> Result<SimDevice, VerbsError> {
        let mut state = self.state.borrow_mut();
        let config = Config { addresses: vec![state.network.address(host)], ..config };
        let (serial, seed) = state.sit(host);
        drop(state);
        SimDevice::new(Rc::clone(&self.state), host, serial, config, seed)
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.state.borrow().now
    }

    /// What a host's clock says: the virtual time, and by how much it has jumped.
    pub fn time_at(&self, host: usize) -> Time {
        self.state.borrow().time_at(host)
    }

    /// Hosts.
    pub fn hosts(&self) -> usize {
        self.state.borrow().seats.len()
    }

    /// The GID of a host.
    pub fn gid(&self, host: usize) -> Gid {
        Gid::from(self.state.borrow().network.address(host))
    }

    /// When the next packet arrives at some host.
    pub fn next_arrival(&self) -> Option<Time> {
        self.state.borrow().network.next().map(Time)
    }

    /// Moves the clock to `to`, and gives the packets that have arrived by then to their hosts. A
    /// moment that is past changes nothing.
    pub fn advance(&self, to: Time) {
        let mut state = self.state.borrow_mut();
        state.now = state.now.max(to);
        let now = state.now.0;
        while let Some(packet) = state.network.pop(now) {
            state.arrive(packet);
        }
    }

    /// Makes the way between two hosts longer than that between others, by so much each way, until this
    /// is called again. It is no fault, and stays when these end.
    pub fn set_distance(&self, a: usize, b: usize, one_way_ns: u64) {
        self.state.borrow_mut().network.set_distance(a, b, one_way_ns);
    }

    /// Loses everything from one host to another until a moment.
    pub fn partition(&self, from: usize, to: usize, until: Time) {
        self.state.borrow_mut().network.partition(from, to, until.0);
    }

    /// Loses what answers requests on its way from one host to another, or holds it back, until a
    /// moment: acknowledgements, results of atomics and responses to READs.
    pub fn withhold_answers(&self, from: usize, to: usize, until: Time, lost: bool) {
        self.state.borrow_mut().network.withhold_answers(from, to, until.0, lost);
    }

    /// Lets a host's engine stand still until a moment; its packets wait.
    pub fn stall(&self, host: usize, until: Time) {
        let mut state = self.state.borrow_mut();
        state.network.count(Fault::SlowEngine);
        state.network.disturb(host);
        let seat = &mut state.seats[host];
        seat.stalled_until = seat.stalled_until.max(until.0);
        seat.busy_until = seat.busy_until.max(until.0);
    }

    /// A host's clock goes forward alone, while packets wait for it.
    pub fn jump(&self, host: usize, by_ns: u64) {
        let mut state = self.state.borrow_mut();
        state.network.count(Fault::ClockJump);
        state.network.disturb(host);
        state.seats[host].ahead += by_ns;
    }

    /// All hosts' clocks go forward by the same, as if one machine that they all are on was suspended: what
    /// is under way arrives after it. Nothing between any two of them is disturbed by that.
    pub fn jump_all(&self, by_ns: u64) {
        let mut state = self.state.borrow_mut();
        state.network.count(Fault::ClockJump);
        for seat in &mut state.seats {
            seat.ahead += by_ns;
        }
    }

    /// Until when a host's engine stands still.
    pub fn stalled_until(&self, host: usize) -> Time {
        Time(self.state.borrow().seats[host].stalled_until)
    }

    /// A host loses its device: nobody stands at its address until the next [`SimNet::device`].
    pub fn crash(&self, host: usize) {
        let mut state = self.state.borrow_mut();
        state.network.count(Fault::Crash);
        state.network.disturb(host);
        state.clear(host);
    }

    /// Ends all faults.
    pub fn heal(&self) {
        let mut state = self.state.borrow_mut();
        state.network.heal();
        let now = state.now.0;
        for seat in &mut state.seats {
            seat.stalled_until = now;
            seat.busy_until = seat.busy_until.min(now);
        }
    }

    /// Whether anything between two hosts, in either direction, was ever lost, late or out of order.
    pub fn disturbed(&self, a: usize, b: usize) -> bool {
        self.state.borrow().network.disturbed(a, b)
    }

    /// Calls all that goes to a host and comes from it disturbed, as somebody on the way makes it.
    pub fn disturb(&self, host: usize) {
        self.state.borrow_mut().network.disturb(host);
    }

    /// Brings a datagram that no host sent to the host that it is for, at a moment. It is taken as it
    /// is: whoever makes it seals it, with IPv4's identification 0, or does not. It is no fault.
    pub fn inject(&self, at: Time, datagram: Datagram) {
        self.state.borrow_mut().network.inject(at.0, datagram);
    }

    /// Has [`SimNet::marked`] tell when datagrams of a kind arrive from now on.
    pub fn mark_arrivals(&self, which: Which) {
        self.state.borrow_mut().mark(which);
    }

    /// When datagrams of that kind arrived from one host at another, whose engine stood there: the 16 newest,
    /// oldest first.
    pub fn marked(&self, from: usize, to: usize) -> Vec<Time> {
        self.state.borrow().marked(from, to)
    }

    /// Has [`SimNet::take_heard`] and [`SimNet::take_strays`] tell what is sent from now on.
    pub fn overhear(&self) {
        self.state.borrow_mut().network.overhear();
    }

    /// Datagrams that hosts sent each other since the last call, at most the 256 newest, whether or
    /// not they arrive.
    pub fn take_heard(&self) -> Vec<Datagram> {
        self.state.borrow_mut().network.take_heard()
    }

    /// All datagrams that hosts sent to addresses where no host is, since the last call.
    pub fn take_strays(&self) -> Vec<Datagram> {
        self.state.borrow_mut().network.take_strays()
    }

    /// Faults so far.
    pub fn faults(&self) -> BTreeMap<Fault, u64> {
        let state = self.state.borrow();
        Fault::ALL.into_iter().zip(state.network.faults().iter().copied()).collect()
    }

    /// Packets that hosts have sent.
    pub fn packets(&self) -> u64 {
        self.state.borrow().network.sent()
    }

    /// Hash of everything that happened on the network: equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.state.borrow().trace.hash()
    }

    /// The last packets and faults, with their times, one line each.
    pub fn trace(&self) -> Vec<(Time, String)> {
        self.state.borrow().trace.timed_lines()
    }
}
