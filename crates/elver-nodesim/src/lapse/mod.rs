//! A request is executed, and who asked hears of it only when it may be forgotten who he is.
//!
//! What an RC QP executed before its ends lost each other is known to nobody any more; a DC target that
//! has little room remembers an initiator for a while only. Whoever then sends again what was executed,
//! has it executed twice. So in a run that has lapses acknowledgements are lost of what was just posted,
//! and what would bring it about comes at once: a partition that outlasts all questions, an initiator that
//! sleeps while others take his place, a target whose clock jumps.

mod kinds;

use elver_core::Via;
use elver_verbs::{SendOpcode, Time};

use crate::model::{Hold, Phase, RegionIx, Violation, VqpIx};
use crate::world::World;

pub use self::kinds::{Lapses, UnknownLapses};

/// Two nodes lost each other: each closes its end of what was between them at its own time.
const RC_LAPSE: &str = "RC lapse";
/// A request is executed within this, if nothing is lost; and how often that is looked for.
const EXECUTED_NS: u64 = 200_000;
const STEP_NS: u64 = 2_000;
/// The same where a region is looked up before.
const LOOKED_UP_NS: u64 = 2_000_000;
const LOOK_NS: u64 = 20_000;
/// Who asks how far the other end of an RC QP got has given it up after this, and what was asked for before.
const UNHEARD_NS: u64 = 2_500_000_000;
/// Two nodes do not reach each other for so long once more, while nobody has given that up.
const APART_NS: u64 = 1_000_000;
/// WRs that a lapse meets, and VQPs that take a DC target's room meanwhile.
const WRS_MAX: u64 = 4;
const OTHERS_MAX: usize = 12;
/// A VQP whose WRs a lapse meets.
#[derive(Clone, Copy)]
struct Victim {
    vqp: VqpIx,
    node: usize,
    peer: usize,
    /// What it aims at.
    region: RegionIx,
}

impl World {
    /// What some VQP has just posted is executed, and that is not heard of for long.
    pub(crate) fn lapse(&mut self) -> Result<(), Violation> {
        // As with suspends, what was under way has its time first.
        let rested = |until: Time| until.saturating_add_ns(self.plan.retries_ns()) < self.now;
        if !self.suspended_until.is_none_or(rested) {
            return Ok(());
        }
        let over_rc = self.lapsing.percent(40);
        let Some(victim) = self.lapse_victim(over_rc) else { return Ok(()) };
        // So that its node need not look the region up.
        if !self.execute(victim.vqp, victim.region, 1, (LOOK_NS, LOOKED_UP_NS))? {
            return Ok(());
        }
        match (over_rc, self.lapsing.percent(50)) {
            (true, _) => self.lose_each_other(victim),
            (false, asleep) => {
                self.begin_session(victim)?;
                if asleep { self.forget_sleeper(victim) } else { self.forget_by_jump(victim) }
            }
        }
    }

    /// A VQP to another node, over an RC QP that it shares, or over DC.
    fn lapse_victim(&mut self, over_rc: bool) -> Option<Victim> {
        let all = 0..self.model.vqps.len();
        let found: Vec<Victim> = all
            .filter_map(|vqp| {
                let known = &self.model.vqps[vqp];
                let (node, boot) = self.model.place(vqp);
                let (peer, peers_boot) = known.target?.place;
                let is_up = known.phase == Phase::Up
                    && node != peer
                    && self.nodes[node].boot == boot
                    && self.nodes.get(peer)?.boot == peers_boot
                    && self.serves(node)
                    && self.serves(peer);
                let place = (peer, peers_boot);
                let mut regions = self.model.regions.iter();
                let region = regions.position(|region| {
                    let is_there = region.hold == Hold::Open && !region.vanished;
                    region.place == place && is_there && region.allows(SendOpcode::FetchAdd)
                })?;
                let fits = is_up && self.is_over(vqp)? == over_rc;
                fits.then_some(Victim { vqp, node, peer, region })
            })
            .collect();
        (!found.is_empty()).then(|| self.lapsing.pick(&found))
    }

    /// Whether a VQP is over a shared RC QP, or over DC; none if it is over neither.
    fn is_over(&self, vqp: VqpIx) -> Option<bool> {
        let known = &self.model.vqps[vqp];
        let (node, _) = self.model.place(vqp);
        let client = self.model.clients[known.client].id;
        match self.nodes[node].engine.core()?.vqp_info(client, known.id).ok()?.via? {
            Via::Rc => Some(true),
            Via::DcCached | Via::DcLookup => Some(false),
            Via::Leased => None,
        }
    }

