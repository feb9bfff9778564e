//! The hosts and the network under one clock.

use elver_rnic::{DropReason, MAX_PACKET, Time};
use elver_verbs::{AsyncEvent, Gid, QpState, QpType, Srq, VerbsError, Wc, WcStatus};

use crate::canary::Canary;
use crate::faults::Fault;
use crate::host::{Armed, Host, INBOX_PACKETS, Objects};
use crate::model::{
    Arena, Endpoint, EndpointId, Model, Op, Phase, Planted, QueueId, RecvQueue, View, Violation,
};
use crate::network::{ENGINE_PACKET_NS, Network, peek};
use crate::options::Options;
use crate::plan::Plan;
use crate::planting::Planter;
use crate::rng::Rng;
use crate::trace::{Event, Trace, completed};

/// Packets that a device may send at one moment: more means that it never stops.
const BURST_MAX: u64 = 100_000;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) plan: Plan,
    pub(crate) hosts: Vec<Host>,
    pub(crate) network: Network,
    pub(crate) model: Model,
    pub(crate) trace: Trace,
    pub(crate) planter: Planter<Canary>,
    pub(crate) gids: Vec<Gid>,
    /// RC and UC connections.
    pub(crate) connections: Vec<(EndpointId, EndpointId)>,
    pub(crate) uds: Vec<EndpointId>,
    pub(crate) dcis: Vec<EndpointId>,
    pub(crate) dcts: Vec<EndpointId>,
    /// Randomness of what the harness makes, posts, injects and polls.
    pub(crate) making: Rng,
    pub(crate) posting: Rng,
    pub(crate) meddling: Rng,
    pub(crate) polling: Rng,
    /// Faults are over.
    pub(crate) healed: bool,
    buffer: Vec<u8>,
}

