//! Loss and time: what a lane does when answers are missing.

use elver_verbs::{Memory, Time, WcStatus};
use elver_wire::Timeout;

use super::{Env, Hold, Lane};

/// The time from one tail probe to the next doubles so often.
const PROBE_DOUBLINGS: u32 = 10;
/// A peer is silent when so many tail probes in a row were not answered.
const SILENT_PROBES: u32 = 3;

impl Lane {
    /// Goes back to the oldest unacknowledged packet.
    pub(super) fn rewind<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        let route = env.core.remote;
        self.uncharge(route, env.hw);
        self.next_psn = self.una;
        self.cursor = 0;
        self.reads.clear();
        self.unasked = 0;
        self.probing = false;
        self.probe_end = None;
        self.suspect = false;
        // What was read ahead may have changed since.
        self.sending.take_if(|aside| aside.ready);
    }

    /// A response that should have come before is missing: its request goes out again, once.
    pub(super) fn missed_response<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if self.rewound {
            return;
        }
        self.rewound = true;
        self.lost_packet(env);
        self.rewind(env);
    }

    pub(super) fn lost_packet<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        if let Some(route) = self.path(env.core)
            && env.hw.paths.lost(env.now, route.path)
        {
            env.hw.counters.window_cuts += 1;
        }
    }

    /// The heap's entry for `queued` came up. Returns whether the lane may now have something to
    /// send.
    pub(crate) fn on_timer<M: Memory>(&mut self, env: &mut Env<'_, M>, queued: Time) -> bool {
        if self.timer_at != Some(queued) {
            return false;
        }
        self.timer_at = None;
        let Some(due) = self.due(env) else {
            return false;
        };
        if due > env.now {
            self.ensure_timer(env, due);
            return false;
        }
        if core::mem::replace(&mut self.hold, Hold::No) != Hold::No {
            if self.next_psn == self.una {
                self.heard(env);
            } else {
                // It waited for something of its own, with packets under way: their time goes on.
                self.arm(env);
            }
            return true;
        }
        if self.taking.is_some() {
            // The peer has answered; it is we who keep it waiting.
            self.heard(env);
            self.arm(env);
            return false;
        }
        self.unheard(env);
        if !self.fault {
            self.arm(env);
        }
        true
    }

    /// Nothing was heard for as long as a tail probe or the QP waits. Who was late himself, so that
    /// both are due at once, probes and waits anew before he calls the peer silent.
    fn unheard<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        let probe = env.hw.config.tail_probe_ns;
        let waited = env.now.ns_since(self.last_heard);
        let timeout = Timeout::duration_ns(env.core.attr.timeout);
        let silent = timeout.is_some_and(|timeout| waited >= timeout);
        let probe_due = probe > 0 && self.probe_at <= env.now;
        if probe_due && (!silent || self.probes == 0) {
            env.hw.counters.tail_probes += 1;
            self.probes = (self.probes + 1).min(PROBE_DOUBLINGS);
            self.probe_at = env.now.saturating_add_ns(probe.saturating_mul(1 << self.probes));
            if silent {
                self.last_heard = env.now;
            }
            if self.suspect {
                self.lost_packet(env);
                self.rewind(env);
            } else {
                self.probing = true;
            }
            if self.probes >= SILENT_PROBES {
                self.fall_silent(env);
            }
            return;
        }
        env.hw.counters.timeouts += 1;
        if self.retry_left == 0 {
            self.fail_front(env, WcStatus::RetryExcErr);
            return;
        }
        self.retry_left -= 1;
        self.heard(env);
        self.lost_packet(env);
        self.rewind(env);
        self.fall_silent(env);
    }

    /// Gives the path's window to others: a dead peer would else hold it until the last retry, and
    /// for ever where retries have no end.
    fn fall_silent<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        self.uncharge(env.core.remote, env.hw);
        self.silent = true;
    }
}
