//! Registration of clients' memory, and ValidMR, in which peers find it (section 4.2).
//!
//! # When a deregistration is done
//!
//! Its promise is that nobody touches the memory when [`Event::Deregistered`] has come. The device
//! keeps it: the core takes the region from it just before, and from then on its keys open nothing,
//! whatever is on its way or waits in queues anywhere. What is posted too late costs its own VQP an
//! error, and those who share its queue pair a reset of their lane. That is what leases keep rare:
//!
//! - Let the region leave ValidMR at `t`. A peer that finds it there has posted its READ before, at
//!   `a <= t`, by its own clock, which need only run as fast.
//! - The owner's record has the owner's lease `L` and flight `F`; no configuration of the peer's counts.
//!   The owner waits until `t + W`, with `W = max(L, F) + F` ([`Terms::wait_ns`]).
//! - The peer posts under its lease until `a + min(L, P)`, and the WR that has waited for the answer
//!   until `a + P`, where `P = W - F'` and `F'` are all retries of its own ([`Terms::post_ns`]). What it
//!   has posted until then and what then is at the head of its queue arrives, or has failed, by
//!   `a + P + F' = a + W <= t + W`.
//! - A WR may stand behind others in the queue of its lane, each with retries of its own, and for that
//!   there is no bound: one WRITE may have 2 GB. Nor is there one for how long a device stands still,
//!   its host being busy. What waits there is the first rule's. The peer counts it,
//!   `mr_leases_outlived`.
//! - Where `F'` is larger than `max(L, F)`, there is no `P` of use; it is `F`, as if the peer had the
//!   owner's retries, and the first rule holds again.

use elver_verbs::{AccessFlags, Device, Mr, MrInfo, Time, VerbsError, check_region};

#[cfg(doc)]
use elver_control::Terms;

use crate::memory::mr::{Closing, LocalMr};
use crate::{ClientId, Core, CoreError, Event};

/// A region of this node's that peers may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRegion {
    /// Whose it is.
    pub owner: ClientId,
    /// Its owner's key.
    pub lkey: u32,
    /// Address of its first byte, as peers name it.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// What it permits.
    pub access: AccessFlags,
}

/// The flags that let peers in.
const REMOTE: AccessFlags = AccessFlags::REMOTE_CHANGES.union(AccessFlags::REMOTE_READ);
/// Time between two tries to take a region from the device while a copy of it is under way.
pub(crate) const RELEASE_AGAIN_NS: u64 = 100_000;