/// A call that the verbs allow was refused.
pub(crate) fn refused(call: &'static str) -> impl Fn(VerbsError) -> Violation {
    move |error| Violation::new(format!("{call} was refused: {error}"))
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options) -> Result<World, Violation> {
        let root = Rng::new(seed);
        let plan = Plan::generate(options, &mut root.split("plan"));
        let addresses: Vec<_> = (0..plan.hosts).map(|host| plan.address(host)).collect();
        let gids = addresses.iter().map(|address| Gid::from(*address)).collect();
        let mut world = World {
            now: 0,
            network: Network::new(addresses, &plan.faults, root.split("network")),
            hosts: Vec::new(),
            model: Model {
                crowded: plan.crowded,
                late_memory: plan.late_memory_percent > 0,
                ..Model::default()
            },
            trace: Trace::new(options.trace),
            planter: Planter::new(options.canary, root.split("canary")),
            gids,
            connections: Vec::new(),
            uds: Vec::new(),
            dcis: Vec::new(),
            dcts: Vec::new(),
            making: root.split("making"),
            posting: root.split("posting"),
            meddling: root.split("meddling"),
            polling: root.split("polling"),
            healed: false,
            buffer: vec![0; MAX_PACKET],
            plan,
        };
        for number in 0..world.plan.hosts {
            let host = world.make_host(number)?;
            world.hosts.push(host);
        }
        world.make_endpoints()?;
        Ok(world)
    }

    /// The time by a host's clock.
    pub(crate) fn time(&self, host: usize) -> Time {
        Time(self.now + self.hosts[host].ahead)
    }

    /// A host with a new device and new memory.
    pub(crate) fn make_host(&mut self, number: usize) -> Result<Host, Violation> {
        let config = self.plan.config(number);
        let (seed, cqe) = (self.making.next_u64(), self.plan.cq_entries);
        let objects = Objects::make(&config, &self.gids, cqe, seed)
            .map_err(refused("making a device and its first objects"))?;
        let arena = self.model.arenas.len();
        let late = self.plan.late_memory_percent;
        self.model.arenas.push(Arena::new(arena, number, objects.pd, objects.foreign, late));
        Ok(Host::new(config, objects, cqe, arena))
    }

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

    fn arrive(&mut self, packet: crate::network::Packet) {
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

    /// Polls a host's CQ until it is empty.
    pub(crate) fn poll(&mut self, number: usize) -> Result<(), Violation> {
        let (mut count, mut solicited) = (0, false);
        let mut polled = 0;
        loop {
            let mut wcs = vec![Wc::default(); self.polling.between(1, 16) as usize];
            let host = &mut self.hosts[number];
            let taken = host.rnic.poll_cq(host.cq, &mut wcs).map_err(refused("poll_cq"))?;
            let full = taken == wcs.len();
            polled += taken as u32;
            host.polled_most = host.polled_most.max(polled);
            wcs.truncate(taken);
            self.planter.completions(&mut wcs);
            for wc in wcs {
                self.trace.add(self.now, completed(number, &wc));
                let view = View { network: &self.network, rnic: &self.hosts[number].rnic };
                self.model.complete(number, &wc, &view)?;
                count += 1;
                solicited |= wc.status != WcStatus::Success || self.model.is_solicited(&wc);
                if wc.status != WcStatus::Success {
                    self.note_failure(number, &wc)?;
                }
            }
            if !full {
                return self.check_notification(number, count, solicited);
            }
        }
    }

    /// A completion event must have come if it was asked for and there was reason.
    fn check_notification(
        &mut self,
        number: usize,
        count: usize,
        solicited: bool,
    ) -> Result<(), Violation> {
        let host = &mut self.hosts[number];
        let came = host.rnic.poll_cq_event() == Some(host.cq);
        let due = match host.armed {
            Armed::No => false,
            Armed::Any => count > 0,
            Armed::Solicited => solicited,
        };
        if came == due {
            if came {
                host.armed = Armed::No;
            }
            return Ok(());
        }
        let (asked, verb) = (host.armed, if came { "came" } else { "did not come" });
        Err(Violation::new(format!(
            "host {number}: a completion event {verb}, with {asked:?} asked for and {count} \
             completions, solicited: {solicited}"
        )))
    }

    /// Asks for a completion event, on a CQ that is empty.
    pub(crate) fn arm(&mut self, number: usize, armed: Armed) -> Result<(), Violation> {
        self.poll(number)?;
        let host = &mut self.hosts[number];
        if host.armed != Armed::No {
            return Ok(());
        }
        host.armed = armed;
        host.rnic
            .req_notify_cq(host.cq, armed == Armed::Solicited)
            .map_err(refused("req_notify_cq"))
    }

    /// A completion said that something failed: its QP may be down.
    fn note_failure(&mut self, number: usize, wc: &Wc) -> Result<(), Violation> {
        let Some(&id) = self.model.by_qpn.get(&(number, wc.qp_num)) else { return Ok(()) };
        let state = self.state(id)?;
        let endpoint = &mut self.model.endpoints[id];
        if state == QpState::Err && endpoint.phase.is_up() {
            endpoint.take_down(self.now);
        }
        Ok(())
    }

    /// The state that the device says an endpoint is in.
    pub(crate) fn state(&self, id: EndpointId) -> Result<QpState, Violation> {
        let endpoint = &self.model.endpoints[id];
        let rnic = &self.hosts[endpoint.host].rnic;
        let (attr, _) = rnic.query_qp(endpoint.qp).map_err(refused("query_qp"))?;
        Ok(attr.qp_state)
    }

    /// Takes a host's asynchronous events; each must have a cause.
    pub(crate) fn take_events(&mut self, number: usize) -> Result<(), Violation> {
        while let Some(event) = self.hosts[number].rnic.poll_async_event() {
            self.trace.add(self.now, Event::Async { host: number, event });
            let explained = match event {
                AsyncEvent::SqDrained(qp) => self.drained(number, qp.0)?,
                AsyncEvent::QpReqErr(qp) | AsyncEvent::QpAccessErr(qp) => {
                    self.peer_was_bad(number, qp.0)?
                }
                AsyncEvent::QpLastWqeReached(qp) => match self.find(number, qp.0) {
                    Some(id) => self.state(id)? == QpState::Err,
                    None => false,
                },
                AsyncEvent::DctAccessErr(qp) => {
                    let by_key = Some(Planted::AccessKey);
                    self.plan.crowded
                        || self.model.ops.iter().any(|op| op.planted == by_key)
                        || self.is_namesake(number, qp.0)
                }
                AsyncEvent::SrqLimitReached(srq) => self.limit_reached(number, srq),
                AsyncEvent::CommEst(qp) => self.established(number, qp.0)?,
                AsyncEvent::CqErr(cq) => self.overflowed(number, cq)?,
                AsyncEvent::QpFatal(qp) => self.stopped_by_cq(number, qp.0)?,
                AsyncEvent::SrqErr(_) => false,
            };
            if !explained {
                return Err(Violation::new(format!(
                    "host {number}: event {event:?} without a cause"
                )));
            }
        }
        Ok(())
    }

    /// Whether a QP has by chance the number of one that went: what is sent to that one reaches it.
    fn is_namesake(&self, host: usize, qpn: u32) -> bool {
        let named = |endpoint: &&Endpoint| endpoint.host == host && endpoint.qpn == qpn;
        self.model.endpoints.iter().filter(named).count() > 1
    }

    /// An SRQ says that it has few receives left. False if nobody asked.
    fn limit_reached(&mut self, host: usize, srq: Srq) -> bool {
        let named =
            |queue: &&mut RecvQueue| queue.host == host && queue.srq == Some(srq) && !queue.gone;
        let Some(queue) = self.model.queues.iter_mut().find(named) else { return false };
        std::mem::take(&mut queue.limit) > 0
    }

    /// Asks an SRQ to tell when it has few receives left, if it has more now. It must be one of
    /// which no message holds a receive that is not complete: then the model knows how many are left.
    pub(crate) fn arm_limit(&mut self) -> Result<(), Violation> {
        for host in 0..self.hosts.len() {
            self.poll(host)?;
        }
        let model = &self.model;
        let unsure = |id: QueueId| {
            let aimed = model.ops.iter().filter(|op| model.endpoints[op.dest].queue == Some(id));
            let whole = |op: &Op| op.succeeded() && op.planted.is_none();
            model.endpoints[model.queues[id].endpoint].qp_type == QpType::Uc
                || aimed.into_iter().any(|op| op.takes_receive() && !whole(op))
        };
        let fits = |id: &QueueId| {
            let queue = &model.queues[*id];
            let armable = queue.srq.is_some() && !queue.gone && queue.limit == 0;
            armable && !queue.outstanding.is_empty() && !unsure(*id)
        };
        let Some(id) = (0..model.queues.len()).find(fits) else { return Ok(()) };
        let queue = &mut self.model.queues[id];
        let Some(srq) = queue.srq else { return Ok(()) };
        queue.limit = self.polling.between(1, queue.outstanding.len() as u64) as u32;
        let rnic = &mut self.hosts[queue.host].rnic;
        rnic.modify_srq(srq, queue.limit).map_err(refused("modify_srq"))
    }

    /// The endpoint of a QP handle.
    pub(crate) fn find(&self, host: usize, qp: u32) -> Option<EndpointId> {
        let ours = |id: &&EndpointId| self.model.endpoints[**id].qp.0 == qp;
        let mut here = self.model.by_qpn.range((host, 0)..(host + 1, 0)).map(|(_, id)| id);
        here.find(ours).copied()
    }

    /// A responder refused a request: some bad WR was on its way to it.
    fn peer_was_bad(&mut self, host: usize, qp: u32) -> Result<bool, Violation> {
        let Some(id) = self.find(host, qp) else { return Ok(false) };
        if self.model.endpoints[id].qp_type == QpType::Dct {
            let bad = |op: &Op| op.planted.is_some() || self.model.was_bereft(op);
            return Ok(self.model.ops.iter().any(|op| op.dest == id && bad(op)));
        }
        let state = self.state(id)?;
        let endpoint = &mut self.model.endpoints[id];
        if state == QpState::Err && endpoint.phase != Phase::Down {
            endpoint.take_down(self.now);
        }
        Ok(endpoint.may_fail)
    }
}
