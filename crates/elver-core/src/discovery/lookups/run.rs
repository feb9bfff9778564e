//! Runs look-ups: over which link, at which server, and who goes on when one has ended.

use elver_control::NodeRecord;
use elver_kv::Lookup;
use elver_verbs::{Class, Device, Time};

use crate::datapath::ops::{OpKind, Work};
use crate::discovery::lookups::warms::Warm;
use crate::discovery::peer::Peers;
use crate::discovery::peer::{PeerLookup, Waiter};
use crate::effects::Effect;
use crate::ids::{OpId, PeerId};
use crate::{ClientId, ConnectError, Core, CoreError, Event};

/// How long one meta server may take before the next one is asked, in nanoseconds. Far above what a
/// READ takes, since a spurious change costs only a READ more.
const ATTEMPT_NS: u64 = 100_000_000;
/// A core that looks so much later whether one has was asleep, and the answer may lie before it.
const LATE_NS: u64 = 100_000;
/// What is known of a node is asked for anew, on what a packet says, at most once in this time.
const REFRESH_NS: u64 = 10_000_000;

impl Peers {
    /// Whether a packet may cause, or wait for, a look-up of a node that is remembered.
    pub(crate) fn may_refresh(&mut self, peer: PeerId, now: Time) -> bool {
        let Some(entry) = self.get_mut(peer) else {
            bug!("a peer that is gone is looked up");
            return false;
        };
        if entry.is_looked_up() {
            return true;
        }
        let may = entry.refreshed.is_none_or(|at| now.ns_since(at) >= REFRESH_NS);
        if may {
            entry.refreshed = Some(now);
        }
        may
    }
}

impl<D: Device> Core<D> {
    /// Has a peer looked up, once for all who wait, and at once if as few are under way as may be.
    pub(crate) fn want_node(&mut self, peer: PeerId, waiter: Waiter, now: Time) {
        // One whose message waits may be forgotten, if no VQP is connected to it.
        let Some(entry) = self.peers.get_mut(peer) else { return };
        if entry.waiting.capacity() == 0 {
            entry.waiting = core::mem::take(&mut self.discovery.lookups.no_waiters);
        }
        entry.waiting.push(waiter);
        self.refresh_node(peer, now);
    }

    /// Has a peer looked up, whether or not something is known of it.
    pub(crate) fn refresh_node(&mut self, peer: PeerId, now: Time) {
        let Some(entry) = self.peers.get_mut(peer) else {
            return bug!("a peer that is gone is looked up");
        };
        if entry.lookup != PeerLookup::None {
            return;
        }
        entry.lookup = PeerLookup::Queued;
        self.discovery.lookups.nodes.enqueue(peer);
        if self.reaches_meta_server() || self.awaits_meta_link() {
            self.start_lookups(now);
        } else {
            self.effects.push(Effect::SeekMetaLink);
        }
    }

    /// Has a peer looked up that asks for something, at a meta server in any case: one that is being asked
    /// for its record may have sent its own question for ours, and answer only when it has that.
    pub(crate) fn look_up_asker(&mut self, peer: PeerId, now: Time) {
        if let Some(entry) = self.peers.get_mut(peer)
            && matches!(entry.lookup, PeerLookup::Asked(_))
        {
            entry.lookup = PeerLookup::None;
        }
        self.refresh_node(peer, now);
    }

