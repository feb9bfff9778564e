//! A run: a safety phase, in which anything may fail, and a liveness phase, in which everything
//! that is outstanding must end within the bound that its retries and timers give.

use std::collections::{BTreeMap, BTreeSet};

use elver_verbs::{
    Payload, PostError, QpState, QpType, RemoteAddr, SendFlags, SendOp, SendOpcode, SendWr,
};
use elver_wire::{RnrTimer, Timeout};

use crate::faults::Fault;
use crate::forge::Forged;
use crate::host::{Armed, Host};
use crate::model::{Arena, EndpointId, Lane, LaneId, Phase, RecvQueue, Room, State, Violation};
use crate::network::ONE_WAY_NS;
use crate::options::{Failure, OpCount, Options, Report, Transport};
use crate::plan::CROWDED_IDLE_NS;
use crate::setup::{PAUSE_NS, QUIET_NS};
use crate::trace::Event;
use crate::world::{World, refused};

/// WRs posted by one call, at most.
const BATCH_MAX: u64 = 5;
/// A partition lasts no longer than this.
const PARTITION_NS: u64 = 3_000_000;
/// How many of the harness's actions in a hundred take memory from under a region, where a run has that.
const LOSS_PERCENT: u32 = 15;
/// A clock jumps no further than this.
const JUMP_NS: u64 = 600_000_000_000;
/// How often the harness looks after queues while it waits for the end.
const STEP_NS: u64 = 200_000;
/// What a round trip may take beyond the time on the cable, in round trips: queueing behind all
/// that a run has in flight.
const ROUND_TRIPS: u64 = 200;

/// Runs the simulation of a seed. The same seed and options always do the same.
///
/// # Errors
/// The rule that was broken, with the events that led to it. A run with a [`crate::Canary`] is
/// good if it fails.
///
/// # Panics
/// If `options.transports` is empty.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    assert!(!options.transports.is_empty(), "a run needs at least one transport");
    let fail = |virtual_ns, violation: Violation, trace, canary_strikes| {
        Box::new(Failure { seed, virtual_ns, violation: violation.0, trace, canary_strikes })
    };
    // What only a device itself can have brought about ends the run, also in a build that goes on.
    elver_verbs::bug::stop_at_bugs();
    let mut world = World::new(seed, options).map_err(|what| fail(0, what, Vec::new(), 0))?;
    match world.play() {
        Ok(recovery_ns) => Ok(world.report(seed, recovery_ns)),
        Err(what) => Err(fail(world.now, what, world.trace.lines(), world.planter.struck())),
    }
}

impl World {
    /// Both phases, and the last check. Returns how long the liveness phase took.
    fn play(&mut self) -> Result<u64, Violation> {
        self.make_endpoints()?;
        self.trace.add(self.now, Event::Phase("safety"));
        for _ in 0..self.plan.actions {
            let gap = self.posting.between(1, self.plan.gap_ns);
            self.run_until(self.now + gap)?;
            self.step()?;
        }
        self.trace.add(self.now, Event::Phase("liveness"));
        self.heal()?;
        let began = self.now;
        let mut deadline = began + self.patience();
        while self.model.outstanding > 0 {
            self.forge()?;
            self.replace_failed_cqs()?;
            self.look_after()?;
            let soon = self.next_event().unwrap_or(deadline).max(self.now) + STEP_NS;
            self.run_until(soon.min(deadline))?;
            for host in 0..self.hosts.len() {
                self.poll(host)?;
            }
            if self.now >= deadline && self.model.outstanding > 0 {
                if !self.stop_endless()? {
                    return Err(self.stuck(deadline - began));
                }
                deadline = self.now + self.patience();
            }
        }
        let recovery_ns = self.now - began;
        self.trace.add(self.now, Event::Phase("quiet"));
        // An answer may still wait for memory, though nobody waits for the answer.
        self.run_until(self.now + self.late_ns() + QUIET_NS)?;
        for host in 0..self.hosts.len() {
            self.poll(host)?;
            self.take_events(host)?;
        }
        self.check_rest()?;
        self.model.check_end(&self.network)?;
        self.check_counters()?;
        Ok(recovery_ns)
    }

