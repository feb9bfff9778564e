//! How a session ends, whatever part of the engine finds that it must.

use elver_portal::Violation;
use elver_verbs::Time;

use super::Engine;
use super::sessions::ends::End;

impl Engine {
    /// Ends a session that broke a rule.
    pub(super) fn settle(&mut self, slot: u32, result: Result<(), Violation>, now: Time) {
        if let Err(violation) = result {
            self.counters.violation(&violation);
            self.end(slot, End::Violation, now);
        }
    }

    /// Ends a session: its process is gone, or must go.
    pub(super) fn end(&mut self, slot: u32, how: End, now: Time) {
        let Some(session) = self.sessions.at(slot) else { return };
        let (token, account) = (session.token(slot), session.account());
        let heir = session.open.as_ref().and_then(|open| Some((open.heir?, open.client)));
        // Others may keep handles of its process.
        self.door.unwatch(&session.socket, session.process.as_ref());
        let gate = session.open.as_ref().and_then(|open| open.gate.as_ref());
        self.directs.ended(token, gate, now);
        for lkey in self.sessions.regions_of(slot) {
            // The memory goes with its owner: nobody need wait until it is touched no more.
            self.directs.shut(lkey, None, &mut self.sessions, now);
        }
        let heir = heir.map(|(place, client)| {
            let process = self.sessions.get(slot).and_then(|session| session.process.take());
            (place, client, process)
        });
        if let Some(client) = self.sessions.end(slot, how, &mut self.counters, now) {
            self.core.client_close(client, now);
        }
        self.sessions.quotas.give_back(account, self.maker.forget(token, account));
        self.sets.ended(token, heir, &mut self.sessions, &mut self.core, now);
    }
}