    /// The look-up of a peer has ended: those who wait for it go on next.
    pub(crate) fn look_up_ended(&mut self, peer: PeerId, found: Result<NodeRecord, ConnectError>) {
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.lookup = PeerLookup::Ended;
        }
        self.effects.push(Effect::NodeFound { peer, found });
    }

    /// Starts look-ups of nodes that wait, in order.
    pub(crate) fn start_lookups(&mut self, now: Time) {
        while let Some(peer) = self.discovery.lookups.nodes.next(self.config.storm.lookups_max) {
            if self.awaits_meta_link() {
                return;
            }
            let Some(first) = self.discovery.lookups.servers.preferred() else {
                self.discovery.lookups.nodes.pass();
                self.look_up_ended(peer, Err(ConnectError::NoMetaServer { tried: 0 }));
                continue;
            };
            if self.serves(first) {
                self.discovery.lookups.nodes.pass();
                self.stats.lookups += 1;
                let gid = self.peers.gid_of(peer);
                let found = self.served_record(gid).ok_or(ConnectError::NoSuchNode { gid });
                self.look_up_ended(peer, found);
                continue;
            }
            let Some(buffer) = self.pool.reads.take() else { return };
            self.discovery.lookups.nodes.start();
            self.stats.lookups += 1;
            self.ask(peer, first, 1, buffer, now);
            self.measure_servers(now);
        }
    }

    /// Reads this node's own record at servers that are to be measured, if nobody needs the buffers.
    fn measure_servers(&mut self, now: Time) {
        while self.pool.reads.available() > self.pool.reads.count / 2
            && let Some(index) = self.discovery.lookups.servers.next_probe(now)
            && let Some((via, nodes)) = self.discovery.lookups.servers.get(index)
            && let Ok(lookup) = Lookup::new(&nodes, &self.gid.0)
            && let Some(buffer) = self.pool.reads.take()
        {
            let read = lookup.read();
            let work = Work::Read { remote: read.remote, length: read.len, buffer };
            match self.start_op(via, Class::High, OpKind::Probe { asked_at: now }, work) {
                Ok(op) => {
                    self.stats.meta_probes += 1;
                    self.post_op(op, now);
                }
                Err(_) => {
                    self.pool.reads.give(buffer);
                    // It is not asked for again before it may be reached.
                    self.discovery.lookups.servers.failed(via, now);
                }
            }
        }
    }

    /// The READ of a server that is measured has ended.
    pub(crate) fn probe_ended(&mut self, id: OpId, ok: bool, now: Time) {
        let Some(op) = self.end_op(id) else { return bug!("an operation that has ended is gone") };
        let OpKind::Probe { asked_at } = op.kind else { return bug!("a probe is none") };
        if ok {
            self.discovery.lookups.servers.answered(op.peer, now.ns_since(asked_at));
        } else {
            self.discovery.lookups.servers.failed(op.peer, now);
        }
    }

    /// Asks a meta server for a peer, or else another one.
    pub(crate) fn ask(&mut self, peer: PeerId, server: u32, tried: u32, buffer: u32, now: Time) {
        if !self.asks(peer, server, tried, buffer, now) {
            self.ask_next(peer, server, tried, now);
        }
    }

    /// Asks a meta server for a peer; returns whether it can be asked.
    fn asks(&mut self, peer: PeerId, server: u32, tried: u32, buffer: u32, now: Time) -> bool {
        let Some((via, nodes)) = self.discovery.lookups.servers.get(server) else {
            self.pool.reads.give(buffer);
            return false;
        };
        let gid = self.peers.gid_of(peer);
        let begun = Lookup::new(&nodes, &gid.0).ok().and_then(|lookup| {
            let read = lookup.read();
            let work = Work::Read { remote: read.remote, length: read.len, buffer };
            let kind = OpKind::Node { node: peer, lookup, asked_at: now };
            self.start_op(via, Class::High, kind, work).ok()
        });
        let Some(op) = begun else {
            self.pool.reads.give(buffer);
            return false;
        };
        self.stats.lookup_reads += 1;
        self.expect_answer(peer, (op, tried, server), false, now);
        self.post_op(op, now);
        true
    }

    /// A meta server has so long from now on to answer an operation.
    fn expect_answer(
        &mut self,
        peer: PeerId,
        (op, tried, server): (OpId, u32, u32),
        late: bool,
        now: Time,
    ) {
        let deadline = now.saturating_add_ns(ATTEMPT_NS);
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.lookup = PeerLookup::Running { op, tried, server, deadline, late };
        }
        self.discovery.lookups.nodes.expect_by(deadline, peer);
    }

    /// A meta server gave no answer: the next one is asked, and another one first from now on.
    pub(crate) fn ask_next(&mut self, peer: PeerId, mut server: u32, mut tried: u32, now: Time) {
        let count = self.discovery.lookups.servers.len();
        loop {
            if let Some((silent, _)) = self.discovery.lookups.servers.get(server) {
                self.discovery.lookups.servers.failed(silent, now);
            }
            if tried >= count {
                self.discovery.lookups.nodes.end();
                return self.look_up_ended(peer, Err(ConnectError::NoMetaServer { tried: count }));
            }
            self.stats.lookups_failed_over += 1;
            let Some(buffer) = self.pool.reads.take() else {
                // Buffers of given-up look-ups come back when their READs end: it waits, first.
                if let Some(entry) = self.peers.get_mut(peer) {
                    entry.lookup = PeerLookup::Queued;
                }
                return self.discovery.lookups.nodes.put_back(peer);
            };
            (server, tried) = ((server + 1) % count, tried + 1);
            if self.asks(peer, server, tried, buffer, now) {
                return;
            }
        }
    }

    /// Whether a meta server has another table than the one that was asked, by its key.
    pub(crate) fn is_news(&self, server: u32, table: u32) -> bool {
        self.discovery.lookups.servers.get(server).is_some_and(|(_, nodes)| nodes.rkey() != table)
    }

    /// What a peer is now was told while it is being looked up: what is on its way may be what it was.
    pub(crate) fn overtake_lookup(&mut self, peer: PeerId, record: Option<NodeRecord>, now: Time) {
        let lookup = self.peers.get(peer).map(|entry| entry.lookup);
        let Some(PeerLookup::Running { op, tried, server, .. }) = lookup else { return };
        self.datapath.abandon_op(op);
        match record {
            Some(record) => {
                self.discovery.lookups.nodes.end();
                self.look_up_ended(peer, Ok(record));
            }
            None => match self.pool.reads.take() {
                Some(buffer) => self.ask(peer, server, tried, buffer, now),
                None => self.ask_next(peer, server, tried, now),
            },
        }
    }

    /// Gives up look-ups that take too long.
    pub(crate) fn expire_lookups(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some((due, peer)) = {
            let peers = &self.peers;
            self.discovery.lookups.nodes.next_late(now, |peer| peers.get(peer)?.lookup.deadline())
        } {
            let lookup = self.peers.get(peer).map(|entry| entry.lookup);
            let Some(PeerLookup::Running { op, tried, server, late, .. }) = lookup else {
                bug!("a look-up is late that does not run");
                continue;
            };
            if !late && now.ns_since(due) > LATE_NS {
                self.expect_answer(peer, (op, tried, server), true, now);
                continue;
            }
            self.datapath.abandon_op(op);
            self.ask_next(peer, server, tried, now);
            busy = true;
        }
        busy
    }

    /// A `warm` call begins, for so many peers. Returns its number.
    pub(crate) fn begin_warm(
        &mut self,
        client: ClientId,
        token: u64,
        left: u32,
    ) -> Result<u32, CoreError> {
        let account = self.clients.open_client(client)?.limits.account;
        let begun = self.discovery.lookups.warms.begin((client, account), token, left);
        let limit = |limit| CoreError::Limit { what: "warm calls", limit, setting: "warm" };
        begun.map_err(|most| limit(most as u64))
    }

    /// One of a `warm` call's peers is at hand, or cannot be.
    pub(crate) fn warmed(&mut self, warm: u32, ok: bool) {
        if let Some(Warm { client, token, ready, failed, .. }) =
            self.discovery.lookups.warms.hear(warm, ok)
            && self.clients.open_client(client).is_ok()
        {
            self.events.push_back(Event::Warmed { client, token, ready, failed });
        }
    }
}