    /// Does one thing that a program, an operator or fate does.
    fn step(&mut self) -> Result<(), Violation> {
        self.forge()?;
        self.lose_memory();
        self.replace_failed_cqs()?;
        let faults = self.plan.faults;
        let hosts = self.plan.hosts;
        let any = self.meddling.index(hosts);
        if self.meddling.percent(faults.partition_percent) {
            let to = self.meddling.index(hosts);
            let until = self.now + self.meddling.between(1, PARTITION_NS);
            self.network.partition(any, to, until);
            self.trace.add(self.now, Event::Fault { what: "partition", from: any, to });
            if self.meddling.percent(50) {
                self.network.partition(to, any, until);
            }
            return Ok(());
        }
        if self.meddling.percent(faults.slow_percent) {
            let until = self.now + self.meddling.between(1, PAUSE_NS);
            self.network.count(Fault::SlowEngine);
            self.network.disturb(any);
            self.trace.add(self.now, Event::Fault { what: "slow engine", from: any, to: any });
            let host = &mut self.hosts[any];
            host.busy_until = host.busy_until.max(until);
            host.wake_at = host.wake_at.map(|wake| wake.max(until));
            return Ok(());
        }
        if self.meddling.percent(faults.jump_percent) {
            self.jump(any);
            return Ok(());
        }
        if self.meddling.percent(faults.crash_percent) {
            return self.crash(any);
        }
        if self.plan.meddles && self.meddling.percent(8) {
            return self.meddle();
        }
        match self.posting.below(100) {
            0..12 => self.bring_back(),
            12..20 => self.post_late(),
            20..24 => {
                let armed = self.posting.pick(&[Armed::Any, Armed::Solicited]);
                self.arm(any, armed)
            }
            24..27 => self.post_refused(),
            27..29 => self.arm_limit(),
            29..34 => match self.choose_lane() {
                Some(lane) => self.post_relay(lane),
                None => Ok(()),
            },
            34..41 if self.plan.windows => self.bind(),
            _ => {
                let Some(lane) = self.choose_lane() else { return Ok(()) };
                let count = self.posting.between(1, BATCH_MAX);
                self.post(lane, count)
            }
        }
    }

