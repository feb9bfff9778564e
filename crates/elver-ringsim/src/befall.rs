//! What befalls processes, nodes and clocks, beside what the network does: clocks that jump, memory that is given back
//! while peers write to it, nodes that lose their DC target, completions that nobody takes, and somebody who forges.

use elver_sim::Fault;
use elver_verbs::{Device, Qp, QpType, Time};

use crate::canary::Canary;
use crate::model::Violation;
use crate::strange::{Deaf, SWITCHED};
use crate::world::{EndIx, World, peer_of};

/// A clock jumps no further than this.
const JUMP_NS: [u64; 4] = [1_000_000, 200_000_000, 10_000_000_000, 600_000_000_000];
/// A node whose DC target is gone goes on for so long at most, and starts anew.
const DOOMED_NS: u64 = 10_000_000;
/// Completions are taken by nobody for no longer than this.
const DEAF_NS: u64 = 20_000_000;

impl World {
    /// Maybe something befalls somebody; whether it did.
    pub(crate) fn befall(&mut self) -> Result<bool, Violation> {
        self.end_of_doomed(false)?;
        self.end_of_deaf()?;
        for fault in SWITCHED {
            if !self.fate.rng.percent(self.plan.strange.percent(fault)) {
                continue;
            }
            match fault {
                Fault::Deregister => self.give_back()?,
                Fault::DestroyDct => self.lose_target()?,
                Fault::CqOverflow => self.go_deaf(),
                Fault::ClockJump => self.jump()?,
                _ => self.forge()?,
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Faults are over: who cannot go on starts anew, and whoever does not listen listens.
    pub(crate) fn end_fates(&mut self) -> Result<(), Violation> {
        self.end_of_doomed(true)?;
        for node in 0..self.plan.nodes {
            self.cluster.nodes[node].deaf =
                self.cluster.nodes[node].deaf.map(|deaf| Deaf { until: self.cluster.now, ..deaf });
        }
        self.end_of_deaf()
    }

    /// A process gives the memory back that its peer writes to, and goes on.
    fn give_back(&mut self) -> Result<(), Violation> {
        let up: Vec<EndIx> = self.living.iter().copied().filter(|end| self.may_act(*end)).collect();
        if up.is_empty() {
            return Ok(());
        }
        let end = self.fate.rng.pick(&up);
        if self.ends[end].given_back {
            return Ok(());
        }
        let now = self.time_of(end);
        let kept = self.planter.strikes(Canary::KeptOpen);
        let closed_early = self.planter.strikes(Canary::ClosedEarly);
        let node = self.ends[end].node;
        if let Some(at) = self.cluster.core(node).filter(|_| !kept) {
            self.ends[end].give_back(at, end, now)?;
            if closed_early {
                self.ends[end].close();
            }
        }
        self.ends[end].given_back = true;
        self.cluster.called(node);
        self.befell(Fault::Deregister, format_args!("end {end}"));
        Ok(())
    }

    /// A node's DC target goes, and later on the node. The first is everybody's meta server.
    fn lose_target(&mut self) -> Result<(), Violation> {
        let node = self.fate.rng.index(self.plan.nodes);
        let until = self.now().saturating_add_ns(self.fate.rng.between(1, DOOMED_NS));
        if node == 0 || !self.cluster.serves(node) || self.cluster.nodes[node].doomed.is_some() {
            return Ok(());
        }
        let Some((core, _)) = self.cluster.core(node) else { return Ok(()) };
        let device = core.device();
        let is_target =
            |qp: &Qp| device.query_qp(*qp).is_ok_and(|(_, init)| init.qp_type == QpType::Dct);
        let Some(target) = device.qps().find(is_target) else { return Ok(()) };
        // It stays where something is being copied for it.
        if device.destroy_qp(target).is_ok() {
            self.cluster.nodes[node].doomed = Some(until);
            self.cluster.net.disturb(node);
            self.befell(Fault::DestroyDct, format_args!("node {node}"));
        }
        Ok(())
    }

    fn end_of_doomed(&mut self, all: bool) -> Result<(), Violation> {
        for node in 0..self.plan.nodes {
            let doomed = self.cluster.nodes[node].doomed;
            if doomed.is_some_and(|until| all || until <= self.cluster.now) {
                self.cluster.nodes[node].doomed = None;
                self.crash(node)?;
            }
        }
        Ok(())
    }

    /// Nobody at a node takes completions for a while.
    fn go_deaf(&mut self) {
        let node = self.fate.rng.index(self.plan.nodes);
        let (since, until) = (self.now(), self.fate.rng.between(1, DEAF_NS));
        let until = since.saturating_add_ns(until);
        if self.cluster.nodes[node].deaf.is_none() {
            self.cluster.nodes[node].deaf = Some(Deaf { since, until });
            self.note(format_args!("fault: nobody at node {node} takes completions"));
            self.count("completions left");
        }
    }

    fn end_of_deaf(&mut self) -> Result<(), Violation> {
        for node in 0..self.plan.nodes {
            let deaf = self.cluster.nodes[node].deaf;
            if deaf.is_some_and(|deaf| deaf.until <= self.cluster.now) {
                self.hear_at_last(node)?;
                self.cluster.nodes[node].deaf = None;
            }
        }
        Ok(())
    }

    /// A node's clock goes forward, or those of all.
    fn jump(&mut self) -> Result<(), Violation> {
        // What was under way has had its time since the last one.
        let rested = |at: Time| at.saturating_add_ns(self.plan.retries_ns()) < self.cluster.now;
        if !self.fate.jumped_at.is_none_or(rested) {
            return Ok(());
        }
        let rng = &mut self.fate.rng;
        let (node, together, most) =
            (rng.index(self.plan.nodes), rng.percent(40), rng.pick(&JUMP_NS));
        let by = rng.between(1, most);
        self.fate.jumped_at = Some(self.now());
        self.note(format_args!("fault: clock jump, node {node}, all {together}, {by} ns"));
        if together {
            self.cluster.net.jump_all(by);
            self.fate.apart_until = Some(self.now().saturating_add_ns(self.plan.retries_ns()));
        } else {
            self.cluster.net.jump(node, by);
            self.end_afar(node)?;
        }
        Ok(())
    }

    /// A planted bug: a pair ends that has nothing to do with a node whose clock has jumped.
    fn end_afar(&mut self, node: usize) -> Result<(), Violation> {
        let is_afar = |end: &EndIx| {
            let nodes = [0, self.ends[*end].node, self.ends[peer_of(*end)].node];
            self.ends[*end].is_up() && !nodes.contains(&node)
        };
        let Some(end) = self.living.iter().copied().find(is_afar) else { return Ok(()) };
        if self.planter.strikes(Canary::EndedByFarClock) {
            self.fails(end, "a clock has jumped elsewhere".into())?;
        }
        Ok(())
    }
}
