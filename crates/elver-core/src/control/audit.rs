//! Part of [`crate::Core::audit`].

use alloc::format;
use alloc::string::String;

use super::{CallState, Control, Ticket};

impl Control {
    /// Counts its calls anew; `tickets` are those of requests that are being worked on. Returns how
    /// many of both there are.
    pub(crate) fn audit(&self, calls: usize, tickets: &[Ticket]) -> Result<u32, String> {
        let count = |state| self.calls.values().filter(|call| call.state == state).count();
        let [waiting, flying, resting] =
            [CallState::Waiting, CallState::Flying, CallState::Resting].map(count);
        let found = (calls, waiting, flying, flying + resting);
        let counted = (self.calls.len(), self.waiting.len(), self.flying, self.timers.len());
        if found != counted {
            return Err(format!("calls to peers: {found:?}, counted as {counted:?}"));
        }
        if waiting > 0 && flying < self.config.calls_max {
            return Err(format!("{waiting} calls wait for room that is there"));
        }
        let worked_on = tickets.iter().filter(|ticket| self.serving.contains(&ticket.key()));
        if worked_on.count() != self.serving.len() || tickets.len() != self.serving.len() {
            let (found, counted) = (tickets.len(), self.serving.len());
            return Err(format!("requests of peers: {found}, counted as {counted}"));
        }
        let (kept, ordered) = (self.replies.len(), self.reply_order.len());
        if kept != ordered {
            return Err(format!("answers kept: {kept}, counted as {ordered}"));
        }
        Ok((self.calls.len() + tickets.len()) as u32)
    }
}
