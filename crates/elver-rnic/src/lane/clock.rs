//! What a lane waits for by the clock, and what begins that anew.

use elver_verbs::{Memory, Time};
use elver_wire::Timeout;

use super::{Env, Hold, Lane};
use crate::qp_core::QpCore;

impl Lane {
    /// When something is due, if nothing is heard before.
    pub(super) fn due<M: Memory>(&self, env: &Env<'_, M>) -> Option<Time> {
        match self.hold {
            Hold::No => {}
            Hold::Until(until) => return Some(until),
            Hold::Memory => return None,
        }
        if !self.in_flight() || !env.core.qp_type.is_reliable() {
            return None;
        }
        let timeout = Timeout::duration_ns(env.core.attr.timeout);
        let timeout = timeout.map(|wait| self.last_heard.saturating_add_ns(wait));
        let probe = (env.hw.config.tail_probe_ns > 0).then_some(self.probe_at);
        probe.into_iter().chain(timeout).min()
    }

    /// The time that the QP waits begins now.
    pub(super) fn heard<M: Memory>(&mut self, env: &Env<'_, M>) {
        self.last_heard = env.now;
        self.probes = 0;
        self.probe_at = env.now.saturating_add_ns(env.hw.config.tail_probe_ns);
    }

    pub(super) fn arm<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if let Some(due) = self.due(env) {
            self.ensure_timer(env, due);
        }
    }

    pub(super) fn ensure_timer<M: Memory>(&mut self, env: &mut Env<'_, M>, at: Time) {
        if self.timer_at.is_none_or(|queued| at < queued) {
            self.timer_at = Some(at);
            env.hw.timers.push(at, env.core.qpn.get(), self.index);
        }
    }

    /// It has copied much within the device: it goes on when what is due by now has been done.
    #[cold]
    pub(crate) fn give_way<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if !self.queue.is_empty() && self.hold == Hold::No {
            let at = env.now.saturating_add_ns(1);
            self.hold = Hold::Until(at);
            self.ensure_timer(env, at);
        }
    }

    /// What it would send is there.
    #[cold]
    pub(crate) fn has_memory<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if self.hold == Hold::Memory {
            self.hold = Hold::No;
        }
        // What was sent before may be sent again. That it was fetched says nothing of the peer: his
        // silence goes on.
        self.arm(env);
    }

    /// A local copy found nobody to answer: it is tried again as a lost packet is.
    pub(crate) fn no_answer<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if !self.unanswered {
            self.unanswered = true;
            self.heard(env);
        }
        self.arm(env);
    }

    /// A local copy went through.
    pub(crate) fn answered(&mut self, core: &QpCore) {
        if self.unanswered || self.rnr_left != core.attr.rnr_retry {
            self.unanswered = false;
            self.renew_budgets(core);
        }
    }
}