    /// Has a victim's DCI send to other targets, so that what it sends next begins a session: only that can be
    /// taken for new by who has forgotten it.
    fn begin_session(&mut self, victim: Victim) -> Result<(), Violation> {
        let place = self.nodes[victim.node].place(victim.node);
        let others = |world: &World, vqp: &VqpIx| {
            let known = &world.model.vqps[*vqp];
            world.model.place(*vqp) == place
                && known.phase == Phase::Up
                && known
                    .target
                    .is_some_and(|target| ![victim.peer, victim.node].contains(&target.place.0))
                && world.is_over(*vqp) == Some(false)
        };
        let found: Vec<VqpIx> =
            (0..self.model.vqps.len()).filter(|vqp| others(self, vqp)).take(OTHERS_MAX).collect();
        for vqp in found {
            if self.model.vqps[vqp].phase == Phase::Up {
                self.post_at(vqp, SendOpcode::Write, None)?;
            }
        }
        self.run_until(self.now.saturating_add_ns(EXECUTED_NS))
    }

    /// Posts what is executed without its initiator's hearing of it up to some moment. Whether it was.
    fn execute_unheard(&mut self, victim: Victim, until: Time) -> Result<bool, Violation> {
        let Victim { vqp, node, peer, region } = victim;
        self.net.withhold_answers(peer, node, until, true);
        let count = self.lapsing.between(1, WRS_MAX);
        self.execute(vqp, region, count, (STEP_NS, EXECUTED_NS))
    }

    /// Posts additions of a VQP, and waits in steps until one of them is executed, or for so long at most.
    fn execute(
        &mut self,
        vqp: VqpIx,
        region: RegionIx,
        count: u64,
        (step, most): (u64, u64),
    ) -> Result<bool, Violation> {
        if self.model.vqps[vqp].phase != Phase::Up {
            return Ok(false);
        }
        let before = self.model.regions[region].memory.changes();
        for _ in 0..count {
            self.post_at(vqp, SendOpcode::FetchAdd, Some(region))?;
        }
        let latest = self.now.saturating_add_ns(most);
        while self.model.regions[region].memory.changes() == before {
            if self.now >= latest {
                return Ok(false);
            }
            self.run_until(self.now.saturating_add_ns(step))?;
        }
        Ok(true)
    }

    /// Two nodes do not reach each other until one asks no more what an RC QP executed.
    fn lose_each_other(&mut self, victim: Victim) -> Result<(), Violation> {
        let Victim { node, peer, .. } = victim;
        let latest = self.now.saturating_add_ns(self.plan.retries_ns() + UNHEARD_NS);
        if !self.execute_unheard(victim, latest)? {
            return Ok(());
        }
        self.note(format_args!("lapse: nodes {node} and {peer} lose each other"));
        self.count(RC_LAPSE);
        let unknown = |world: &World| {
            let core = world.nodes[node].engine.core();
            core.map(|core| core.stats().fates_unknown)
        };
        let before = unknown(self);
        while unknown(self) == before && self.now < latest {
            let until = self.now.saturating_add_ns(APART_NS);
            for (from, to) in [(node, peer), (peer, node)] {
                self.net.partition(from, to, until);
            }
            self.hindered_until = self.hindered_until.max(until);
            self.suspended_until = Some(until);
            self.run_until(until)?;
        }
        self.net.withhold_answers(peer, node, self.now, true);
        if unknown(self) != before {
            self.count("fate unknown");
        }
        self.run_until(self.now.saturating_add_ns(self.plan.retries_ns()))
    }

    /// An initiator sleeps until he is forgotten, since others took his place.
    fn forget_sleeper(&mut self, victim: Victim) -> Result<(), Violation> {
        let node = victim.node;
        let idle = self.plan.device.dc_context_idle_ns;
        let until = self.now.saturating_add_ns(idle + idle / 2);
        if !self.execute_unheard(victim, until)? {
            return Ok(());
        }
        self.net.stall(node, until);
        self.hindered_until = self.hindered_until.max(until);
        self.suspended_until = Some(until);
        self.note(format_args!("lapse: node {node} sleeps, until {} ns", until.0));
        self.count("DC lapse, asleep");
        let forgotten = self.now.saturating_add_ns(idle + idle / 8);
        self.run_until(forgotten)?;
        self.crowd_out(victim.peer);
        self.run_until(until.saturating_add_ns(self.plan.retries_ns()))
    }

    /// A target's clock jumps, and others take an initiator's place.
    fn forget_by_jump(&mut self, victim: Victim) -> Result<(), Violation> {
        let peer = victim.peer;
        // Before its initiator's retries are used up.
        let until = self.now.saturating_add_ns(self.plan.retries_ns() / 2);
        if !self.execute_unheard(victim, until)? {
            return Ok(());
        }
        self.hold_others(peer, 4 * self.plan.device.dc_context_idle_ns);
        self.hindered_until = self.hindered_until.max(until);
        self.count("DC lapse, jump");
        self.crowd_out(peer);
        self.run_until(until.saturating_add_ns(self.plan.retries_ns()))
    }

    /// Others come to a node, of which its DC target knows nothing, and take the room of whoever was silent for
    /// long.
    fn crowd_out(&mut self, node: usize) {
        let Some(core) = self.core(node) else { return };
        let forgotten = core.device().make_room();
        self.note(format_args!("lapse: the DC target of node {node} forgets {forgotten}"));
        if forgotten > 0 {
            self.count("initiators forgotten");
        }
    }
}
