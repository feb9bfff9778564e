//! A request that is refused breaks an RC QP while the other side's WRs are on it, posted in the very
//! moment in which their acknowledgements cannot come any more: what they did must be found out.

use elver_core::{Class, Policy, Via};
use elver_verbs::SendOpcode;

use crate::model::{Hold, Phase, RegionIx, Violation, VqpIx};
use crate::run::VQPS_MAX;
use crate::world::World;

/// A request needs as long to its peer, about.
const FLIGHT_NS: u64 = 1_000;
/// Acknowledgements are kept back for no longer than this.
const WITHHELD_NS: u64 = 60_000;
/// Most VQPs whose WRs a collision meets, and WRs of each.
const VICTIMS_MAX: usize = 3;
const WRS_MAX: u64 = 8;
/// What must not be executed twice, and what shows when it is.
const WORK: [SendOpcode; 6] = [
    SendOpcode::FetchAdd,
    SendOpcode::FetchAdd,
    SendOpcode::CompareSwap,
    SendOpcode::Send,
    SendOpcode::Write,
    SendOpcode::WriteWithImm,
];
/// What memory that is gone refuses.
const REFUSED: [SendOpcode; 3] = [SendOpcode::Write, SendOpcode::Read, SendOpcode::FetchAdd];

impl World {
    /// A client aims at memory that has vanished, and others send over the same RC QP the other way.
    pub(crate) fn collide(&mut self) -> Result<(), Violation> {
        let Some(region) = self.gone_region() else {
            let clients = self.clients();
            if !clients.is_empty() {
                let client = self.colliding.pick(&clients);
                self.vanish(client);
            }
            return Ok(());
        };
        let (there, boot) = self.model.regions[region].place;
        let at = |world: &World, vqp: &VqpIx| {
            let target = world.model.vqps[*vqp].target;
            target.is_some_and(|target| target.place == (there, boot)) && world.is_over_rc(*vqp)
        };
        let all = 0..self.model.vqps.len();
        let breakers: Vec<VqpIx> = all.filter(|vqp| at(self, vqp)).collect();
        if breakers.is_empty() {
            return self.approach(there);
        }
        let breaker = self.colliding.pick(&breakers);
        let (here, _) = self.model.place(breaker);
        let victims = self.victims(there, here, self.model.vqps[breaker].init.class);
        if victims.is_empty() {
            return self.approach(there);
        }
        self.count("collision");
        if self.plan.acks_vanish {
            let until = self.now.saturating_add_ns(self.colliding.between(1, WITHHELD_NS));
            let lost = self.colliding.percent(50);
            self.net.withhold_answers(here, there, until, lost);
            if self.colliding.percent(30) {
                self.net.withhold_answers(there, here, until, lost);
            }
            self.count(if lost { "answers lost" } else { "answers late" });
            let what = if lost { "lost" } else { "late" };
            self.note(format_args!("fault: answers {what}, node {here} -> {there}"));
        }
        if self.colliding.percent(30) {
            self.burst(&victims)?;
        }
        let opcode = self.colliding.pick(&REFUSED);
        self.post_at(breaker, opcode, Some(region))?;
        let later = self.colliding.below(2 * FLIGHT_NS);
        self.run_until(self.now.saturating_add_ns(later))?;
        self.burst(&victims)
    }

    /// A region whose memory has vanished.
    fn gone_region(&mut self) -> Option<RegionIx> {
        let gone = |index: &RegionIx| {
            let region = &self.model.regions[*index];
            let (node, boot) = region.place;
            region.vanished && region.hold == Hold::Open && self.nodes[node].boot == boot
        };
        let regions: Vec<RegionIx> = (0..self.model.regions.len()).filter(gone).collect();
        (!regions.is_empty()).then(|| self.colliding.pick(&regions))
    }

    /// Clients of a node and of another connect to each other over an RC QP, if that may be.
    fn approach(&mut self, there: usize) -> Result<(), Violation> {
        let clients = self.clients();
        if clients.is_empty() || !self.plan.policies().contains(&Policy::Lite) {
            return Ok(());
        }
        let one = self.colliding.pick(&clients);
        let (here, _) = self.model.clients[one].place;
        let mut others = clients;
        others.retain(|client| self.model.clients[*client].place.0 == there);
        if others.is_empty() {
            return Ok(());
        }
        let other = self.colliding.pick(&others);
        for (client, to) in [(one, there), (other, here)] {
            let ports = self.model.ports.iter();
            let bound = |by: &Option<VqpIx>| by.is_some();
            let mut of = ports.filter(|(((node, _), _), by)| *node == to && bound(by));
            let Some(((_, port), _)) = of.next() else { continue };
            let port = *port;
            if self.model.clients[client].vqps.len() < VQPS_MAX
                && let Some(vqp) = self.create_vqp(client)?
            {
                self.connect_by(Policy::Lite, vqp, Some(to), port)?;
            }
        }
        Ok(())
    }

    /// VQPs of a node that send to another over the RC QP of a class.
    fn victims(&mut self, node: usize, to: usize, class: Class) -> Vec<VqpIx> {
        let fits = |vqp: &VqpIx| {
            let known = &self.model.vqps[*vqp];
            self.model.place(*vqp) == self.nodes[node].place(node)
                && known.init.class == class
                && known.target.is_some_and(|target| target.place == self.nodes[to].place(to))
                && self.is_over_rc(*vqp)
        };
        let mut found: Vec<VqpIx> = (0..self.model.vqps.len()).filter(fits).collect();
        while found.len() > VICTIMS_MAX {
            found.swap_remove(self.colliding.index(found.len()));
        }
        found
    }

    /// Whether a VQP is up, at a node that takes calls, over an RC QP that it shares with others.
    fn is_over_rc(&self, vqp: VqpIx) -> bool {
        let known = &self.model.vqps[vqp];
        let (node, boot) = self.model.place(vqp);
        if known.phase != Phase::Up || self.nodes[node].boot != boot || !self.serves(node) {
            return false;
        }
        let core = self.nodes[node].engine.core();
        let client = self.model.clients[known.client].id;
        let info = core.and_then(|core| core.vqp_info(client, known.id).ok());
        info.is_some_and(|info| info.via == Some(Via::Rc))
    }

    fn burst(&mut self, victims: &[VqpIx]) -> Result<(), Violation> {
        for vqp in victims {
            // It may have gone meanwhile, or its node.
            if !self.is_over_rc(*vqp) {
                continue;
            }
            for _ in 0..self.colliding.between(1, WRS_MAX) {
                let opcode = self.colliding.pick(&WORK);
                self.post_at(*vqp, opcode, None)?;
            }
        }
        Ok(())
    }
}
