//! A CQ that overflows: every QP that completes there stops, and what it would have told is lost.

use elver_verbs::{Cq, CqInit, QpState};

use crate::faults::Fault;
use crate::host::{Armed, CQ_ENTRIES};
use crate::model::{Endpoint, EndpointId, Phase, Violation};
use crate::world::{World, refused};

impl World {
    /// A device says that a CQ overflowed. False if it cannot have.
    pub(crate) fn overflowed(&mut self, number: usize, cq: Cq) -> Result<bool, Violation> {
        self.poll(number)?;
        self.network.count(Fault::CqOverflow);
        // At once, and not when the CQ is replaced: a run may end before that.
        for queue in &mut self.model.queues {
            queue.overflown |= queue.host == number && !queue.gone;
        }
        let host = &mut self.hosts[number];
        let again = std::mem::replace(&mut host.cq_failed, true);
        Ok(cq == host.cq && !again && host.polled_most == host.cq_entries)
    }

    /// A device says that a QP stopped for its CQ. False if there was no reason.
    pub(crate) fn stopped_by_cq(&mut self, number: usize, qp: u32) -> Result<bool, Violation> {
        let Some(id) = self.find(number, qp) else { return Ok(false) };
        if !self.hosts[number].cq_failed || self.state(id)? != QpState::Err {
            return Ok(false);
        }
        let now = self.now;
        let endpoint = &mut self.model.endpoints[id];
        endpoint.may_fail = true;
        if endpoint.phase.is_up() {
            endpoint.take_down(now);
        }
        Ok(true)
    }

    /// Whether the CQ of a QP overflowed: then it is not to be brought back, but replaced.
    pub(crate) fn has_failed_cq(&mut self, id: EndpointId) -> Result<bool, Violation> {
        let number = self.model.endpoints[id].host;
        self.poll(number)?;
        self.take_events(number)?;
        Ok(self.hosts[number].cq_failed)
    }

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
