use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::{Gid, Time};

use super::frame::Frame;
use super::seal::{Nonce, Seals};
use super::secret::Secret;

/// A registry is taken to have heard from all nodes when it is this many times to live old.
const TTLS_TO_COMPLETE: u64 = 3;
/// Nodes of a list that are told at a turn.
const LISTED_AT_ONCE: usize = 256;

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

/// A connection, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(pub(super) u64);

/// What the server is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Send(ConnectionId, Frame),
    /// After what was sent before.
    Close(ConnectionId),
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
    strangers: u32,
    by_address: BTreeMap<IpAddr, u32>,
    /// Who registered which node.
    speakers: BTreeSet<(Gid, ConnectionId)>,
    /// Who is told of changes.
    watchers: BTreeSet<ConnectionId>,
    /// Who is to be told of all nodes, and of which it was told last.
    lists: BTreeMap<ConnectionId, Option<Gid>>,
    /// At most one entry for each node and each connection, never too late; it may be too early.
    due: BinaryHeap<Reverse<(Time, Due)>>,
    outputs: VecDeque<Output>,
    pub(super) counters: RegistryCounters,
}

#[derive(Debug)]
struct Node {
    record: NodeRecord,
    /// Whose heartbeats count.
    owner: ConnectionId,
    expires: Time,
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
        Members {
            config,
            table,
            started: now,
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            strangers: 0,
            by_address: BTreeMap::new(),
            speakers: BTreeSet::new(),
            watchers: BTreeSet::new(),
            lists: BTreeMap::new(),
            due: BinaryHeap::new(),
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
        let from_there = self.by_address.get(&address).copied().unwrap_or(0);
        if self.connections.len() >= self.config.connections_max as usize
            || from_there >= self.config.connections_per_address
            || self.strangers >= self.config.strangers_max
        {
            self.counters.turned_away += 1;
            return false;
        }
        self.by_address.insert(address, from_there + 1);
        self.strangers += 1;
        let expires = now.saturating_add_ns(self.config.ttl_ns);
        let connection = Connection {
            address,
            stage: Stage::Silent,
            nonce,
            seals: None,
            registered: None,
            left: false,
            expires,
        };
        self.connections.insert(id, connection);
        self.due.push(Reverse((expires, Due::Connection(id))));
        true
    }

    /// A connection ended. Its node may come back with another until its time to live runs out.
    pub(super) fn closed(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if connection.stage != Stage::Welcome {
            self.strangers -= 1;
        }
        self.watchers.remove(&id);
        self.lists.remove(&id);
        if let Some(gid) = connection.registered {
            self.speakers.remove(&(gid, id));
            self.inherit(id, gid);
        }
        if let Some(count) = self.by_address.get_mut(&connection.address) {
            *count -= 1;
            if *count == 0 {
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
                self.watchers.remove(&id);
                self.lists.remove(&id);
                if on {
                    self.watchers.insert(id);
                    self.lists.insert(id, None);
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
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Ends what was silent for too long.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        while let Some(&Reverse((at, due))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            let expires = match due {
                Due::Node(gid) => self.nodes.get(&gid).map(|node| node.expires),
                Due::Connection(id) => self.connections.get(&id).map(|one| one.expires),
            };
            match (expires, due) {
                (None, _) => {}
                (Some(expires), _) if expires > now => self.due.push(Reverse((expires, due))),
                (Some(_), Due::Node(gid)) => {
                    self.counters.expired += 1;
                    self.remove(gid);
                }
                (Some(_), Due::Connection(id)) => self.outputs.push_back(Output::Close(id)),
            }
        }
    }

    /// Tells those who asked of some nodes more, as far as each takes it: whether there was anybody.
    /// News come in between, so that a list is what there was when it ended.
    pub(super) fn list(&mut self, now: Time, takes: impl Fn(ConnectionId) -> bool) -> bool {
        let age_ns = now.ns_since(self.started);
        let complete = age_ns >= self.config.ttl_ns.saturating_mul(TTLS_TO_COMPLETE);
        let mut told = false;
        let Members { lists, nodes, outputs, .. } = self;
        lists.retain(|&id, last| {
            if !takes(id) {
                return true;
            }
            told = true;
            if last.is_none() {
                outputs.push_back(Output::Send(id, Frame::ListBegin));
            }
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let mut rest = nodes.range((from, Bound::Unbounded));
            for (&gid, node) in rest.by_ref().take(LISTED_AT_ONCE) {
                let frame = Frame::Node { gid, record: Some(node.record) };
                outputs.push_back(Output::Send(id, frame));
                *last = Some(gid);
            }
            let more = rest.next().is_some();
            if !more {
                outputs.push_back(Output::Send(id, Frame::ListEnd { complete }));
            }
            more
        });
        told
    }

    /// Takes what is to be done, oldest first.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn welcome(&mut self, id: ConnectionId, expires: Time) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.stage = Stage::Welcome;
            connection.expires = expires;
            self.strangers -= 1;
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
        let is_new = known.is_none();
        let is_news = known.is_none_or(|known| known.record != record);
        // Whoever knows its record does not become its owner: it could make it leave.
        let owner = known.map(|known| known.owner).filter(|owner| self.owns(*owner, gid));
        self.nodes.insert(gid, Node { record, owner: owner.unwrap_or(id), expires });
        if is_new {
            self.due.push(Reverse((expires, Due::Node(gid))));
        }
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
            self.tell(gid, Some(record));
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
            self.table.put(gid, record)?;
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
        self.nodes.remove(&gid);
        self.table.remove(gid);
        self.tell(gid, None);
    }

    /// Tells all who watch.
    fn tell(&mut self, gid: Gid, record: Option<NodeRecord>) {
        for &id in &self.watchers {
            self.outputs.push_back(Output::Send(id, Frame::Node { gid, record }));
        }
    }

    fn send(&mut self, id: ConnectionId, frame: Frame) {
        self.outputs.push_back(Output::Send(id, frame));
    }
}

#[cfg(test)]
mod tests;
