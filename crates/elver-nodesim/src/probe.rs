//! After everything: each node must still do for new VQPs what it is there for.

use elver_core::Policy;
use elver_verbs::SendOpcode;

use crate::model::{Addressee, ClientIx, OpIx, OpState, Phase, Violation, VqpIx, broken};
use crate::plan::BACKLOG_MIN;
use crate::world::{STEP_NS, World};

/// Operations that a new connection must carry.
const OPERATIONS: [SendOpcode; 5] = [
    SendOpcode::Write,
    SendOpcode::Read,
    SendOpcode::Send,
    SendOpcode::FetchAdd,
    SendOpcode::WriteWithImm,
];

/// How many of them are messages: a receiver that has nothing else holds as many.
const MESSAGES: usize = 2;
const _: () = assert!(MESSAGES <= BACKLOG_MIN as usize);

impl World {
    /// A client of each node connects to a new port of each other node, and moves data.
    pub(crate) fn probe(&mut self) -> Result<(), Violation> {
        let mut newcomers = Vec::new();
        for node in 0..self.nodes.len() {
            newcomers.push(self.open_client(node)?);
        }
        let mut tries: Vec<(VqpIx, Policy)> = Vec::new();
        for client in newcomers.clone() {
            for peer in newcomers.clone() {
                let other = self.making.pick(self.plan.policies());
                for policy in [Policy::Shared, other] {
                    tries.push((self.probe_connect(policy, client, peer)?, policy));
                    if self.plan.few_may_wait() {
                        self.settle()?;
                    }
                }
            }
        }
        self.settle()?;
        // One client after the other, and of its VQPs one to each peer at a time: while the first message
        // waits for what is known of its sender, those behind it are held, and no receiver has room for
        // fewer than one VQP's.
        for tries in tries.chunks(2 * newcomers.len()) {
            for first in 0..2 {
                let one_each: Vec<_> = tries.iter().skip(first).step_by(2).copied().collect();
                self.try_all(&one_each)?;
            }
        }
        Ok(())
    }

    /// Moves data over new connections.
    fn try_all(&mut self, tries: &[(VqpIx, Policy)]) -> Result<(), Violation> {
        let mut sure: Vec<OpIx> = Vec::new();
        for &(vqp, policy) in tries {
            if self.model.vqps[vqp].phase != Phase::Up {
                let why = self.model.vqps[vqp].failed.clone();
                // There may be no RC QP left for it.
                if matches!(policy, Policy::Lite | Policy::Leased) && self.model.vqps[vqp].no_rc_qp
                {
                    self.count("no RC QP left");
                    continue;
                }
                broken!("VQP {vqp}: a new connect failed in peace: {why:?}");
            }
            for opcode in OPERATIONS {
                sure.push(self.post_sure(vqp, opcode)?);
            }
            self.forge()?;
        }
        self.settle()?;
        // What has completed may still wait for a receive, which comes when the one before is taken.
        let held = |world: &World| {
            let held =
                |op: &OpIx| world.model.ops[*op].is_message() && !world.model.ops[*op].delivered;
            sure.iter().any(held)
        };
        for _ in 0..sure.len() {
            if held(self) {
                self.run_until(self.now.saturating_add_ns(STEP_NS))?;
                self.settle()?;
            }
        }
        for op in sure {
            let known = &self.model.ops[op];
            let arrived = !known.is_message() || known.delivered;
            let is_done = known.state == OpState::Succeeded && arrived;
            if !is_done && !self.was_crowded_out(known.vqp) {
                broken!("WR {op} {:?} is {:?} in peace", known.opcode, known.state);
            }
        }
        Ok(())
    }

    fn probe_connect(
        &mut self,
        policy: Policy,
        client: ClientIx,
        peer: ClientIx,
    ) -> Result<VqpIx, Violation> {
        let bound = self.model.clients[peer]
            .vqps
            .iter()
            .find_map(|vqp| self.model.vqps[*vqp].bound.map(|port| (*vqp, port)));
        let Some((to, port)) = bound else { broken!("client {peer} has no port") };
        self.supply(to, 2 * MESSAGES)?;
        let Some(vqp) = self.create_vqp(client)? else {
            broken!("client {client} gets no VQP");
        };
        let (node, _) = self.model.clients[peer].place;
        self.connect_by(policy, vqp, Some(node), port)?;
        debug_assert!(matches!(
            self.model.vqps[vqp].target.map(|target| target.to),
            Some(Addressee::Port(_))
        ));
        Ok(vqp)
    }
}
