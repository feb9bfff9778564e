//! The end of all that is pending is waited for.

use std::collections::BTreeSet;

use crate::model::{Phase, Target, Violation, Vqp, VqpIx};
use crate::world::{STEP_NS, World};

impl World {
    /// Waits until all that is pending has ended.
    pub(crate) fn settle(&mut self) -> Result<(), Violation> {
        let patience = self.patience_ns();
        let deadline = self.now.saturating_add_ns(patience);
        loop {
            self.check_all()?;
            self.supply_all()?;
            let pending = self.pending().or_else(|| self.lone_end());
            let Some(pending) = pending else { return Ok(()) };
            if self.now >= deadline {
                let ms = patience / 1_000_000;
                return Err(Violation(format!("{ms} ms after faults have ended, {pending}")));
            }
            let soon = self.next_event().unwrap_or(deadline).max(self.now);
            self.run_until(soon.saturating_add_ns(STEP_NS).min(deadline))?;
        }
    }

    /// Gives receives to every VQP that messages are on their way to.
    pub(crate) fn supply_all(&mut self) -> Result<(), Violation> {
        let senders = 0..self.model.vqps.len();
        let waits = |vqp: &VqpIx| !self.model.vqps[*vqp].stream.is_empty();
        let mut targets = BTreeSet::new();
        for vqp in senders.filter(waits) {
            match self.addressee(vqp) {
                Some(to) => drop(targets.insert(to)),
                // Whose message made it its client does not know: any VQP's that is connected here.
                None if self.model.vqps[vqp].accepted_unknown => {
                    let (node, _) = self.model.place(vqp);
                    let here = |target: &Target| target.place.0 == node;
                    let up = |known: &Vqp| {
                        known.phase == Phase::Up && known.target.is_some_and(|target| here(&target))
                    };
                    let all = self.model.vqps.iter().enumerate();
                    targets.extend(all.filter(|(_, known)| up(known)).map(|(sender, _)| sender));
                }
                None => {}
            }
        }
        for vqp in targets {
            let client = self.model.vqps[vqp].client;
            let (node, _) = self.model.clients[client].place;
            if !self.nodes[node].clients.contains(&client)
                || self.model.vqps[vqp].phase == Phase::Down
            {
                continue;
            }
            let before = self.model.vqps[vqp].recvs.len();
            if before < 2 {
                self.supply(vqp, 2)?;
                let known = &self.model.vqps[vqp];
                let needs = known.recvs.is_empty() && !known.failed_in(known.epoch);
                if needs && !self.is_in_error(vqp) {
                    self.add_arena(client)?;
                }
            }
        }
        Ok(())
    }
}
