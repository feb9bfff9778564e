//! What READs of look-ups have found, and who goes on then.

use elver_control::{NodeRecord, Terms};
use elver_kv::Step;
use elver_verbs::{AccessFault, Device, Memory, Time, WcStatus};

use crate::datapath::ops::{Op, OpKind, Work};
use crate::discovery::lookups::regions::{MrLookup, Stage};
use crate::discovery::lookups::turns::Region;
use crate::discovery::peer::{PeerLookup, Waiter};
use crate::effects::Effect;
use crate::ids::{OpId, PeerId};
use crate::memory::mr_store::RemoteMr;
use crate::vqp::Wait;
use crate::{ConnectError, Core};

impl<D: Device> Core<D> {
    /// A READ of a look-up has ended.
    pub(crate) fn complete_lookup(&mut self, id: OpId, ok: bool, now: Time) {
        let Some(op) = self.datapath.ops.get_mut(id) else {
            return bug!("an operation that has ended is gone");
        };
        let Op { peer: asked, kind, work, abandoned, .. } = op;
        let Work::Read { remote, length, buffer } = work else {
            return bug!("a look-up reads nothing");
        };
        let (OpKind::Node { lookup, .. } | OpKind::Mr { lookup, .. }) = kind else {
            return bug!("a look-up is none");
        };
        let step = match self.discovery.lookups.cluster.get_mut(..*length as usize) {
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
            self.discovery.lookups.servers.answered(*asked, now.ns_since(*asked_at));
        }
        let (asked, buffer, abandoned, table) = (*asked, *buffer, *abandoned, remote.rkey);
        let (node, region) = match *kind {
            OpKind::Node { node, .. } => (Some(node), None),
            OpKind::Mr { rkey, account, asked_at, .. } => (None, Some((rkey, account, asked_at))),
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
                self.discovery.lookups.nodes.end();
                self.node_found(peer, found, now);
            }
            (_, Some((rkey, account, asked_at))) => {
                self.discovery.lookups.mrs.ended(account, asked, ok, now);
                if abandoned {
                    // Who waited was told, or waits for another one.
                    return self.start_mr_lookups(now);
                }
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
        peer: PeerId,
        found: Result<NodeRecord, ConnectError>,
        now: Time,
    ) {
        let Some(entry) = self.peers.get_mut(peer) else {
            return bug!("a peer that is looked up is gone");
        };
        entry.lookup = PeerLookup::None;
        let mut waiting = core::mem::take(&mut entry.waiting);
        match &found {
            Ok(record) => {
                self.learn(peer, *record, now);
                self.weigh(peer, now);
            }
            Err(ConnectError::NoSuchNode { .. }) if !self.discovery.is_meta_server(peer) => {
                self.doubt(peer)
            }
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
                Waiter::Region { rkey, account } => {
                    self.owner_found((peer, rkey), account, found.is_ok(), now);
                }
                Waiter::Lane(class) => self.lane_found(peer, class, found.is_ok(), now),
                Waiter::Reader(vqp) => self.sender_found(vqp, peer, asked, now),
                Waiter::Notes => self.address_found(peer, found.is_ok(), asked, now),
            }
        }
        self.discovery.lookups.no_waiters = waiting;
        self.peers.rest(peer);
        self.serve_strangers(peer, now);
    }

    /// The owner of a region was looked up, or could not be.
    fn owner_found(&mut self, region: Region, account: u64, found: bool, now: Time) {
        self.discovery.lookups.mrs.ended(account, region.0, false, now);
        // It may have ended meanwhile, and even have begun anew.
        if self.discovery.lookups.mrs.stage(region) == Some(Stage::Node) {
            if found {
                self.discovery.lookups.mrs.enqueue(region);
            } else {
                self.mr_found(region.0, region.1, None, now, now);
            }
        }
        self.start_mr_lookups(now);
    }

    /// The look-up of a region has ended: with the region, with its absence, or without an answer.
    /// WRs that have waited for it may be posted until `last`.
    pub(crate) fn mr_found(
        &mut self,
        peer: PeerId,
        rkey: u32,
        found: Option<Option<RemoteMr>>,
        last: Time,
        now: Time,
    ) {
        let Some(MrLookup { account, waiting, .. }) = self.discovery.lookups.mrs.end((peer, rkey))
        else {
            return bug!("a region was found that nobody looks up");
        };
        if let Some(None) = found {
            self.stats.mr_keys_wrong += 1;
            self.discovery.guesses.wrong(account, now);
        }
        match found {
            Some(Some(mr)) => self.regions.of_peers.put(peer, rkey, mr),
            _ => self.regions.of_peers.forget(peer, rkey),
        }
        for id in waiting {
            let Some(vqp) = self.vqps.get_mut(id) else { continue };
            if vqp.wait != Wait::Mr || vqp.peer != Some(peer) {
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
                self.effects.push(Effect::Pump(id));
                continue;
            }
            match found {
                Some(Some(mr)) if now < last => {
                    // The region counts for this WR even if its lease is over by now, or a lease
                    // shorter than a READ would let nobody through.
                    (vqp.remote_key, vqp.remote) =
                        (rkey, RemoteMr { until: mr.until.max(Time(now.0 + 1)), ..mr });
                    self.effects.push(Effect::Pump(id));
                }
                // This engine stood still meanwhile, and the region may be gone: it asks again.
                Some(Some(_)) => self.effects.push(Effect::Pump(id)),
                Some(None) => self.fail_access(id, AccessFault::Key, now),
                None => self.fail_next(id, WcStatus::RetryExcErr, now),
            }
        }
    }
}
