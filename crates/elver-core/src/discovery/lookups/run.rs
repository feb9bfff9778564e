//! Runs look-ups: over which link, at which server, and who goes on when one has ended.

use alloc::vec::Vec;

use elver_control::{Class, NodeRecord, Terms};
use elver_kv::{Lookup, Step};
use elver_verbs::{AccessFault, Device, Memory, Time, WcStatus};

use super::{ATTEMPT_NS, WARMS_MAX, Warm};
use crate::datapath::ops::{Op, OpKind, Work};
use crate::discovery::peer::{PeerLookup, Waiter};
use crate::memory::mr_store::RemoteMr;
use crate::vqp::{Vqp, Wait};
use crate::{ClientId, ConnectError, Core, Event};

impl<D: Device> Core<D> {
    /// Has a peer looked up, once for all who wait, and at once if as few are under way as may be.
    pub(crate) fn want_node(&mut self, peer: u32, waiter: Waiter, now: Time) {
        // One whose message waits may be forgotten, if no VQP is connected to it.
        let Some(entry) = self.peers.get_mut(peer) else { return };
        if entry.waiting.capacity() == 0 {
            entry.waiting = core::mem::take(&mut self.lookups.no_waiters);
        }
        entry.waiting.push(waiter);
        self.refresh_node(peer, now);
    }

    /// Has a peer looked up, whether or not something is known of it.
    pub(crate) fn refresh_node(&mut self, peer: u32, now: Time) {
        let Some(entry) = self.peers.get_mut(peer) else {
            return bug!("a peer that is gone is looked up");
        };
        if entry.lookup != PeerLookup::None {
            return;
        }
        entry.lookup = PeerLookup::Queued;
        self.lookups.queue.push_back(peer);
        self.seek_meta_link(now);
        self.start_lookups(now);
    }

    /// Starts look-ups of nodes that wait, in order.
    pub(crate) fn start_lookups(&mut self, now: Time) {
        while self.lookups.running < self.config.storm.lookups_max {
            let Some(&peer) = self.lookups.queue.front() else { return };
            let first = self.lookups.servers.preferred();
            if self.awaits_meta_link() {
                return;
            }
            if self.lookups.servers.len() == 0 {
                self.lookups.queue.pop_front();
                self.node_found(peer, Err(ConnectError::NoMetaServer { tried: 0 }), now);
                continue;
            }
            let Some(buffer) = self.pool.reads.take() else { return };
            self.lookups.queue.pop_front();
            self.lookups.running += 1;
            self.stats.lookups += 1;
            self.ask(peer, first, 1, buffer, now);
            self.measure_servers(now);
        }
    }

