use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::{Gid, Time};

use super::frame::Frame;
use super::output::{ConnectionId, Output};
use super::seal::{Nonce, Seals};
use super::secret::Secret;
use super::watchers::Watchers;

/// A registry is taken to have heard from all nodes when it is this many times to live old.
const TTLS_TO_COMPLETE: u64 = 3;
/// Changes that wait for whoever watches, beside twice as many as there may be nodes.
const CHANGES_MAX: usize = 1_024;

/// What a registry's server is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    /// A node that was silent for this long is dead, in nanoseconds.
    pub ttl_ns: u64,
    /// Most nodes.
    pub nodes_max: u32,
    /// Most connections.
    pub connections_max: u32,
    /// Most connections from one address.
    pub connections_per_address: u32,
    /// Most connections that have not said who they are, so that strangers leave places to nodes.
    pub strangers_max: u32,
    /// Whether a node may register only from the address that its GID stands for.
    pub verify_source: bool,
    /// What a node must prove to know, if anything.
    pub secret: Option<Secret>,
}

impl Default for RegistryConfig {
    fn default() -> RegistryConfig {
        RegistryConfig {
            ttl_ns: 3_000_000_000,
            nodes_max: 65_536,
            connections_max: 65_536 + 1_024,
            connections_per_address: 64,
            strangers_max: 1_024,
            verify_source: true,
            secret: None,
        }
    }
}

/// The meta server's table of nodes, as the registry writes it.
pub trait NodeTable: Send {
    /// The meta server that the table belongs to.
    fn server(&self) -> MetaServer;

    /// Writes a node's record. Peers find it when this has returned. The error tells the node why
    /// not.
    ///
    /// # Errors
    ///
    /// Why the table does not take it, for the node that asked: its engine is busy or ending, or the table is full.
    fn put(&mut self, gid: Gid, record: NodeRecord) -> Result<(), String>;

    /// Takes a node out.
    fn remove(&mut self, gid: Gid);
}

/// What a registry's server has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistryCounters {
    /// Nodes that registered, or changed their record.
    pub registered: u64,
    /// Nodes that left.
    pub left: u64,
    /// Nodes that fell silent.
    pub expired: u64,
    /// Registrations that were refused.
    pub refused: u64,
    /// Connections that did not prove to know the secret: they have another, or none.
    pub unproven: u64,
    /// Connections that were turned away, for there were too many.
    pub turned_away: u64,
    /// Connections that ended for what they sent.
    pub violations: u64,
    /// Connections that ended because they did not take what they asked for.
    pub overflowed: u64,
}

impl RegistryCounters {
    /// Every counter by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("registered", self.registered),
            ("left", self.left),
            ("expired", self.expired),
            ("refused", self.refused),
            ("unproven", self.unproven),
            ("turned_away", self.turned_away),
            ("violations", self.violations),
            ("overflowed", self.overflowed),
        ]
        .into_iter()
    }
}

/// The registry's state: who is known, until when, and who wants to hear of it. It does no IO.
#[derive(Debug)]
pub(super) struct Members<T> {
    config: RegistryConfig,
    table: T,
    started: Time,
    nodes: BTreeMap<Gid, Node>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Connections that are not welcome so far.
    strangers: BTreeSet<ConnectionId>,
    by_address: BTreeMap<IpAddr, BTreeSet<ConnectionId>>,
    /// Who registered which node.
    speakers: BTreeSet<(Gid, ConnectionId)>,
    /// Who is told of changes.
    watchers: Watchers,
    /// One entry for each node and each connection, never too late; it may be too early.
    due: BTreeSet<(Time, Due)>,
    outputs: VecDeque<Output>,
    pub(super) counters: RegistryCounters,
}

#[derive(Debug)]
struct Node {
    record: NodeRecord,
    /// Whose heartbeats count.
    owner: ConnectionId,
    expires: Time,
    /// When that is looked at.
    due: Time,
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    stage: Stage,
    /// Ours, which was never said before.
    nonce: Nonce,
    /// For its frames from now on.
    seals: Option<Seals>,
    registered: Option<Gid>,
    /// Its node has left, and does not come back over it: nobody makes all others hear of a node
    /// without end.
    left: bool,
    expires: Time,
    /// When that is looked at.
    due: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has said nothing.
    Silent,
    /// It is to prove that it knows the secret.
    Challenged,
    Welcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Node(Gid),
    Connection(ConnectionId),
}

