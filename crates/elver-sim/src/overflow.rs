//! What becomes of a CQ that overflowed, and of the QPs that completed there: all of it is replaced.

use elver_verbs::{CqInit, QpState};

use crate::host::{Armed, CQ_ENTRIES};
use crate::model::{Endpoint, EndpointId, Phase, Violation};
use crate::world::{World, refused};

impl World {
    /// Gives hosts whose CQ overflowed a new one, and new QPs.
    pub(crate) fn replace_failed_cqs(&mut self) -> Result<(), Violation> {
        for number in 0..self.hosts.len() {
            self.take_events(number)?;
            if self.hosts[number].cq_failed {
                self.replace_cq(number)?;
            }
        }
        Ok(())
    }

    fn replace_cq(&mut self, number: usize) -> Result<(), Violation> {
        let of_it = |endpoint: &Endpoint| endpoint.host == number && endpoint.phase != Phase::Gone;
        let lost: Vec<EndpointId> = (0..self.model.endpoints.len())
            .filter(|id| of_it(&self.model.endpoints[*id]))
            .collect();
        for id in lost {
            let (phase, qpn) = (self.model.endpoints[id].phase, self.model.endpoints[id].qpn);
            if phase.is_up() && self.state(id)? != QpState::Err {
                return Err(Violation::new(format!(
                    "host {number}: QPN {qpn:#x} runs, though its CQ overflowed"
                )));
            }
            self.remove(id)?;
        }
        for queue in 0..self.model.queues.len() {
            if self.model.queues[queue].host == number && !self.model.queues[queue].gone {
                self.abandon_queue(queue)?;
            }
        }
        let host = &mut self.hosts[number];
        host.rnic.destroy_cq(host.cq).map_err(refused("destroy_cq"))?;
        host.cq = host.rnic.create_cq(CqInit { cqe: CQ_ENTRIES }).map_err(refused("create_cq"))?;
        host.cq_entries = CQ_ENTRIES;
        host.polled_most = 0;
        host.cq_failed = false;
        host.armed = Armed::No;
        self.replace_all_lost()
    }
}
