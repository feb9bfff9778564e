//! Runs look-ups of regions at their owners.

use alloc::vec::Vec;

use elver_kv::Lookup;
use elver_verbs::{AccessFault, Class, Device, Time};

use super::regions::{MrLookup, Stage};
use super::turns::Region;
use crate::datapath::ops::{OpKind, Work};
use crate::discovery::peer::Waiter;
use crate::effects::Effect;
use crate::ids::{OpId, PeerId};
use crate::vqp::{Vqp, Wait};
use crate::{Core, VqpId};

impl<D: Device> Core<D> {
    /// Has a region of a peer's looked up for a VQP, which waits for it; or else fails the VQP, if its
    /// account guesses.
    pub(crate) fn want_mr(&mut self, peer: PeerId, rkey: u32, id: VqpId, now: Time) {
        let Some(vqp) = self.vqps.get_mut(id) else {
            return bug!("a VQP that is gone uses a region");
        };
        let was_there = vqp.was_there(rkey);
        let account = self.clients.all.get(vqp.client).map_or(0, |client| client.limits.account);
        if !was_there && self.discovery.guesses.holds(account, now) {
            self.stats.mr_keys_refused += 1;
            return self.fail_access(id, AccessFault::Distrusted, now);
        }
        vqp.wait = Wait::Mr;
        self.discovery.lookups.mrs.want((peer, rkey), (account, was_there), id, now);
        if self.discovery.lookups.mrs.is_crowded() {
            let vqps = &self.vqps;
            let waits = |region, id| vqps.get(id).is_some_and(|vqp| vqp.waits_for(region));
            self.discovery.lookups.mrs.purge(waits);
        }
        self.start_mr_lookups(now);
    }

    pub(crate) fn start_mr_lookups(&mut self, now: Time) {
        while self.pool.reads.available() > 0
            && let Some((region, account, guess)) = self.discovery.lookups.mrs.next()
        {
            let (peer, rkey) = region;
            if guess && self.discovery.guesses.holds(account, now) {
                // It has guessed too often while this waited.
                self.guess_refused(region);
                continue;
            }
            let record = self.peers.get(peer).and_then(|entry| entry.record);
            if record.is_none() && self.peers.get(peer).is_some() {
                // It did not answer over DC once, but it does over an RC QP.
                self.discovery.lookups.mrs.begin(region, Stage::Node, now);
                self.want_node(peer, Waiter::Region { rkey, account }, now);
                continue;
            }
            let begun = record.and_then(|record| {
                let lookup = Lookup::new(&record.mrs().ok()?, &rkey.to_le_bytes()).ok()?;
                self.read_region(region, account, lookup, now)
            });
            match begun {
                Some(op) => {
                    self.stats.mr_lookups += 1;
                    self.stats.mr_lookup_reads += 1;
                    self.discovery.lookups.mrs.begin(region, Stage::Running(op), now);
                    self.post_op(op, now);
                }
                None => {
                    self.discovery.lookups.mrs.give_up(region);
                    self.effects.push(Effect::NoRegion { peer, rkey });
                }
            }
        }
    }

    /// A region is not looked up for whom it was to be. Another who waits may have it looked up.
    fn guess_refused(&mut self, region: Region) {
        let Some(MrLookup { waiting, .. }) = self.discovery.lookups.mrs.end(region) else {
            return bug!("a region is not looked up that nobody wanted");
        };
        for id in waiting {
            let Some(vqp) = self.vqps.get_mut(id) else { continue };
            if vqp.wait == Wait::Mr && vqp.peer == Some(region.0) {
                vqp.wait = Wait::Nothing;
                self.effects.push(Effect::Pump(id));
            }
        }
    }

    /// Prepares the first READ of a look-up.
    fn read_region(
        &mut self,
        (peer, rkey): Region,
        account: u64,
        lookup: Lookup,
        now: Time,
    ) -> Option<OpId> {
        let buffer = self.pool.reads.take()?;
        let read = lookup.read();
        let work = Work::Read { remote: read.remote, length: read.len, buffer };
        let kind = OpKind::Mr { rkey, account, lookup, asked_at: now };
        let begun = self.start_op(peer, Class::Low, kind, work);
        if begun.is_err() {
            self.pool.reads.give(buffer);
        }
        begun.ok()
    }

    /// Ends look-ups whose owners do not get on. Whether there were any.
    pub(crate) fn expire_mr_lookups(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(((peer, rkey), stage)) = self.discovery.lookups.mrs.next_late(now) {
            if let Stage::Running(op) = stage {
                self.datapath.abandon_op(op);
            }
            self.stats.mr_lookups_late += 1;
            self.discovery.lookups.mrs.give_up((peer, rkey));
            self.effects.push(Effect::NoRegion { peer, rkey });
            busy = true;
        }
        busy
    }

    /// A peer has started anew: none of the regions that it had is there any longer, and what is
    /// being asked about them is not answered by who has them now: they are asked for anew.
    pub(crate) fn forget_regions(&mut self, peer: PeerId) {
        self.regions.of_peers.forget_peer(peer);
        let vqps: Vec<VqpId> = self.vqps_to(peer).map(|(id, _)| id).collect();
        for id in vqps {
            if let Some(vqp) = self.vqps.get_mut(id) {
                (vqp.remote_key, vqp.remote) = Vqp::NO_REMOTE;
            }
        }
        for region in self.discovery.lookups.mrs.running_at(peer) {
            if let Some(Stage::Running(op)) = self.discovery.lookups.mrs.stage(region) {
                self.datapath.abandon_op(op);
                self.discovery.lookups.mrs.enqueue(region);
                self.effects.push(Effect::StartMrLookups);
            }
        }
    }
}

impl Vqp {
    /// Whether a region was there when it was looked up for this VQP, and no other was since.
    fn was_there(&self, rkey: u32) -> bool {
        self.remote_key == rkey && self.remote.until != Vqp::NO_REMOTE.1.until
    }

    /// Whether its next WR waits for the look-up of a region.
    fn waits_for(&self, (peer, rkey): Region) -> bool {
        let next = || self.sq.entry(self.sq.posted).remote();
        self.wait == Wait::Mr
            && self.peer == Some(peer)
            && self.sq.unposted() > 0
            && next().is_some_and(|(at, _)| at.rkey == rkey)
    }
}