impl<T: NodeTable> Members<T> {
    pub(super) fn new(config: RegistryConfig, table: T, now: Time) -> Members<T> {
        let changes_max = 2 * config.nodes_max as usize + CHANGES_MAX;
        Members {
            config,
            table,
            started: now,
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            strangers: BTreeSet::new(),
            by_address: BTreeMap::new(),
            speakers: BTreeSet::new(),
            watchers: Watchers::new(changes_max),
            due: BTreeSet::new(),
            outputs: VecDeque::new(),
            counters: RegistryCounters::default(),
        }
    }

    /// A connection came; whether it may stay. The nonce is for it alone.
    pub(super) fn open(
        &mut self,
        id: ConnectionId,
        address: IpAddr,
        nonce: Nonce,
        now: Time,
    ) -> bool {
        let address = address.to_canonical();
        if !self.make_room(address) {
            self.counters.turned_away += 1;
            return false;
        }
        self.by_address.entry(address).or_default().insert(id);
        self.strangers.insert(id);
        let expires = now.saturating_add_ns(self.config.ttl_ns);
        let connection = Connection {
            address,
            stage: Stage::Silent,
            nonce,
            seals: None,
            registered: None,
            left: false,
            expires,
            due: expires,
        };
        self.connections.insert(id, connection);
        self.due.insert((expires, Due::Connection(id)));
        true
    }

    /// Whether there is room for a connection from an address. Where there is none who has said least
    /// gives way, the oldest first: strangers that stay keep no node from registering.
    fn make_room(&mut self, address: IpAddr) -> bool {
        if let Some(from_there) = self.by_address.get(&address)
            && from_there.len() >= self.config.connections_per_address as usize
        {
            let Some(id) = from_there.iter().copied().find(|id| self.is_nobody(*id)) else {
                return false;
            };
            self.give_way(id);
        }
        if self.strangers.len() >= self.config.strangers_max as usize
            || self.connections.len() >= self.config.connections_max as usize
        {
            let Some(&id) = self.strangers.first() else { return false };
            self.give_way(id);
        }
        true
    }

    /// Whether a connection has proven nothing and is of no node.
    fn is_nobody(&self, id: ConnectionId) -> bool {
        let is_proven =
            |one: &Connection| one.stage == Stage::Welcome && self.config.secret.is_some();
        self.connections.get(&id).is_some_and(|one| one.registered.is_none() && !is_proven(one))
    }

    fn give_way(&mut self, id: ConnectionId) {
        self.counters.turned_away += 1;
        self.closed(id);
        self.outputs.push_back(Output::Close(id));
    }

    /// A connection ended. Its node may come back with another until its time to live runs out.
    pub(super) fn closed(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.due.remove(&(connection.due, Due::Connection(id)));
        self.strangers.remove(&id);
        self.watchers.end(id);
        if let Some(gid) = connection.registered {
            self.speakers.remove(&(gid, id));
            self.inherit(id, gid);
        }
        if let Some(others) = self.by_address.get_mut(&connection.address) {
            others.remove(&id);
            if others.is_empty() {
                self.by_address.remove(&connection.address);
            }
        }
    }

    /// Something came over a connection.
    pub(super) fn handle(&mut self, id: ConnectionId, frame: Frame, now: Time) {
        let expires = now.saturating_add_ns(self.config.ttl_ns);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.stage == Stage::Welcome {
            // Strangers have no longer for saying more.
            connection.expires = expires;
        }
        if let Some(node) = connection.registered.and_then(|gid| self.nodes.get_mut(&gid)) {
            node.expires = expires;
        }
        match (connection.stage, frame) {
            (Stage::Silent, Frame::Hello { nonce: theirs }) => match &self.config.secret {
                None => self.welcome(id, expires),
                Some(secret) => {
                    let nonce = connection.nonce;
                    connection.stage = Stage::Challenged;
                    connection.seals = Some(Seals::of_server(secret, &theirs, &nonce));
                    self.send(id, Frame::Challenge { nonce });
                }
            },
            // Its seal was right, or it would not be here.
            (Stage::Challenged, Frame::Proof) => self.welcome(id, expires),
            (Stage::Welcome, Frame::Register { gid, record }) => {
                self.register(id, gid, record, expires)
            }
            (Stage::Welcome, Frame::Heartbeat) => self.send(id, Frame::Heartbeat),
            (Stage::Welcome, Frame::Watch { on }) => {
                self.watchers.end(id);
                if on {
                    self.watchers.begin(id);
                }
            }
            (Stage::Welcome, Frame::Leave) => {
                if let Some(gid) = connection.registered.take() {
                    connection.left = true;
                    self.speakers.remove(&(gid, id));
                    self.leave(id, gid);
                }
            }
            _ => self.violates(id),
        }
    }

