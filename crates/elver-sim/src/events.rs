//! What devices tell: completions and events, each of which must have a cause.

use elver_verbs::{AsyncEvent, Cq, QpAttr, QpAttrMask as M, QpState, QpType, Srq, Wc, WcStatus};

use crate::attributes::{attributes, masks};
use crate::faults::Fault;
use crate::host::Armed;
use crate::model::{Endpoint, EndpointId, Op, Phase, Planted, QueueId, RecvQueue, View, Violation};
use crate::trace::{Event, completed};
use crate::world::{World, refused};

impl World {
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
                        || self.forge.as_ref().is_some_and(|forge| forge.tried(qp.0))
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

    /// A QP in RTR says that its peer's first packet came: it goes to RTS, as a connection manager
    /// would have it. False if it was not to say so, or said so before.
    fn established(&mut self, host: usize, qp: u32) -> Result<bool, Violation> {
        let Some(id) = self.find(host, qp) else { return Ok(false) };
        let endpoint = &mut self.model.endpoints[id];
        if endpoint.listens_from.take().is_none() {
            // It may have been stopped after the packet had come.
            return Ok(endpoint.phase == Phase::Down);
        }
        let attr = QpAttr {
            qp_state: QpState::Rts,
            max_rd_atomic: endpoint.setup.max_rd_atomic,
            sq_psn: endpoint.sq_psn,
            ..attributes(endpoint)
        };
        if self.state(id)? == QpState::Rtr
            && let (.., Some(mask)) = masks(self.model.endpoints[id].qp_type)
        {
            self.modify(id, &attr, mask)?;
            self.act("heard its peer", id);
        }
        Ok(true)
    }

    /// A QP says that it is drained. False if nobody asked it.
    fn drained(&mut self, host: usize, qp: u32) -> Result<bool, Violation> {
        let named = |endpoint: &Endpoint| {
            endpoint.host == host && endpoint.qp.0 == qp && endpoint.phase != Phase::Gone
        };
        let Some(id) = self.model.endpoints.iter().position(named) else {
            return Ok(false);
        };
        if self.model.endpoints[id].phase != Phase::Draining {
            // It may have been stopped after it had drained.
            return Ok(self.model.endpoints[id].phase == Phase::Down);
        }
        self.poll(host)?;
        if self.model.endpoints[id].phase == Phase::Draining {
            self.model.endpoints[id].phase = Phase::Drained;
        }
        if self.healed {
            self.resume_drained()?;
        }
        Ok(true)
    }

    /// Lets QPs go on that are drained.
    pub(crate) fn resume_drained(&mut self) -> Result<(), Violation> {
        for id in 0..self.model.endpoints.len() {
            if self.model.endpoints[id].phase != Phase::Drained {
                continue;
            }
            self.poll(self.model.endpoints[id].host)?;
            self.take_events(self.model.endpoints[id].host)?;
            if self.model.endpoints[id].phase == Phase::Drained {
                self.act("moved back to RTS", id);
                let attr = QpAttr { qp_state: QpState::Rts, ..QpAttr::default() };
                self.modify(id, &attr, M::STATE)?;
                self.model.endpoints[id].phase = Phase::Up;
                self.hosts[self.model.endpoints[id].host].wake(self.now);
            }
        }
        Ok(())
    }

    /// A device says that a CQ overflowed. False if it cannot have.
    fn overflowed(&mut self, number: usize, cq: Cq) -> Result<bool, Violation> {
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
    fn stopped_by_cq(&mut self, number: usize, qp: u32) -> Result<bool, Violation> {
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
}
