use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::IpAddr;

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::{Gid, Time};

use super::frame::Frame;

/// A registry is taken to have heard from all nodes when it is this many times to live old.
const TTLS_TO_COMPLETE: u64 = 3;

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
    /// Whether a node may register only from the address that its GID stands for.
    pub verify_source: bool,
}

impl Default for RegistryConfig {
    fn default() -> RegistryConfig {
        RegistryConfig {
            ttl_ns: 3_000_000_000,
            nodes_max: 8_192,
            connections_max: 8_192,
            connections_per_address: 64,
            verify_source: true,
        }
    }
}

/// The meta server's table of nodes, as the registry writes it.
pub trait NodeTable: Send {
    /// The meta server that the table belongs to.
    fn server(&self) -> MetaServer;

    /// Writes a node's record. Peers find it when this has returned. The error tells the node why
    /// not.
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
    /// Connections that were turned away, for there were too many.
    pub turned_away: u64,
    /// Connections that ended for what they sent.
    pub violations: u64,
    /// Connections that ended because they did not take what they asked for.
    pub overflowed: u64,
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
    by_address: BTreeMap<IpAddr, u32>,
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
    greeted: bool,
    registered: Option<Gid>,
    /// Its node has left, and does not come back over it: nobody makes all others hear of a node
    /// without end.
    left: bool,
    watches: bool,
    /// It is to be told of all nodes.
    wants_list: bool,
    expires: Time,
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
            by_address: BTreeMap::new(),
            due: BinaryHeap::new(),
            outputs: VecDeque::new(),
            counters: RegistryCounters::default(),
        }
    }

    /// A connection came; whether it may stay.
    pub(super) fn open(&mut self, id: ConnectionId, address: IpAddr, now: Time) -> bool {
        let address = address.to_canonical();
        let from_there = self.by_address.get(&address).copied().unwrap_or(0);
        if self.connections.len() >= self.config.connections_max as usize
            || from_there >= self.config.connections_per_address
        {
            self.counters.turned_away += 1;
            return false;
        }
        self.by_address.insert(address, from_there + 1);
        let expires = now.saturating_add_ns(self.config.ttl_ns);
        let connection = Connection {
            address,
            greeted: false,
            registered: None,
            left: false,
            watches: false,
            wants_list: false,
            expires,
        };
        self.connections.insert(id, connection);
        self.due.push(Reverse((expires, Due::Connection(id))));
        true
    }

    /// A connection ended. Its node may come back with another until its time to live runs out.
    pub(super) fn closed(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Some(gid) = connection.registered {
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
        connection.expires = expires;
        if let Some(node) = connection.registered.and_then(|gid| self.nodes.get_mut(&gid)) {
            node.expires = expires;
        }
        match (connection.greeted, frame) {
            (false, Frame::Hello) => {
                connection.greeted = true;
                let ttl_ms = u32::try_from(self.config.ttl_ns / 1_000_000).unwrap_or(u32::MAX);
                let server = Box::new(self.table.server());
                self.send(id, Frame::Welcome { ttl_ms, server });
            }
            (true, Frame::Register { gid, record }) => self.register(id, gid, record, expires),
            (true, Frame::Heartbeat) => self.send(id, Frame::Heartbeat),
            (true, Frame::Watch { on }) => {
                connection.watches = on;
                connection.wants_list = on;
            }
            (true, Frame::Leave) => {
                if let Some(gid) = connection.registered.take() {
                    connection.left = true;
                    self.leave(id, gid);
                }
            }
            _ => self.violates(id),
        }
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

    /// Tells those of all nodes who asked since the last call: once, however often they asked.
    pub(super) fn list(&mut self, now: Time) {
        let age_ns = now.ns_since(self.started);
        let complete = age_ns >= self.config.ttl_ns.saturating_mul(TTLS_TO_COMPLETE);
        for (&id, connection) in &mut self.connections {
            if !std::mem::take(&mut connection.wants_list) {
                continue;
            }
            self.outputs.push_back(Output::Send(id, Frame::ListBegin));
            for (&gid, node) in &self.nodes {
                let frame = Frame::Node { gid, record: Some(node.record) };
                self.outputs.push_back(Output::Send(id, frame));
            }
            self.outputs.push_back(Output::Send(id, Frame::ListEnd { complete }));
        }
    }

    /// Takes what is to be done, oldest first.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
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
            for other in self.connections.values_mut().filter(|one| one.registered == Some(gid)) {
                // Its heartbeats are of the record that was.
                other.registered = None;
            }
            self.counters.registered += 1;
            self.tell(gid, Some(record));
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.registered = Some(gid);
        }
    }

    /// Whether a connection lives that a node registered over.
    fn owns(&self, id: ConnectionId, gid: Gid) -> bool {
        self.connections.get(&id).is_some_and(|one| one.registered == Some(gid))
    }

    /// A node's connection ended: another that it registered over speaks for it now.
    fn inherit(&mut self, id: ConnectionId, gid: Gid) {
        let Some(node) = self.nodes.get_mut(&gid).filter(|node| node.owner == id) else { return };
        let heir = self.connections.iter().find(|(_, one)| one.registered == Some(gid));
        if let Some((heir, _)) = heir {
            node.owner = *heir;
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
            return Err(format!("the registry is full: {limit} nodes; raise `nodes_max` there"));
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
        for (&id, connection) in &self.connections {
            if connection.watches {
                self.outputs.push_back(Output::Send(id, Frame::Node { gid, record }));
            }
        }
    }

    fn send(&mut self, id: ConnectionId, frame: Frame) {
        self.outputs.push_back(Output::Send(id, frame));
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{gid, meta_server, record};
    use super::*;

    const TTL_NS: u64 = 1_000;

    struct Table(BTreeMap<Gid, NodeRecord>);

    impl NodeTable for Table {
        fn server(&self) -> MetaServer {
            meta_server(1)
        }

        fn put(&mut self, gid: Gid, record: NodeRecord) -> Result<(), String> {
            self.0.insert(gid, record);
            Ok(())
        }

        fn remove(&mut self, gid: Gid) {
            self.0.remove(&gid);
        }
    }

    fn members() -> Members<Table> {
        let config = RegistryConfig {
            ttl_ns: TTL_NS,
            nodes_max: 3,
            connections_max: 4,
            connections_per_address: 2,
            verify_source: true,
        };
        Members::new(config, Table(BTreeMap::new()), Time(0))
    }

    fn address(number: u8) -> IpAddr {
        gid(number).to_ip()
    }

    fn greet(members: &mut Members<Table>, id: u64, number: u8, now: u64) -> ConnectionId {
        let id = ConnectionId(id);
        assert!(members.open(id, address(number), Time(now)));
        members.handle(id, Frame::Hello, Time(now));
        assert!(matches!(members.poll_output(), Some(Output::Send(_, Frame::Welcome { .. }))));
        id
    }

    fn register(members: &mut Members<Table>, id: ConnectionId, number: u8, tag: u32, now: u64) {
        let frame = Frame::Register { gid: gid(number), record: record(tag) };
        members.handle(id, frame, Time(now));
        assert_eq!(members.poll_output(), Some(Output::Send(id, Frame::Registered)));
    }

    fn outputs(members: &mut Members<Table>) -> Vec<Output> {
        std::iter::from_fn(|| members.poll_output()).collect()
    }

    #[test]
    fn a_silent_node_is_removed_and_others_hear_of_it() {
        let mut members = members();
        let watcher = greet(&mut members, 1, 1, 0);
        // However often it asks, it is told once.
        for _ in 0..100 {
            members.handle(watcher, Frame::Watch { on: true }, Time(0));
        }
        members.list(Time(0));
        let list = [Frame::ListBegin, Frame::ListEnd { complete: false }];
        assert_eq!(outputs(&mut members), list.map(|frame| Output::Send(watcher, frame)));
        let id = greet(&mut members, 2, 2, 10);
        register(&mut members, id, 2, 5, 10);
        let came = Frame::Node { gid: gid(2), record: Some(record(5)) };
        assert_eq!(outputs(&mut members), [Output::Send(watcher, came)]);

        // Its heartbeats keep it, also when the connection it owns is looked at late.
        members.handle(id, Frame::Heartbeat, Time(900));
        members.handle(watcher, Frame::Heartbeat, Time(900));
        outputs(&mut members);
        members.handle_timeout(Time(1_800));
        assert_eq!(outputs(&mut members), []);
        assert_eq!(members.table.0.len(), 1);

        // Its connection ends: that is no death yet.
        members.closed(id);
        members.handle(watcher, Frame::Heartbeat, Time(1_850));
        members.handle_timeout(Time(1_899));
        assert_eq!(members.table.0.len(), 1);
        outputs(&mut members);
        assert_eq!(members.poll_timeout(), Some(Time(1_900)));
        members.handle_timeout(Time(1_900));
        let went = Frame::Node { gid: gid(2), record: None };
        assert_eq!(outputs(&mut members), [Output::Send(watcher, went)]);
        assert_eq!(members.table.0.len(), 0);
        assert_eq!(members.counters.expired, 1);
    }

    #[test]
    fn a_node_that_comes_back_takes_its_place() {
        let mut members = members();
        let old = greet(&mut members, 1, 2, 0);
        register(&mut members, old, 2, 5, 0);
        members.closed(old);
        let new = greet(&mut members, 2, 2, 100);
        register(&mut members, new, 2, 6, 100);
        assert_eq!(members.table.0[&gid(2)], record(6));
        members.handle_timeout(Time(1_099));
        assert_eq!(members.table.0.len(), 1);
        members.handle_timeout(Time(1_100));
        assert_eq!(members.table.0.len(), 0);
    }

    #[test]
    fn another_of_its_host_neither_replaces_nor_removes_a_node_that_lives() {
        let mut members = members();
        let owner = greet(&mut members, 1, 2, 0);
        register(&mut members, owner, 2, 5, 0);
        let other = greet(&mut members, 2, 2, 100);
        members.handle(other, Frame::Register { gid: gid(2), record: record(6) }, Time(100));
        assert!(matches!(members.poll_output(), Some(Output::Send(_, Frame::Refused { .. }))));
        assert_eq!(members.poll_output(), Some(Output::Close(other)));
        members.closed(other);
        // With the right record neither.
        let other = greet(&mut members, 3, 2, 100);
        register(&mut members, other, 2, 5, 100);
        members.handle(other, Frame::Leave, Time(100));
        assert_eq!(members.table.0[&gid(2)], record(5));
        // It has left, and does not come and go without end.
        members.handle(other, Frame::Register { gid: gid(2), record: record(5) }, Time(100));
        assert!(matches!(members.poll_output(), Some(Output::Send(_, Frame::Refused { .. }))));
    }

    #[test]
    fn a_node_with_two_connections_lives_while_one_does() {
        let mut members = members();
        let old = greet(&mut members, 1, 2, 0);
        register(&mut members, old, 2, 5, 0);
        let new = greet(&mut members, 2, 2, 500);
        register(&mut members, new, 2, 5, 500);
        members.handle(new, Frame::Heartbeat, Time(1_400));
        members.handle_timeout(Time(1_500));
        members.closed(old);
        members.handle_timeout(Time(2_399));
        assert_eq!(members.table.0.len(), 1);
        members.handle(new, Frame::Leave, Time(2_399));
        assert_eq!(members.table.0.len(), 0);
    }

    #[test]
    fn the_same_record_again_is_no_news() {
        let mut members = members();
        let watcher = greet(&mut members, 1, 1, 0);
        let id = greet(&mut members, 2, 2, 0);
        register(&mut members, id, 2, 5, 0);
        members.handle(watcher, Frame::Watch { on: true }, Time(0));
        let again = greet(&mut members, 3, 2, 1);
        register(&mut members, again, 2, 5, 1);
        assert_eq!(outputs(&mut members), []);
    }

    #[test]
    fn a_node_may_not_flap() {
        let mut members = members();
        let id = greet(&mut members, 1, 2, 0);
        register(&mut members, id, 2, 5, 0);
        register(&mut members, id, 2, 5, 0);
        members.handle(id, Frame::Register { gid: gid(2), record: record(6) }, Time(0));
        assert!(matches!(members.poll_output(), Some(Output::Send(_, Frame::Refused { .. }))));
        assert_eq!(members.table.0[&gid(2)], record(5));
    }

    #[test]
    fn strangers_and_too_many_are_refused() {
        let mut members = members();
        let id = greet(&mut members, 1, 1, 0);
        members.handle(id, Frame::Register { gid: gid(2), record: record(1) }, Time(0));
        let outs = outputs(&mut members);
        assert!(matches!(&outs[..], [Output::Send(_, Frame::Refused { .. }), Output::Close(_)]));
        assert!(members.open(ConnectionId(2), address(1), Time(0)));
        assert!(!members.open(ConnectionId(3), address(1), Time(0)), "two from one address");
        assert!(members.open(ConnectionId(4), address(2), Time(0)));
        assert!(members.open(ConnectionId(5), address(3), Time(0)));
        assert!(!members.open(ConnectionId(6), address(4), Time(0)), "four in all");
        members.closed(ConnectionId(2));
        assert!(members.open(ConnectionId(7), address(1), Time(0)));
        assert_eq!(members.counters.turned_away, 2);
        assert!(members.table.0.is_empty());
    }

    #[test]
    fn a_full_registry_refuses_new_nodes_only() {
        let mut members = members();
        members.config.connections_max = 100;
        for number in 1..=3 {
            let id = greet(&mut members, u64::from(number), number, 0);
            register(&mut members, id, number, 1, 0);
        }
        members.closed(ConnectionId(3));
        let id = greet(&mut members, 4, 4, 0);
        members.handle(id, Frame::Register { gid: gid(4), record: record(1) }, Time(0));
        let outs = outputs(&mut members);
        assert!(matches!(&outs[0], Output::Send(_, Frame::Refused { .. })));
        let id = greet(&mut members, 5, 3, 0);
        register(&mut members, id, 3, 2, 0);
    }

    #[test]
    fn a_connection_that_says_nothing_or_nonsense_ends() {
        let mut members = members();
        let id = ConnectionId(1);
        assert!(members.open(id, address(1), Time(0)));
        members.handle(id, Frame::Heartbeat, Time(0));
        assert_eq!(outputs(&mut members), [Output::Close(id)]);
        assert_eq!(members.counters.violations, 1);
        let silent = ConnectionId(2);
        assert!(members.open(silent, address(2), Time(0)));
        members.handle_timeout(Time(TTL_NS));
        assert_eq!(outputs(&mut members), [Output::Close(id), Output::Close(silent)]);
    }

    #[test]
    fn a_list_is_complete_when_all_had_time_to_register() {
        let mut members = members();
        let id = greet(&mut members, 1, 1, 0);
        register(&mut members, id, 1, 1, 0);
        members.handle(id, Frame::Watch { on: true }, Time(3 * TTL_NS));
        members.list(Time(3 * TTL_NS));
        let outs = outputs(&mut members);
        let node = Frame::Node { gid: gid(1), record: Some(record(1)) };
        let list = [Frame::ListBegin, node, Frame::ListEnd { complete: true }];
        assert_eq!(outs, list.map(|frame| Output::Send(id, frame)));
    }
}
