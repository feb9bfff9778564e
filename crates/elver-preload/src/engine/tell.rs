//! Telling the program of what happened: channels, contexts, and rdma_cm.

use elver_verbs::{AsyncEvent, Device};

use super::state::State;
use crate::outage::Outage;
use crate::timed::Timed;
use crate::told;

/// How often rdma_cm has its turn, one after the other, before the program has.
const CM_ROUNDS: u32 = 16;

impl State {
    /// Tells channels and contexts of what happened.
    pub(crate) fn tell(&mut self) {
        if self.outage.is_some() {
            self.change_port();
        }
        self.tell_events();
        self.direct.look(&self.device);
        for _ in 0..CM_ROUNDS {
            let Some(cm) = &mut self.cm else { break };
            let now = elver_soft::now();
            if !self.cm_arrived && cm.due().is_none_or(|due| due > now) {
                break;
            }
            if std::mem::take(&mut self.cm_arrived) {
                cm.arrived(&mut self.device, now);
            }
            cm.look_again(now);
            cm.step(&mut self.device, now);
            self.device.progress();
            // What that has brought, nobody else tells before something else happens.
            self.tell_events();
        }
    }

    /// The same, of what the device has brought so far.
    fn tell_events(&mut self) {
        for (cq, timed) in &mut self.timed {
            timed.stamp(&mut self.device, *cq);
        }
        while let Some(cq) = self.device.poll_cq_event() {
            if self.cm.as_ref().is_some_and(|cm| cm.cq() == cq) {
                self.cm_arrived = true;
            } else if !self.moderated.holds(cq, elver_soft::now)
                && let Some(object) = self.cqs.get(&cq)
            {
                object.tell();
            }
        }
        if self.moderated.due().is_some() {
            self.tell_moderated();
        }
        while let Some(event) = self.device.poll_async_event() {
            if let AsyncEvent::CommEst(qp) = event {
                self.direct.tell_established(&self.device, qp);
            }
            let told = match event {
                AsyncEvent::CqErr(cq) => self.cqs.get(&cq).map(|object| object.told),
                AsyncEvent::QpFatal(qp)
                | AsyncEvent::QpReqErr(qp)
                | AsyncEvent::QpAccessErr(qp)
                | AsyncEvent::CommEst(qp)
                | AsyncEvent::SqDrained(qp)
                | AsyncEvent::QpLastWqeReached(qp)
                | AsyncEvent::DctAccessErr(qp) => {
                    // Of a target all are told who opened it.
                    let all = self.xrc.objects(qp);
                    all.iter().for_each(|told| told::tell(*told, event));
                    if all.is_empty() { self.qps.get(&qp).copied() } else { None }
                }
                AsyncEvent::SrqErr(srq) | AsyncEvent::SrqLimitReached(srq) => {
                    self.srqs.get(&srq).copied()
                }
            };
            if let Some(told) = told {
                told::tell(told, event);
            }
        }
        if let Some(posts) = &mut self.posts {
            for qp in posts.failed.drain(..) {
                if let Some(told) = self.qps.get(&qp) {
                    told::tell(*told, AsyncEvent::QpFatal(qp));
                }
            }
        }
    }

    /// Tells of events that have waited.
    #[cold]
    fn tell_moderated(&mut self) {
        let now = elver_soft::now();
        let seen = |cq| self.timed.get(&cq).map_or(u64::MAX, Timed::seen);
        while let Some(cq) = self.moderated.next(now, seen) {
            if let Some(object) = self.cqs.get(&cq) {
                object.tell();
            }
        }
    }

    /// Has the port go down or come up, when that is due.
    #[cold]
    fn change_port(&mut self) {
        let change = |outage: &mut Box<Outage>| outage.change(elver_soft::now());
        while let Some(up) = self.outage.as_mut().and_then(change) {
            self.device.set_link(up);
            for open in &self.contexts {
                told::tell_port(open.context, up);
            }
        }
    }

    /// Ends what is connected with processes that have ended.
    #[cold]
    pub(super) fn end_orphans(&mut self) {
        if let Some(cm) = &mut self.cm {
            let now = elver_soft::now();
            cm.end_orphans(&mut self.device, now);
            cm.step(&mut self.device, now);
            self.device.progress();
        }
    }
}