    /// Takes the seals of a connection, once, when it has been challenged and the challenge is on its
    /// way: from then on all of it is sealed.
    pub(super) fn take_seals(&mut self, id: ConnectionId) -> Option<Seals> {
        self.connections.get_mut(&id)?.seals.take()
    }

    /// A frame had not the right seal: it ends.
    pub(super) fn unproven(&mut self, id: ConnectionId) {
        self.counters.unproven += 1;
        let reason = match self.config.secret {
            Some(_) => {
                "the node's secret is not the registry's: `registry.secret_file` must have the same \
                 content at all nodes"
            }
            None => "the registry has no secret: set `registry.secret_file` at its node",
        };
        self.send(id, Frame::Refused { reason: reason.to_string() });
        self.outputs.push_back(Output::Close(id));
    }

    /// A connection sent what has no meaning: it ends.
    pub(super) fn violates(&mut self, id: ConnectionId) {
        self.counters.violations += 1;
        self.outputs.push_back(Output::Close(id));
    }

    /// When [`Members::handle_timeout`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Ends what was silent for too long. Nobody is told of it before [`Members::inform`].
    pub(super) fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, due)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            let times = match due {
                Due::Node(gid) => {
                    self.nodes.get_mut(&gid).map(|node| (node.expires, &mut node.due))
                }
                Due::Connection(id) => {
                    self.connections.get_mut(&id).map(|one| (one.expires, &mut one.due))
                }
            };
            match (times, due) {
                (None, _) => {}
                (Some((expires, again)), _) if expires > now => {
                    *again = expires;
                    self.due.insert((expires, due));
                }
                (Some(_), Due::Node(gid)) => {
                    self.counters.expired += 1;
                    self.remove(gid);
                }
                (Some(_), Due::Connection(id)) => self.outputs.push_back(Output::Close(id)),
            }
        }
    }

    /// Tells those who asked of all nodes, and of what has changed, as far as each takes it: whether
    /// there was anybody.
    pub(super) fn inform(&mut self, now: Time, takes: impl Fn(ConnectionId) -> bool) -> bool {
        let age_ns = now.ns_since(self.started);
        let complete = age_ns >= self.config.ttl_ns.saturating_mul(TTLS_TO_COMPLETE);
        let nodes = (&self.nodes, |node: &Node| node.record);
        self.watchers.inform(nodes, complete, takes, &mut self.outputs)
    }

    /// Takes what is to be done, oldest first.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn welcome(&mut self, id: ConnectionId, expires: Time) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.stage = Stage::Welcome;
            connection.expires = expires;
            self.strangers.remove(&id);
        }
        let ttl_ms = u32::try_from(self.config.ttl_ns / 1_000_000).unwrap_or(u32::MAX);
        let server = Box::new(self.table.server());
        self.send(id, Frame::Welcome { ttl_ms, server });
    }

    fn register(&mut self, id: ConnectionId, gid: Gid, record: NodeRecord, expires: Time) {
        if let Err(reason) = self.admit(id, gid, record) {
            self.counters.refused += 1;
            self.send(id, Frame::Refused { reason });
            self.outputs.push_back(Output::Close(id));
            return;
        }
        let known = self.nodes.get(&gid);
        // Who is looked at too early is looked at again.
        let due = known.map_or(expires, |known| known.due);
        let is_news = known.is_none_or(|known| known.record != record);
        // Whoever knows its record does not become its owner: it could make it leave.
        let owner = known.map(|known| known.owner).filter(|owner| self.owns(*owner, gid));
        self.nodes.insert(gid, Node { record, owner: owner.unwrap_or(id), expires, due });
        self.due.insert((due, Due::Node(gid)));
        self.send(id, Frame::Registered);
        if is_news {
            // Their heartbeats are of the record that was.
            while let Some(other) = self.speaker_for(gid) {
                self.speakers.remove(&(gid, other));
                if let Some(other) = self.connections.get_mut(&other) {
                    other.registered = None;
                }
            }
            self.counters.registered += 1;
            self.tell(gid);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.registered = Some(gid);
            self.speakers.insert((gid, id));
        }
    }

    /// One of the connections that a node registered over.
    fn speaker_for(&self, gid: Gid) -> Option<ConnectionId> {
        let all = (gid, ConnectionId(0))..=(gid, ConnectionId(u64::MAX));
        self.speakers.range(all).next().map(|(_, id)| *id)
    }

    /// Whether a connection lives that a node registered over.
    fn owns(&self, id: ConnectionId, gid: Gid) -> bool {
        self.connections.get(&id).is_some_and(|one| one.registered == Some(gid))
    }

    /// A node's connection ended: another that it registered over speaks for it now.
    fn inherit(&mut self, id: ConnectionId, gid: Gid) {
        let heir = self.speaker_for(gid);
        if let Some(node) = self.nodes.get_mut(&gid).filter(|node| node.owner == id) {
            node.owner = heir.unwrap_or(id);
        }
    }

    /// Writes the record into the table, or says why not.
    fn admit(&mut self, id: ConnectionId, gid: Gid, record: NodeRecord) -> Result<(), String> {
        let Some(connection) = self.connections.get(&id) else {
            return Err("the connection has ended".to_string());
        };
        let address = connection.address;
        if self.config.verify_source && gid.to_ip() != address {
            return Err(format!(
                "a node of GID {gid} must register from its own address, and this came from \
                 {address}; or set `verify_source = false` at the meta server"
            ));
        }
        if let Some(other) = connection.registered.filter(|other| *other != gid) {
            return Err(format!("node {other} registered on this connection"));
        }
        if connection.left {
            return Err("a node that has left comes back over another connection".to_string());
        }
        let known = self.nodes.get(&gid);
        // Others of its host have its address too.
        if let Some(known) = known
            && known.record != record
            && known.owner != id
            && self.owns(known.owner, gid)
        {
            return Err(format!(
                "node {gid} is registered over another connection, which lives; it is replaced \
                 when that has ended or has been silent"
            ));
        }
        if connection.registered.is_some() && known.is_some_and(|known| known.record != record) {
            return Err("a node that changes its record comes over another connection".to_string());
        }
        let limit = self.config.nodes_max;
        if known.is_none() && self.nodes.len() >= limit as usize {
            return Err(format!(
                "the registry is full: {limit} nodes; raise `meta.nodes_max` there"
            ));
        }
        if known.is_none_or(|known| known.record != record) {
            self.table.put(gid, record).inspect_err(|_| self.forget(gid))?;
        }
        Ok(())
    }

    fn leave(&mut self, id: ConnectionId, gid: Gid) {
        // It may have come back over another connection, which owns it now.
        if self.nodes.get(&gid).is_some_and(|node| node.owner == id) {
            self.counters.left += 1;
            self.remove(gid);
        }
    }

    fn remove(&mut self, gid: Gid) {
        if let Some(node) = self.nodes.remove(&gid) {
            self.due.remove(&(node.due, Due::Node(gid)));
        }
        self.table.remove(gid);
        self.tell(gid);
    }

    /// What was put or not, or is put later, is of a node that was told no.
    fn forget(&mut self, gid: Gid) {
        match self.nodes.contains_key(&gid) {
            true => self.remove(gid),
            false => self.table.remove(gid),
        }
    }

    /// Has all who watch be told.
    fn tell(&mut self, gid: Gid) {
        for late in self.watchers.note(gid) {
            self.counters.overflowed += 1;
            self.outputs.push_back(Output::Close(late));
        }
    }

    fn send(&mut self, id: ConnectionId, frame: Frame) {
        self.outputs.push_back(Output::Send(id, frame));
    }
}

#[cfg(test)]
mod tests;
