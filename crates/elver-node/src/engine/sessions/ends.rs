//! How sessions end: at once, or by a goodbye, which is answered when nothing is left.

use elver_core::ClientId;
use elver_portal::Violation;
use elver_verbs::Time;

use super::super::counters::EngineCounters;
use super::super::held::Held;
use super::super::maker::Maker;
use super::super::orders::{Awaiting, Cleared, Leavings};
use super::super::session::Session;
use super::super::translate::Refused;
use super::Sessions;

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum End {
    /// Its process closed it, or died.
    Closed,
    /// It was turned away.
    Rejected,
    /// It broke a rule.
    Violation,
}

impl Sessions {
    /// A session said goodbye: its client is closed, and it hears when all of it is gone.
    pub(in crate::engine) fn leave(&mut self, slot: u32, request: u32) {
        if let Some(open) = self.open(slot) {
            (open.is_parted, open.goodbye) = (true, Some(request));
            self.leaving += 1;
        }
    }

    /// Ends a session. Returns its client, if that is still to be closed.
    pub(in crate::engine) fn end(
        &mut self,
        slot: u32,
        how: End,
        counters: &mut EngineCounters,
        now: Time,
    ) -> Option<ClientId> {
        let session = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.turns.retain(|other| other != slot);
        counters.sessions_ended += 1;
        match how {
            End::Closed => counters.sessions_closed += 1,
            End::Rejected => counters.sessions_rejected += 1,
            End::Violation => {}
        }
        let account = session.account();
        let Some(open) = session.open else {
            self.partings.close(account, session.socket, now);
            self.greeted(account);
            return None;
        };
        self.partings.part(account, session.socket, now);
        self.quotas.count_wrs(account, open.wrs);
        self.clients.remove(&open.client);
        let (client, said_goodbye) = (open.client, open.goodbye.is_some());
        self.retire(account, open);
        if said_goodbye {
            self.leaving -= 1;
            return None;
        }
        Some(client)
    }

    /// The places whose goodbye is done.
    pub(in crate::engine) fn left(&self, is_gone: impl Fn(ClientId) -> bool) -> Vec<u32> {
        if self.leaving == 0 {
            return Vec::new();
        }
        let left = |(slot, session): (usize, &Option<Session>)| {
            let open = session.as_ref()?.open.as_ref()?;
            (open.goodbye.is_some() && is_gone(open.client)).then_some(slot as u32)
        };
        self.slots.iter().enumerate().filter_map(left).collect()
    }

    /// Answers what a session has ordered and does not get any more, and its goodbye, when its memory was given back.
    pub(in crate::engine) fn say_goodbye(
        &mut self,
        slot: u32,
        maker: &Maker,
    ) -> Result<(), Violation> {
        let Some((session, quotas)) = self.get_with_quotas(slot) else { return Ok(()) };
        let (account, token) = (session.account(), session.token(slot));
        let Some(open) = &mut session.open else { return Ok(()) };
        let Some(request) = open.goodbye.take() else { return Ok(()) };
        let usage = open.own_usage().within_session();
        quotas.give_back(account, usage.minus(usage.of_memory()));
        quotas.give_back(account, maker.forget(token, account));
        let ordered: Vec<u32> = open.ordered.drain().map(|(request, _)| request).collect();
        let mut leavings = Leavings::default();
        for (_, region) in open.regions.drain().chain(open.leaving.drain()) {
            leavings.memory.extend(region.memory.and_then(Held::into_last));
            leavings.files.extend(region.backing);
        }
        open.vqps.clear();
        open.leases.clear();
        open.bound.clear();
        self.leaving -= 1;
        let awaited_by = Awaiting::Goodbye { token, request };
        maker.clear(leavings, Cleared { account, usage: usage.of_memory(), awaited_by });
        ordered
            .into_iter()
            .try_for_each(|request| self.answer_later(slot, request, Err(Refused::parted())))
    }
}