    /// Reads this node's own record at servers that are to be measured, if nobody needs the buffers.
    fn measure_servers(&mut self, now: Time) {
        while self.pool.reads.available() > self.pool.reads.count / 2
            && let Some(index) = self.lookups.servers.next_probe(now)
            && let Some((via, nodes)) = self.lookups.servers.get(index)
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
                    self.lookups.servers.failed(via, now);
                }
            }
        }
    }

    /// The READ of a server that is measured has ended.
    pub(crate) fn probe_ended(&mut self, id: u32, ok: bool, now: Time) {
        let Some(op) = self.end_op(id) else { return bug!("an operation that has ended is gone") };
        let OpKind::Probe { asked_at } = op.kind else { return bug!("a probe is none") };
        if ok {
            self.lookups.servers.answered(op.peer, now.ns_since(asked_at));
        } else {
            self.lookups.servers.failed(op.peer, now);
        }
    }

    /// Asks a meta server for a peer.
    fn ask(&mut self, peer: u32, server: u32, tried: u32, buffer: u32, now: Time) {
        let Some((via, nodes)) = self.lookups.servers.get(server) else {
            self.pool.reads.give(buffer);
            return self.ask_next(peer, server, tried, now);
        };
        let gid = self.peers.get(peer).map(|entry| entry.gid).unwrap_or_default();
        let begun = Lookup::new(&nodes, &gid.0).ok().and_then(|lookup| {
            let read = lookup.read();
            let work = Work::Read { remote: read.remote, length: read.len, buffer };
            let kind = OpKind::Node { node: peer, lookup, asked_at: now };
            self.start_op(via, Class::High, kind, work).ok()
        });
        let Some(op) = begun else {
            self.pool.reads.give(buffer);
            return self.ask_next(peer, server, tried, now);
        };
        self.stats.lookup_reads += 1;
        let deadline = now.saturating_add_ns(ATTEMPT_NS);
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.lookup = PeerLookup::Running { op, tried, server, deadline };
        }
        self.lookups.deadlines.push_back((deadline, peer));
        self.post_op(op, now);
    }

    /// A meta server gave no answer: the next one is asked, and another one first from now on.
    fn ask_next(&mut self, peer: u32, server: u32, tried: u32, now: Time) {
        let count = self.lookups.servers.len();
        if let Some((silent, _)) = self.lookups.servers.get(server) {
            self.lookups.servers.failed(silent, now);
        }
        if tried >= count {
            count_off!(self.lookups.running, 1);
            self.node_found(peer, Err(ConnectError::NoMetaServer { tried: count }), now);
            return self.start_lookups(now);
        }
        self.stats.lookups_failed_over += 1;
        match self.pool.reads.take() {
            Some(buffer) => self.ask(peer, (server + 1) % count, tried + 1, buffer, now),
            None => {
                // Buffers of given-up look-ups come back when their READs end: it waits, first.
                count_off!(self.lookups.running, 1);
                if let Some(entry) = self.peers.get_mut(peer) {
                    entry.lookup = PeerLookup::Queued;
                }
                self.lookups.queue.push_front(peer);
            }
        }
    }

    /// Whether a meta server has another table than the one that was asked, by its key.
    fn is_news(&self, server: u32, table: u32) -> bool {
        self.lookups.servers.get(server).is_some_and(|(_, nodes)| nodes.rkey() != table)
    }

    /// What a peer is now was told while it is being looked up: what is on its way may be what it was.
    pub(crate) fn overtake_lookup(&mut self, peer: u32, record: Option<NodeRecord>, now: Time) {
        let lookup = self.peers.get(peer).map(|entry| entry.lookup);
        let Some(PeerLookup::Running { op, tried, server, .. }) = lookup else { return };
        if let Some(op) = self.ops.get_mut(op) {
            op.abandoned = true;
        }
        match record {
            Some(record) => {
                count_off!(self.lookups.running, 1);
                self.node_found(peer, Ok(record), now);
                self.start_lookups(now);
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
        while let Some(&(due, peer)) = self.lookups.deadlines.front() {
            let running = self.peers.get(peer).map(|entry| entry.lookup);
            let Some(PeerLookup::Running { op, tried, server, deadline }) = running else {
                self.lookups.deadlines.pop_front();
                continue;
            };
            if deadline != due {
                self.lookups.deadlines.pop_front();
                continue;
            }
            if due > now {
                break;
            }
            self.lookups.deadlines.pop_front();
            if let Some(op) = self.ops.get_mut(op) {
                op.abandoned = true;
            }
            self.ask_next(peer, server, tried, now);
            busy = true;
        }
        busy
    }

    /// A READ of a look-up has ended.
    pub(crate) fn complete_lookup(&mut self, id: u32, ok: bool, now: Time) {
        let Some(op) = self.ops.get_mut(id) else {
            return bug!("an operation that has ended is gone");
        };
        let Op { peer: asked, kind, work, abandoned, .. } = op;
        let Work::Read { remote, length, buffer } = work else {
            return bug!("a look-up reads nothing");
        };
        let (OpKind::Node { lookup, .. } | OpKind::Mr { lookup, .. }) = kind else {
            return bug!("a look-up is none");
        };
        let step = match self.lookups.cluster.get_mut(..*length as usize) {
            Some(bytes) if ok && !*abandoned => {
                let read = self.pool.memory.read(self.pool.reads.offset(*buffer), bytes);
                read.ok().and_then(|()| lookup.feed(bytes).ok())
            }
            _ => None,
        };
        if let Some(Step::Read(read)) = step {
            (*remote, *length) = (read.remote, read.len);
            match kind {
                OpKind::Node { asked_at, .. } => {
                    self.stats.lookup_reads += 1;
                    *asked_at = now;
                }
                OpKind::Mr { asked_at, .. } => {
                    *asked_at = now;
                    self.stats.mr_lookup_reads += 1;
                }
                _ => {}
            }
            return self.post_op(id, now);
        }
        let value = match step {
            Some(Step::Done(value)) => Some(value),
            _ => None,
        };
        if let (OpKind::Node { asked_at, .. }, true) = (&*kind, ok) {
            // Also one that came too late for its look-up tells how far its server is.
            self.lookups.servers.answered(*asked, now.ns_since(*asked_at));
        }
        let (asked, buffer, abandoned, table) = (*asked, *buffer, *abandoned, remote.rkey);
        let (node, region) = match *kind {
            OpKind::Node { node, .. } => (Some(node), None),
            OpKind::Mr { rkey, asked_at, .. } => (None, Some((rkey, asked_at))),
            _ => (None, None),
        };
        self.discard_read(id, asked, buffer);
        match (node, region) {
            (Some(peer), _) if !abandoned => {
                let Some(entry) = self.peers.get(peer) else {
                    return bug!("a peer that is looked up is gone");
                };
                let PeerLookup::Running { tried, server, .. } = entry.lookup else {
                    return bug!("a peer is not looked up that was found");
                };
                let found = match value {
                    Some(None) => Err(ConnectError::NoSuchNode { gid: entry.gid }),
                    Some(Some(value)) => match NodeRecord::decode(&value) {
                        Ok(record) => Ok(record),
                        Err(_) => return self.ask_next(peer, server, tried, now),
                    },
                    None if self.is_news(server, table) => {
                        // What was asked is no more, and what is there now was not.
                        return match self.pool.reads.take() {
                            Some(buffer) => self.ask(peer, server, tried, buffer, now),
                            None => self.ask_next(peer, server, tried, now),
                        };
                    }
                    None => return self.ask_next(peer, server, tried, now),
                };
                count_off!(self.lookups.running, 1);
                self.node_found(peer, found, now);
            }
            (_, Some((rkey, asked_at))) => {
                // What the owner promises counts. It was known when the region was asked for.
                let owner = self.peers.get(asked).and_then(|entry| entry.last);
                let terms = owner.map_or(Terms::default(), |record| record.terms);
                let (lease_ns, post_ns) = terms.post_ns(self.config.flight_ns());
                let until = asked_at.saturating_add_ns(lease_ns);
                let found =
                    value.map(|value| value.and_then(|value| RemoteMr::decode(&value, until)));
                let last = asked_at.saturating_add_ns(post_ns);
                self.mr_found(asked, rkey, found, last, now);
            }
            _ => {}
        }
        self.start_lookups(now);
        self.start_mr_lookups(now);
    }

    /// The look-up of a peer has ended: those who wait for it go on.
    pub(crate) fn node_found(
        &mut self,
        peer: u32,
        found: Result<NodeRecord, ConnectError>,
        now: Time,
    ) {
        let Some(entry) = self.peers.get_mut(peer) else {
            return bug!("a peer that is looked up is gone");
        };
        entry.lookup = PeerLookup::None;
        let mut waiting = core::mem::take(&mut entry.waiting);
        match &found {
            Ok(record) => self.learn(peer, *record, now),
            Err(ConnectError::NoSuchNode { .. }) if !self.is_meta_server(peer) => self.doubt(peer),
            Err(_) => {}
        }
        let asked = matches!(found, Ok(_) | Err(ConnectError::NoSuchNode { .. }));
        for waiter in waiting.drain(..) {
            match waiter {
                Waiter::Vqp { vqp, attempt } => {
                    let result = found.as_ref().map(|_| ()).map_err(ConnectError::clone);
                    self.connect_found(vqp, attempt, peer, result, now);
                }
                Waiter::Warm(warm) => self.warmed(warm, found.is_ok()),
                Waiter::Region(rkey) if found.is_ok() => {
                    self.lookups.mr_queue.push_back((peer, rkey));
                    self.start_mr_lookups(now);
                }
                Waiter::Region(rkey) => self.mr_found(peer, rkey, None, now, now),
                Waiter::Lane(class) => self.lane_found(peer, class, found.is_ok(), now),
                Waiter::Reader(vqp) => self.sender_found(vqp, peer, asked, now),
                Waiter::Notes => self.address_found(peer, found.is_ok(), asked, now),
            }
        }
        self.lookups.no_waiters = waiting;
        self.peers.rest(peer);
        self.serve_strangers(peer, now);
    }

    /// Has a region of a peer's looked up. The VQP waits, if there is one.
    pub(crate) fn want_mr(&mut self, peer: u32, rkey: u32, waiter: Option<u32>, now: Time) {
        if let Some(waiting) = self.lookups.mrs.get_mut(&(peer, rkey)) {
            waiting.extend(waiter);
            return;
        }
        self.lookups.mrs.insert((peer, rkey), waiter.into_iter().collect());
        self.lookups.mr_queue.push_back((peer, rkey));
        self.start_mr_lookups(now);
    }

    fn start_mr_lookups(&mut self, now: Time) {
        while let Some(&(peer, rkey)) = self.lookups.mr_queue.front() {
            let Some(buffer) = self.pool.reads.take() else { return };
            self.lookups.mr_queue.pop_front();
            let record = self.peers.get(peer).and_then(|entry| entry.record);
            if record.is_none() && self.peers.get(peer).is_some() {
                // It did not answer over DC once, but it does over an RC QP.
                self.pool.reads.give(buffer);
                self.want_node(peer, Waiter::Region(rkey), now);
                continue;
            }
            let begun = record.and_then(|record| {
                let lookup = Lookup::new(&record.mrs().ok()?, &rkey.to_le_bytes()).ok()?;
                let read = lookup.read();
                let work = Work::Read { remote: read.remote, length: read.len, buffer };
                let kind = OpKind::Mr { rkey, lookup, asked_at: now };
                self.start_op(peer, Class::Low, kind, work).ok()
            });
            match begun {
                Some(op) => {
                    self.stats.mr_lookups += 1;
                    self.stats.mr_lookup_reads += 1;
                    self.post_op(op, now);
                }
                None => {
                    self.pool.reads.give(buffer);
                    self.mr_found(peer, rkey, None, now, now);
                }
            }
        }
    }

    /// The look-up of a region has ended: with the region, with its absence, or without an answer.
    /// WRs that have waited for it may be posted until `last`.
    fn mr_found(
        &mut self,
        peer: u32,
        rkey: u32,
        found: Option<Option<RemoteMr>>,
        last: Time,
        now: Time,
    ) {
        let Some(waiting) = self.lookups.mrs.remove(&(peer, rkey)) else {
            return bug!("a region was found that nobody looks up");
        };
        match found {
            Some(Some(mr)) => self.store.put(peer, rkey, mr),
            _ => self.store.forget(peer, rkey),
        }
        for id in waiting {
            let Some(vqp) = self.vqps.get_mut(id) else { continue };
            if vqp.wait != Wait::Mr || vqp.peer != peer {
                continue;
            }
            vqp.wait = Wait::Nothing;
            // It may have been connected anew, or its lane failed and an earlier WR is next again:
            // then it asks again when it gets there.
            let next = vqp.sq.unposted() > 0 && {
                let at = vqp.sq.entry(vqp.sq.posted).remote();
                at.is_some_and(|(at, _)| at.rkey == rkey)
            };
            if !next {
                self.pump(id, now);
                continue;
            }
            match found {
                Some(Some(mr)) if now < last => {
                    // The region counts for this WR even if its lease is over by now, or a lease
                    // shorter than a READ would let nobody through.
                    vqp.remote = (rkey, RemoteMr { until: mr.until.max(Time(now.0 + 1)), ..mr });
                    self.pump(id, now);
                }
                // This engine stood still meanwhile, and the region may be gone: it asks again.
                Some(Some(_)) => self.pump(id, now),
                Some(None) => self.fail_access(id, AccessFault::Key, now),
                None => self.fail_next(id, WcStatus::RetryExcErr, now),
            }
        }
    }

    /// A peer has started anew: none of the regions that it had is there any longer, and what is
    /// being asked about them is not answered by who has them now.
    pub(crate) fn forget_regions(&mut self, peer: u32) {
        self.store.forget_peer(peer);
        let vqps: Vec<u32> = self.vqps_to(peer).map(|(id, _)| id).collect();
        for id in vqps {
            if let Some(vqp) = self.vqps.get_mut(id) {
                vqp.remote = Vqp::NO_REMOTE;
            }
        }
        let asks = |op: &Op| op.peer == peer && matches!(op.kind, OpKind::Mr { .. });
        let asked: Vec<u32> =
            self.ops.iter().filter(|(_, op)| asks(op)).map(|(id, _)| id).collect();
        for id in asked {
            if let Some(op) = self.ops.get_mut(id) {
                op.abandoned = true;
            }
        }
    }

    /// A `warm` call begins, for so many peers. Returns its number; none when too many are under way.
    pub(crate) fn begin_warm(&mut self, client: ClientId, token: u64, left: u32) -> Option<u32> {
        let warm = Some(Warm { client, token, left, ready: 0, failed: 0 });
        match self.lookups.warms.iter().position(Option::is_none) {
            Some(at) => {
                self.lookups.warms[at] = warm;
                Some(at as u32)
            }
            None if self.lookups.warms.len() >= WARMS_MAX => None,
            None => {
                self.lookups.warms.push(warm);
                Some(self.lookups.warms.len() as u32 - 1)
            }
        }
    }

    /// One of a `warm` call's peers is at hand, or cannot be.
    pub(crate) fn warmed(&mut self, warm: u32, ok: bool) {
        let Some(slot) = self.lookups.warms.get_mut(warm as usize) else {
            return bug!("a warm call is unknown");
        };
        let Some(entry) = slot else { return bug!("a warm call goes on that has ended") };
        entry.left -= 1;
        if ok {
            entry.ready += 1;
        } else {
            entry.failed += 1;
        }
        if entry.left == 0
            && let Some(Warm { client, token, ready, failed, .. }) = slot.take()
            && self.open_client(client).is_ok()
        {
            self.events.push_back(Event::Warmed { client, token, ready, failed });
        }
    }
}
