//! Every count against what it counts, for those who test.

use alloc::format;
use alloc::string::String;

use super::Control;
use super::address::ControlAddr;
use super::calls::{CallState, closes};
use super::serving::Ticket;

impl Control {
    /// Counts its calls anew; `tickets` are those of requests that are being worked on. Returns how
    /// many of both there are.
    ///
    /// # Errors
    ///
    /// What was counted otherwise, in a line.
    pub fn audit(&self, calls: usize, tickets: &[Ticket]) -> Result<u32, String> {
        let Control { calls: own, serving, .. } = self;
        let of = |to: Option<ControlAddr>, state| {
            let calls = own.calls.values().filter(|call| to.is_none_or(|to| call.to == to));
            calls.filter(|call| call.state == state).count()
        };
        let (mut flying, mut waiting, mut all) = (0, 0, 0);
        for (to, peer) in &own.peers {
            let state = |state| of(Some(*to), state);
            let found = [CallState::Waiting, CallState::Flying, CallState::Slow].map(state);
            let waits =
                |id: &&u64| own.calls.get(*id).is_some_and(|call| call.state == CallState::Waiting);
            let counted = [peer.waiting.iter().filter(waits).count(), peer.flying, peer.slow];
            if found != counted {
                return Err(format!("calls to {to:?}: {found:?}, counted as {counted:?}"));
            }
            all += peer.calls;
            if !peer.silent {
                flying += peer.flying;
                waiting += if peer.may_fly() { found[0] } else { 0 };
            } else if peer.flying == 0 {
                return Err(format!("{to:?} is silent, and is not asked"));
            }
        }
        let timers = [CallState::Flying, CallState::Resting, CallState::Slow, CallState::Apart];
        let timers = timers.into_iter().map(|state| of(None, state)).sum();
        let found = (calls, calls, flying, timers);
        let counted = (own.calls.len(), all, own.flying, own.timers.len());
        if found != counted {
            return Err(format!("calls to peers: {found:?}, counted as {counted:?}"));
        }
        if waiting > 0 && flying < own.calls_max {
            return Err(format!("{waiting} calls wait for room that is there"));
        }
        let closing = own.calls.values().filter(|call| closes(&call.request)).count();
        if closing != own.closes {
            return Err(format!("calls that close: {closing}, counted as {}", own.closes));
        }
        let connects = tickets.iter().filter(|ticket| ticket.connect).count();
        if connects != serving.connects {
            let counted = serving.connects;
            return Err(format!("connects of peers: {connects}, counted as {counted}"));
        }
        let worked_on = tickets.iter().filter(|ticket| serving.working.contains(&ticket.key()));
        if worked_on.count() != serving.working.len() || tickets.len() != serving.working.len() {
            let (found, counted) = (tickets.len(), serving.working.len());
            return Err(format!("requests of peers: {found}, counted as {counted}"));
        }
        let (kept, ordered) = (serving.replies.len(), serving.reply_order.len());
        if kept != ordered {
            return Err(format!("answers kept: {kept}, counted as {ordered}"));
        }
        Ok((own.calls.len() + tickets.len()) as u32)
    }
}
