//! What time does.

use elver_verbs::Time;
use elver_wire::cm::{Message, Rejected};

use crate::connection::State;
use crate::event::{Event, Id};
use crate::manager::Manager;
use crate::reason;

impl Manager {
    /// Sends again what nobody answered, gives up what was sent often enough, and ends what is over.
    pub fn advance(&mut self, now: Time) {
        while let Some((due, id)) = self.timers.first().copied()
            && due <= now
        {
            self.wake_at(id, None);
            self.elapsed(now, id);
        }
    }

    fn elapsed(&mut self, now: Time, id: u32) {
        let Some(connection) = self.find(id, None) else { return };
        match connection.state {
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrSent => {
                if connection.left == 0 {
                    return self.give_up(now, id);
                }
                connection.left -= 1;
                let again = now.saturating_add_ns(connection.patience);
                self.repeat(id);
                self.wake_at(id, Some(again));
            }
            State::Requested => {
                self.counters.expired += 1;
                self.refuse_unanswered(id);
                self.report(id, Event::Expired(Id(id)));
                self.linger(id, now);
            }
            State::SidrRequested => {
                self.counters.expired += 1;
                self.report(id, Event::Expired(Id(id)));
                self.end(id);
                self.release_peer(id);
            }
            State::TimeWait => {
                self.report(id, Event::Released(Id(id)));
                self.end(id);
                self.release_peer(id);
            }
            State::SidrReplied => {
                self.end(id);
                self.release_peer(id);
            }
            State::Answered | State::Established | State::Closed => {}
        }
    }

    /// Tells a peer that nobody answers its request. Not that time is up: Linux looks for that word among those who
    /// have a number of ours, which this peer has not.
    fn refuse_unanswered(&mut self, id: u32) {
        let Some(connection) = self.find(id, None) else { return };
        let (remote, reason) = (connection.remote.unwrap_or_default(), reason::NO_RESOURCES);
        let of = Rejected::Req;
        let rej = Message::Rej { local: id, remote, of, reason, info: &[], private: &[] };
        // Without private data there is room.
        let _ = self.tell(id, rej);
    }

    /// Tells a peer that waits that nothing comes of it.
    fn refuse_late(&mut self, id: u32, of: Rejected) {
        let Some(connection) = self.find(id, None) else { return };
        let remote = connection.remote.unwrap_or_default();
        let info = self.config.ca_guid.to_be_bytes();
        let reason = reason::TIMEOUT;
        let rej = Message::Rej { local: id, remote, of, reason, info: &info, private: &[] };
        // It has room for a GUID.
        let _ = self.tell(id, rej);
    }

    fn give_up(&mut self, now: Time, id: u32) {
        let Some(connection) = self.find(id, None) else { return };
        match connection.state {
            State::DreqSent => {
                self.report(id, Event::Disconnected(Id(id)));
                self.linger(id, now);
            }
            State::RepSent => {
                self.refuse_late(id, Rejected::Rep);
                self.report(id, Event::Unreachable(Id(id)));
                self.linger(id, now);
            }
            State::ReqSent => {
                self.refuse_late(id, Rejected::Req);
                self.report(id, Event::Unreachable(Id(id)));
                self.end(id);
            }
            _ => {
                self.report(id, Event::Unreachable(Id(id)));
                self.end(id);
            }
        }
    }

    /// The peer's number is free for another connection of its.
    pub(crate) fn release_peer(&mut self, id: u32) {
        let Some(connection) = self.find(id, None) else { return };
        if let Some(begun) = connection.begun.take() {
            self.by_peer.remove(&begun);
        }
    }
}