impl<D: Device> Core<D> {
    /// Registers memory for a client. Peers find it in ValidMR if `access` opens it to them.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoSuchClient`]; [`CoreError::Limit`] if the client, or the node, has as many regions as it may;
    /// [`CoreError::Device`] if the device refuses the memory or the rights.
    #[inline(never)]
    pub fn reg_mr(
        &mut self,
        client: ClientId,
        memory: D::Memory,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, CoreError> {
        self.has_mr_room(client)?;
        let account = self.clients.open_client(client)?.limits.account;
        let info = self.device.reg_mr(self.pool.pd, memory.clone(), iova, access)?;
        let open = access.intersects(REMOTE);
        if open && let Err(error) = self.regions.valid.open(&info, access) {
            self.device.dereg_mr(info.mr)?;
            return Err(CoreError::Device(error));
        }
        self.regions.local.insert(LocalMr {
            memory,
            info,
            owner: client,
            account,
            access,
            refs: 0,
            pieces: 0,
            open,
            closing: None,
        });
        self.clients.open_client(client)?.mrs += 1;
        Ok(info)
    }

    /// Whether memory of `len` bytes could be registered now: to be asked before somebody makes it.
    ///
    /// # Errors
    ///
    /// As [`Core::reg_mr`], but for what the device finds in the memory itself.
    #[inline(never)]
    pub fn may_reg_mr(
        &mut self,
        client: ClientId,
        (iova, len): (u64, u64),
        access: AccessFlags,
    ) -> Result<(), CoreError> {
        self.has_mr_room(client)?;
        check_region(access, iova, len, self.device.query_device().max_mr_size)?;
        Ok(())
    }

    fn has_mr_room(&mut self, client: ClientId) -> Result<(), CoreError> {
        let full = self.regions.local.is_full();
        let limit = u64::from(self.config.max_mrs);
        let entry = self.clients.open_client(client)?;
        if entry.mrs >= entry.limits.mrs {
            let limit = u64::from(entry.limits.mrs);
            return Err(CoreError::Limit { what: "regions of a client", limit, setting: "mrs" });
        }
        if full {
            return Err(CoreError::Limit { what: "regions", limit, setting: "max_mrs" });
        }
        Ok(())
    }

    /// The region of this node's that peers reach by a key, for a client that has it. None if there is none, or if
    /// the client's account has guessed too often: a key that is wrong counts as a guess, as when a WR names it.
    #[inline(never)]
    pub fn open_region(&mut self, client: ClientId, rkey: u32, now: Time) -> Option<OpenRegion> {
        let account = self.clients.open_client(client).ok()?.limits.account;
        if self.discovery.guesses.holds(account, now) {
            self.stats.mr_keys_refused += 1;
            return None;
        }
        // Both keys of a region are one, as the soft device has it; of others' none is found.
        let known = self.regions.local.slot_of(rkey).and_then(|slot| self.regions.local.get(slot));
        let is_it =
            |mr: &&LocalMr<D::Memory>| mr.info.rkey == rkey && mr.open && mr.closing.is_none();
        let Some(mr) = known.filter(is_it) else {
            self.stats.mr_keys_wrong += 1;
            self.discovery.guesses.wrong(account, now);
            return None;
        };
        let MrInfo { lkey, addr, length, .. } = mr.info;
        Some(OpenRegion { owner: mr.owner, lkey, addr, length, access: mr.access })
    }

    /// Deregisters a region: no new WR may use it; once peers' leases have run out and work in
    /// flight has ended, [`Event::Deregistered`] comes.
    ///
    /// # Errors
    ///
    /// [`CoreError::NoSuchClient`]; [`CoreError::NoSuchMr`] if the client has no such region, or deregisters it already.
    #[inline(never)]
    pub fn dereg_mr(
        &mut self,
        client: ClientId,
        lkey: u32,
        token: u64,
        now: Time,
    ) -> Result<(), CoreError> {
        self.clients.open_client(client)?;
        let slot = self.regions.local.slot_of(lkey).ok_or(CoreError::NoSuchMr { lkey })?;
        let known = self.regions.local.get(slot);
        if known.is_none_or(|mr| mr.owner != client || mr.closing.is_some()) {
            return Err(CoreError::NoSuchMr { lkey });
        }
        self.close_mr(slot, Some(token), now);
        Ok(())
    }

    /// Begins to deregister all regions of a client that is gone.
    pub(crate) fn close_mrs_of(&mut self, client: ClientId, now: Time) {
        // Most have none, and are not to pay for all others' of the node.
        let count = self.clients.all.get(client).map_or(0, |it| it.mrs as usize);
        let own = self.regions.local.iter().filter(|(_, mr)| mr.owner == client);
        let slots: alloc::vec::Vec<u32> = own.map(|(slot, _)| slot).take(count).collect();
        for slot in slots {
            match self.regions.local.get_mut(slot).and_then(|mr| mr.closing.as_mut()) {
                Some(closing) => closing.token = None,
                None => self.close_mr(slot, None, now),
            }
        }
    }

    fn close_mr(&mut self, slot: u32, token: Option<u64>, now: Time) {
        let wait = self.record.terms.wait_ns();
        let Some(mr) = self.regions.local.get_mut(slot) else {
            return bug!("a region that is gone is closed");
        };
        let due = if mr.open { now.saturating_add_ns(wait) } else { now };
        mr.closing = Some(Closing { token, due, again: false });
        let (open, rkey) = (mr.open, mr.info.rkey);
        let late = due > now;
        self.regions.local.forget_hits();
        if open {
            // It was put in when the region was made, and only here it is taken out.
            self.regions.valid.close(rkey);
        }
        if late {
            self.regions.local.close_at(slot, due);
        } else {
            self.try_release_mr(slot, now);
        }
    }

    /// Deregistrations that waited for WRs in flight alone go through.
    #[cold]
    pub(crate) fn release_mrs(&mut self, now: Time) {
        let due = |closing: Closing| closing.due <= now;
        let slots = self
            .regions
            .local
            .iter()
            .filter(|(_, mr)| mr.is_unused() && mr.closing.is_some_and(due));
        let slots: alloc::vec::Vec<u32> = slots.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.try_release_mr(slot, now);
        }
    }

    /// Deregisters a region at the device, if nothing needs it any longer.
    pub(crate) fn try_release_mr(&mut self, slot: u32, now: Time) {
        // One that waited for its WRs alone may have gone with the last, ahead of its next try.
        let Some(mr) = self.regions.local.get(slot) else { return };
        let Some(closing) = mr.closing.filter(|closing| closing.due <= now && mr.is_unused())
        else {
            return;
        };
        let (owner, handle) = (mr.owner, mr.info.mr);
        if !self.take_from_device(handle) {
            let again = now.saturating_add_ns(RELEASE_AGAIN_NS);
            return self.regions.local.close_again_at(slot, again);
        }
        self.regions.local.remove(slot);
        if let Some(client) = self.clients.all.get_mut(owner) {
            count_off!(client.mrs, 1);
        }
        if let Some(token) = closing.token {
            self.events.push_back(Event::Deregistered { client: owner, token });
        }
        self.clients.forget_client(owner);
    }

    /// Takes one of the core's own regions from the device, to which no window is bound; false while
    /// somebody's copy of it has not ended.
    fn take_from_device(&mut self, mr: Mr) -> bool {
        !matches!(self.device.dereg_mr(mr), Err(VerbsError::InUse { .. }))
    }

    /// Lets go of what leases or messages were waited for that are over by now. Whether there was any.
    pub(crate) fn attend_mrs(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(slot) = self.regions.local.pop_closing(now) {
            self.try_release_mr(slot, now);
            busy = true;
        }
        busy
    }

    /// Closes what of ended messages could not be closed before. Whether there was any.
    pub(crate) fn attend_openings(&mut self, now: Time) -> bool {
        let again = now.saturating_add_ns(RELEASE_AGAIN_NS);
        let closed = self.regions.local.close_lingering(now, again, &mut self.device);
        if closed {
            self.release_mrs(now);
        }
        closed
    }
}
