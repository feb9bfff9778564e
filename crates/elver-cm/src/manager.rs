use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::net::IpAddr;

use elver_random::Rng;
use elver_verbs::Time;
use elver_wire::cm::{CmError, MAD_LEN, Mad, Message};

use crate::config::{Config, Counters};
use crate::connection::{Connection, State};
use crate::event::{Event, Id, Refused, Service};

/// Who listens for a service.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Requests that may wait for the consumer to take them.
    pub(crate) backlog: u32,
    /// Those that do.
    pub(crate) waiting: u32,
}

/// The communication manager of one device.
#[derive(Debug)]
pub struct Manager {
    pub(crate) config: Config,
    rng: Rng,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// Those that peers began: by the peer's address, its number, and whether that is a SIDR question's.
    pub(crate) by_peer: BTreeMap<(IpAddr, u32, bool), u32>,
    pub(crate) listeners: BTreeMap<Service, Listener>,
    /// Services that somebody listened for lately, and until when that is so.
    pub(crate) lately: VecDeque<(Service, Time)>,
    pub(crate) timers: BTreeSet<(Time, u32)>,
    /// Of these timers those of connections that nobody has any longer, and that only answer what is late.
    fading: BTreeSet<(Time, u32)>,
    out: VecDeque<(IpAddr, [u8; MAD_LEN])>,
    /// Connections that are where they were not when the consumer last asked.
    changed: BTreeSet<u32>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: Counters,
}

impl Manager {
    /// A manager with no connection. `rng` draws the numbers that peers must not guess.
    pub fn new(config: Config, rng: Rng) -> Manager {
        Manager {
            config,
            rng,
            connections: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            listeners: BTreeMap::new(),
            lately: VecDeque::new(),
            timers: BTreeSet::new(),
            fading: BTreeSet::new(),
            out: VecDeque::new(),
            changed: BTreeSet::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// The next message to send, and where its receiver is.
    pub fn poll_transmit(&mut self) -> Option<(IpAddr, [u8; MAD_LEN])> {
        self.out.pop_front()
    }

    /// The next connection of which [`Manager::parting`] may tell another thing than before.
    pub fn poll_changed(&mut self) -> Option<Id> {
        self.changed.pop_first().map(Id)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Manager::advance`] has something to do.
    pub fn due(&self) -> Option<Time> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections and look-ups that there are, those that are ending among them.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Puts a connection in under a number that nobody can guess. In a full table what only answers late messages gives way.
    pub(crate) fn insert(&mut self, state: State, peer: IpAddr) -> Result<u32, Refused> {
        if self.connections.len() >= self.config.max_connections
            && let Some((_, oldest)) = self.fading.first().copied()
        {
            self.counters.displaced += 1;
            self.forget(oldest);
        }
        if self.connections.len() >= self.config.max_connections {
            self.counters.crowded += 1;
            return Err(Refused::Full(self.config.max_connections));
        }
        let id = loop {
            let id = self.rng.next_u32();
            // The wire has 0 where there is no number.
            if id != 0 && !self.connections.contains_key(&id) {
                break id;
            }
        };
        let connection = Connection {
            state,
            peer,
            remote: None,
            listener: None,
            waits: false,
            begun: None,
            own_qpn: 0,
            peer_qpn: 0,
            transaction: self.rng.next_u64(),
            sent: None,
            left: 0,
            patience: 0,
            due: None,
            detached: false,
        };
        self.connections.insert(id, connection);
        self.changed.insert(id);
        Ok(id)
    }

    /// A connection, of this peer if one is given.
    pub(crate) fn find(&mut self, id: u32, peer: Option<IpAddr>) -> Option<&mut Connection> {
        self.connections
            .get_mut(&id)
            .filter(|connection| peer.is_none_or(|peer| connection.peer == peer))
    }

    pub(crate) fn require(&mut self, id: Id) -> Result<&mut Connection, Refused> {
        self.find(id.0, None).filter(|found| !found.detached).ok_or(Refused::Unknown(id))
    }

    /// Sends a message that belongs to no connection, or is not sent again.
    pub(crate) fn say(
        &mut self,
        peer: IpAddr,
        transaction: u64,
        message: Message<'_>,
    ) -> Result<[u8; MAD_LEN], CmError> {
        let bytes = Mad { transaction, message }.write()?;
        self.out.push_back((peer, bytes));
        Ok(bytes)
    }

    /// Sends a connection's message, and keeps it for when it is lost.
    pub(crate) fn tell(&mut self, id: u32, message: Message<'_>) -> Result<(), CmError> {
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        let (peer, transaction) = (connection.peer, connection.transaction);
        let bytes = self.say(peer, transaction, message)?;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.sent = Some(Box::new(bytes));
        }
        Ok(())
    }

    /// Sends a connection's last message again.
    pub(crate) fn repeat(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(bytes) = &connection.sent {
            self.counters.resent += 1;
            self.out.push_back((connection.peer, **bytes));
        }
    }

    /// Moves a connection, which leaves its listener's backlog if it waited there.
    pub(crate) fn enter(&mut self, id: u32, state: State) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = state;
        self.changed.insert(id);
        self.leave_backlog(id);
    }

    /// Gives back a request's place. Who listens no more lets go of all that have one, so that none counts for who
    /// listens after him.
    pub(crate) fn leave_backlog(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if core::mem::take(&mut connection.waits)
            && let Some(at) = connection.listener
            && let Some(listener) = self.listeners.get_mut(&at)
        {
            listener.waiting -= 1;
        }
    }

    /// Sets a connection's timer, or stops it.
    pub(crate) fn wake_at(&mut self, id: u32, due: Option<Time>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(before) = core::mem::replace(&mut connection.due, due) {
            self.timers.remove(&(before, id));
            self.fading.remove(&(before, id));
        }
        if let Some(due) = due {
            self.timers.insert((due, id));
        }
    }

    /// Waits for the answer to the message that was just sent.
    pub(crate) fn await_answer(&mut self, id: u32, now: Time, retries: u8, patience: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.left = retries;
            connection.patience = patience;
        }
        self.wake_at(id, Some(now.saturating_add_ns(patience)));
    }

    /// Ends a connection that answers what is late for a while.
    pub(crate) fn linger(&mut self, id: u32, now: Time) {
        self.enter(id, State::TimeWait);
        self.wake_at(id, Some(now.saturating_add_ns(self.config.time_wait_ns)));
        self.fade(id);
    }

    /// Has a connection give way in a full table, if nobody has it and it only answers what is late.
    pub(crate) fn fade(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let lingers = matches!(connection.state, State::TimeWait | State::SidrReplied);
        if let Some(due) = connection.due
            && lingers
            && connection.detached
        {
            self.fading.insert((due, id));
        }
    }

    /// Ends a connection for good. The consumer still has its number, unless it let go of it.
    pub(crate) fn end(&mut self, id: u32) {
        self.wake_at(id, None);
        self.enter(id, State::Closed);
        if self.connections.get(&id).is_some_and(|connection| connection.detached) {
            self.forget(id);
        }
    }

    /// Takes a connection out.
    pub(crate) fn forget(&mut self, id: u32) {
        self.wake_at(id, None);
        self.enter(id, State::Closed);
        if let Some(begun) = self.connections.remove(&id).and_then(|gone| gone.begun) {
            self.by_peer.remove(&begun);
        }
    }

    /// Tells the consumer, if it has not let go of the connection.
    pub(crate) fn report(&mut self, id: u32, event: Event) {
        if self.connections.get(&id).is_some_and(|connection| !connection.detached) {
            self.events.push_back(event);
        }
    }
}