    /// A QP that can post: one in RTS or SQD, or now and then one in ERR, which must flush.
    fn choose_lane(&mut self) -> Option<LaneId> {
        let in_error = self.posting.percent(10);
        let fits =
            |lane: &LaneId| match self.model.endpoints[self.model.lanes[*lane].endpoint].phase {
                Phase::Up | Phase::Draining | Phase::Drained => true,
                Phase::Down => in_error,
                Phase::Gone => false,
            };
        let lanes: Vec<LaneId> = (0..self.model.lanes.len()).filter(fits).collect();
        if lanes.is_empty() {
            return None;
        }
        let lane = self.posting.pick(&lanes);
        let endpoint = self.model.lanes[lane].endpoint;
        let state = self.state(endpoint).ok()?;
        let takes_sends = [QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
        takes_sends.contains(&state).then_some(lane)
    }

    /// Stops, resets or drains some QP.
    fn meddle(&mut self) -> Result<(), Violation> {
        if !self.dcts.is_empty() && self.meddling.percent(15) {
            let index = self.meddling.index(self.dcts.len());
            return self.replace_dct(index);
        }
        if self.meddling.percent(30) {
            return self.take_region();
        }
        let up = |id: &EndpointId| {
            let endpoint = &self.model.endpoints[*id];
            endpoint.phase == Phase::Up && endpoint.qp_type != QpType::Dct
        };
        let candidates: Vec<EndpointId> = (0..self.model.endpoints.len()).filter(up).collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let id = self.meddling.pick(&candidates);
        let state = self.state(id)?;
        match self.meddling.below(3) {
            0 => self.stop(id),
            1 => self.reset(id),
            _ if self.model.endpoints[id].qp_type != QpType::Dci && state == QpState::Rts => {
                self.drain(id)
            }
            _ => Ok(()),
        }
    }

    /// Brings back what failed, where that is possible now.
    fn bring_back(&mut self) -> Result<(), Violation> {
        for index in 0..self.connections.len() {
            self.repair(index)?;
        }
        for id in [self.uds.clone(), self.dcis.clone()].concat() {
            self.revive(id)?;
        }
        self.resume_drained()
    }

    /// Posts receives to queues that get them late.
    fn post_late(&mut self) -> Result<(), Violation> {
        for queue in 0..self.model.queues.len() {
            let count = self.posting.between(1, BATCH_MAX);
            if self.model.queues[queue].late {
                self.supply(queue, count)?;
            }
        }
        Ok(())
    }

    /// Posts up to `count` receives, if the queue can take them.
    fn supply(&mut self, queue: usize, count: u64) -> Result<(), Violation> {
        let state = &self.model.queues[queue];
        let owner = &self.model.endpoints[state.endpoint];
        let served = state.srq.is_some() || owner.phase.is_up();
        if state.gone || !served || owner.queue != Some(queue) {
            return Ok(());
        }
        let room = u64::from(state.max_wr) - state.outstanding.len() as u64;
        self.post_receives(queue, count.min(room))
    }

    /// Binds or invalidates a window.
    fn bind(&mut self) -> Result<(), Violation> {
        let fits = |lane: &LaneId| {
            let endpoint = &self.model.endpoints[self.model.lanes[*lane].endpoint];
            endpoint.phase == Phase::Up
                && endpoint.listens_from.is_none()
                && endpoint.qp_type.is_connected()
        };
        let lanes: Vec<LaneId> = (0..self.model.lanes.len()).filter(fits).collect();
        if lanes.is_empty() {
            return Ok(());
        }
        let lane = self.posting.pick(&lanes);
        if self.model.lanes[lane].failed {
            return Ok(());
        }
        self.post_window(lane)
    }

    /// A host's clock goes forward by minutes, as after a suspend, while packets wait for it.
    fn jump(&mut self, number: usize) {
        self.network.count(Fault::ClockJump);
        self.network.disturb(number);
        self.trace.add(self.now, Event::Fault { what: "clock jump", from: number, to: number });
        let (now, by) = (self.now, self.meddling.between(1, JUMP_NS));
        let host = &mut self.hosts[number];
        host.ahead += by;
        host.looked_at = now;
        host.wake(now);
    }

    /// Posts WRs that must be refused at once and change nothing.
    fn post_refused(&mut self) -> Result<(), Violation> {
        let Some(lane) = self.choose_lane() else { return Ok(()) };
        let id = self.model.lanes[lane].endpoint;
        let endpoint = &self.model.endpoints[id];
        let (qp_type, qp, number) = (endpoint.qp_type, endpoint.qp, endpoint.host);
        let nowhere = RemoteAddr { addr: 0, rkey: 0 };
        let (op, payload): (SendOp, &[u8]) = match self.posting.below(3) {
            0 => (SendOp::Read(nowhere), &[0]),
            1 => (SendOp::FetchAdd { remote: nowhere, add: 1 }, &[]),
            _ => (SendOp::Write(nowhere), &[0; 300]),
        };
        let wr = SendWr {
            wr_id: u64::MAX,
            op,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(payload),
            dest: None,
        };
        let time = self.time(number);
        let refused = self.hosts[number].rnic.post_send(time, qp, &[wr]);
        let right = matches!(
            refused,
            Err((
                0,
                PostError::Opcode { .. }
                    | PostError::InlineTooLong { .. }
                    | PostError::AtomicLength { .. }
            ))
        );
        if right {
            return Ok(());
        }
        Err(Violation::new(format!(
            "post_send on {qp_type} with a bad {:?} gave {refused:?}",
            op.opcode()
        )))
    }

    /// Ends all faults and gives every queue the receives that it is owed.
    fn heal(&mut self) -> Result<(), Violation> {
        self.healed = true;
        self.network.heal();
        for host in 0..self.hosts.len() {
            self.poll(host)?;
            let now = self.now;
            self.hosts[host].wake(now);
        }
        self.resume_drained()?;
        self.look_after()
    }

    /// Supplies queues, and ends lanes whose last WR is unsignalled.
    fn look_after(&mut self) -> Result<(), Violation> {
        for lane in 0..self.model.lanes.len() {
            if self.may_end(lane) {
                self.post_end(lane)?;
            }
        }
        for queue in 0..self.model.queues.len() {
            let owed =
                self.model.queues[queue].aimed.saturating_sub(self.model.queues[queue].posted);
            if owed > 0 {
                self.supply(queue, owed)?;
            }
        }
        Ok(())
    }

    fn may_end(&self, lane: LaneId) -> bool {
        let endpoint = &self.model.endpoints[self.model.lanes[lane].endpoint];
        endpoint.phase != Phase::Gone && !self.model.lanes[lane].outstanding.is_empty()
    }

    /// How long the outstanding WRs may take once faults are over: the retries of the slowest QP,
    /// and for each message a wait for its receive and some round trips.
    fn patience(&self) -> u64 {
        let open = self.model.endpoints.iter().filter(|endpoint| endpoint.phase != Phase::Gone);
        let mut retries = 0;
        let mut rnr_wait = 0;
        for endpoint in open {
            let setup = endpoint.setup;
            let timeout = Timeout::duration_ns(setup.timeout).unwrap_or(0);
            retries = retries.max((u64::from(setup.retry_cnt) + 2) * timeout);
            let timer = RnrTimer::new(setup.min_rnr_timer).map_or(0, RnrTimer::duration_ns);
            rnr_wait = rnr_wait.max(timer);
        }
        let config = &self.hosts[0].config;
        let each = rnr_wait + ROUND_TRIPS * 2 * ONE_WAY_NS;
        let crowd =
            if self.plan.crowded { self.model.lanes.len() as u64 * 2 * CROWDED_IDLE_NS } else { 0 };
        let lanes = self.model.lanes.len() as u64;
        self.late_ns()
            + 2 * (retries + config.tail_probe_ns)
            + (self.model.outstanding as u64 + lanes) * each
            + crowd
            + QUIET_NS
    }

    /// For how long memory may keep all who need it waiting.
    fn late_ns(&self) -> u64 {
        self.model.arenas.iter().map(Arena::late_ns).sum()
    }

    /// Stops QPs whose WRs wait without end, as they were told to. False if there are none.
    fn stop_endless(&mut self) -> Result<bool, Violation> {
        let model = &self.model;
        let endless = |lane: &&Lane| {
            lane.outstanding.iter().any(|id| model.may_wait_forever(*id, &self.network))
        };
        let stopped: BTreeSet<EndpointId> =
            model.lanes.iter().filter(endless).map(|lane| lane.endpoint).collect();
        let up = |id: &EndpointId| model.endpoints[*id].phase.is_up();
        let stopped: Vec<EndpointId> = stopped.into_iter().filter(up).collect();
        for id in &stopped {
            self.stop(*id)?;
        }
        Ok(!stopped.is_empty())
    }

    /// Deregisters a region that peers may be using, or takes its memory from under it.
    fn take_region(&mut self) -> Result<(), Violation> {
        let number = self.meddling.index(self.hosts.len());
        let Host { rnic, arena, .. } = &mut self.hosts[number];
        let chunks = &self.model.arenas[*arena].chunks;
        let Some(chunk) = chunks.iter().position(|chunk| chunk.room == Room::Mortal) else {
            return Ok(());
        };
        let percent = self.plan.vanish_percent;
        let fault = if percent > 0 && self.meddling.percent(percent) {
            self.model.arenas[*arena].vanish(chunk);
            Fault::Vanish
        } else if self.model.arenas[*arena].deregister(rnic, chunk)? {
            Fault::Deregister
        } else {
            return Ok(());
        };
        self.lost(number, chunk, fault);
        Ok(())
    }

    /// Somebody forges, if this is a run in which somebody does.
    fn forge(&mut self) -> Result<(), Violation> {
        let Some(forge) = &mut self.forge else { return Ok(()) };
        forge.hear(self.network.take_heard(), &self.network.take_strays())?;
        let Some((forged, late_ns)) = forge.next(&mut self.planter) else { return Ok(()) };
        let Forged { datagram, disturbs, .. } = forged;
        let to = self.network.host_at(datagram.flow.dst.ip());
        if let Some(to) = to {
            if disturbs {
                self.network.disturb(to);
            }
            self.trace.add(self.now, Event::Fault { what: Fault::Forge.name(), from: to, to });
        }
        self.network.count(Fault::Forge);
        self.network.inject(self.now + late_ns, datagram);
        Ok(())
    }

    /// Takes memory from under a region that peers use, now and then, where a run has it so.
    fn lose_memory(&mut self) {
        let may = self.plan.meddles && self.plan.vanish_percent > 0;
        if !may || !self.losing.percent(LOSS_PERCENT) {
            return;
        }
        let number = self.losing.index(self.hosts.len());
        let arena = self.hosts[number].arena;
        let chunks = &self.model.arenas[arena].chunks;
        if let Some(chunk) = chunks.iter().position(|chunk| chunk.room == Room::Mortal) {
            self.model.arenas[arena].vanish(chunk);
            self.lost(number, chunk, Fault::Vanish);
        }
    }

    /// Peers have lost a chunk of a host's memory.
    fn lost(&mut self, number: usize, chunk: usize, fault: Fault) {
        self.model.bereave((self.hosts[number].arena, chunk));
        self.network.count(fault);
        self.trace.add(self.now, Event::Fault { what: fault.name(), from: number, to: number });
    }

    fn stuck(&self, waited: u64) -> Violation {
        let waiting = self.model.ops.iter().position(|op| op.state == State::Outstanding);
        let Some(id) = waiting else {
            return Violation::new("the count of outstanding WRs is wrong");
        };
        let (op, source, target) =
            (&self.model.ops[id], self.model.source(id), self.model.target(id));
        Violation::new(format!(
            "WR {id}, {:?} of {} bytes on {} QPN {:#x}, host {} -> {}, did not complete within \
             {:.3} ms after the last fault, and {} more",
            op.opcode,
            op.len,
            source.qp_type,
            source.qpn,
            source.host,
            target.host,
            waited as f64 / 1e6,
            self.model.outstanding - 1,
        ))
    }

    /// Devices with nothing outstanding are silent, keep no more than they were configured to, and
    /// have told of every limit that was reached.
    fn check_rest(&self) -> Result<(), Violation> {
        if self.network.next().is_some() {
            return Err(Violation::new("devices go on sending with nothing outstanding"));
        }
        for (id, endpoint) in self.model.endpoints.iter().enumerate() {
            if endpoint.phase != Phase::Gone {
                self.check_flushed(id)?;
            }
            let heard = |from| {
                let later = self.model.ops.iter().skip(from);
                later.into_iter().any(|op| op.dest == id && op.answered_by_peer())
            };
            if endpoint.qp_type.is_reliable() && endpoint.listens_from.is_some_and(heard) {
                return Err(Violation::new(format!(
                    "QPN {:#x} of host {} is in RTR, took packets and did not tell",
                    endpoint.qpn, endpoint.host
                )));
            }
        }
        for id in &self.dcts {
            let endpoint = &self.model.endpoints[*id];
            let Host { rnic, config, .. } = &self.hosts[endpoint.host];
            let held = rnic.dct_contexts(endpoint.qp).map_err(refused("dct_contexts"))?;
            if held as u64 > u64::from(config.max_dc_contexts) {
                let most = config.max_dc_contexts;
                return Err(Violation::new(format!(
                    "a DCT holds {held} contexts, but may hold {most}"
                )));
            }
        }
        let silent = |queue: &&RecvQueue| {
            !queue.gone && queue.limit > 0 && (queue.outstanding.len() as u32) < queue.limit
        };
        match self.model.queues.iter().find(silent) {
            Some(queue) => Err(Violation::new(format!(
                "an SRQ of host {} holds {} receives and did not tell that they are fewer than {}",
                queue.host,
                queue.outstanding.len(),
                queue.limit
            ))),
            None => Ok(()),
        }
    }

    /// What devices count must fit what was done to them.
    fn check_counters(&self) -> Result<(), Violation> {
        let faults = self.network.faults();
        let damaged = [Fault::Corrupt, Fault::Truncate, Fault::Garbage];
        if damaged.iter().any(|fault| faults[*fault as usize] > 0) {
            return Ok(());
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let broken = host.rnic.counters().damaged();
            if broken > 0 {
                return Err(Violation::new(format!(
                    "host {number} dropped {broken} packets as damaged, but none was"
                )));
            }
        }
        Ok(())
    }

    fn report(&self, seed: u64, recovery_ns: u64) -> Report {
        let mut ops: BTreeMap<(Transport, SendOpcode), OpCount> = BTreeMap::new();
        for (id, op) in self.model.ops.iter().enumerate() {
            let transport = Transport::of(self.model.source(id).qp_type);
            let count = ops.entry((transport, op.opcode)).or_default();
            count.posted += 1;
            match op.state {
                _ if op.succeeded() => count.succeeded += 1,
                State::Forgotten => count.forgotten += 1,
                State::Done(_) | State::Outstanding => count.failed += 1,
            }
        }
        let counts = self.network.faults();
        Report {
            seed,
            hosts: self.hosts.len(),
            qps: self.model.endpoints.len(),
            ops,
            bad_wrs: self.model.ops.iter().filter(|op| op.planted.is_some()).count() as u64,
            faults: Fault::ALL.iter().map(|fault| (*fault, counts[*fault as usize])).collect(),
            packets: self.network.sent(),
            virtual_ns: self.now,
            recovery_ns,
            canary_strikes: self.planter.struck(),
            trace_hash: self.trace.hash(),
        }
    }
}
