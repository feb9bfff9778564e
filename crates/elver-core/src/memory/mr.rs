use alloc::vec::Vec;

use elver_verbs::{AccessFlags, MaybeSlot, Memory, MemoryError, MrInfo, PostError, Sge, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::ClientId;
use crate::due::DueQueue;
use crate::memory::openings::Openings;

/// The regions of all clients, on this node.
#[derive(Debug)]
pub(crate) struct LocalMrs<M> {
    slots: Vec<Option<LocalMr<M>>>,
    free: Vec<u32>,
    by_lkey: HashMap<u32, u32, FxBuildHasher>,
    limit: u32,
    /// Regions being deregistered, by when their leases end.
    closing: DueQueue<u32>,
    /// Those that the device was not done with, by when they are tried again, each of them once.
    again: DueQueue<u32>,
    /// Long messages that are open to their receivers.
    pub(crate) openings: Openings,
    /// Changes whenever a region goes, so that what VQPs remember of one is checked again.
    pub(crate) epoch: u32,
}

/// A client's region.
#[derive(Debug)]
pub(crate) struct LocalMr<M> {
    pub(crate) memory: M,
    pub(crate) info: MrInfo,
    pub(crate) owner: ClientId,
    /// Who answers for its owner.
    pub(crate) account: u64,
    pub(crate) access: AccessFlags,
    /// WRs that use it and have not ended.
    pub(crate) refs: u32,
    /// Pieces of it that are open to the receivers of long messages.
    pub(crate) pieces: u32,
    /// It stands, or stood, in ValidMR.
    pub(crate) open: bool,
    /// It is being deregistered: no new WR may use it.
    pub(crate) closing: Option<Closing>,
}

impl<M> LocalMr<M> {
    /// Nothing on its way uses it.
    pub(crate) fn is_unused(&self) -> bool {
        self.refs == 0 && self.pieces == 0
    }
}

/// What a deregistration waits for besides WRs in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    /// Whom to tell; none when its client is gone.
    pub(crate) token: Option<u64>,
    /// When no peer believes any longer that it is there.
    pub(crate) due: Time,
    /// It is tried again at a time that is known.
    pub(crate) again: bool,
}

/// The region that a VQP used last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalHit {
    epoch: u32,
    lkey: u32,
    slot: MaybeSlot,
    start: u64,
    end: u64,
    writable: bool,
}

impl LocalHit {
    /// Nothing remembered.
    pub(crate) const NONE: LocalHit =
        LocalHit { epoch: 0, lkey: 0, slot: MaybeSlot::NONE, start: 1, end: 0, writable: false };
}

/// WRs in a row that use the same region, to be counted there in one go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Users {
    slot: MaybeSlot,
    wrs: u32,
}

impl Default for Users {
    fn default() -> Users {
        Users { slot: MaybeSlot::NONE, wrs: 0 }
    }
}

impl Users {
    /// A single one.
    pub(crate) fn one(slot: MaybeSlot) -> Users {
        Users::of(slot, 1)
    }

    /// So many of a region.
    #[inline]
    pub(crate) fn of(slot: MaybeSlot, wrs: u32) -> Users {
        Users { slot, wrs }
    }

    /// Counts one more of a region; gives what was counted before if that is of another.
    #[inline]
    pub(crate) fn next(&mut self, slot: MaybeSlot) -> Option<Users> {
        if self.slot == slot {
            self.wrs += 1;
            return None;
        }
        Some(core::mem::replace(self, Users::one(slot)))
    }
}

impl<M: Memory> LocalMrs<M> {
    pub(crate) fn new(limit: u32) -> LocalMrs<M> {
        LocalMrs {
            slots: Vec::new(),
            free: Vec::new(),
            by_lkey: HashMap::default(),
            limit,
            closing: DueQueue::default(),
            again: DueQueue::default(),
            openings: Openings::new(limit),
            epoch: 1,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.by_lkey.len() >= self.limit as usize
    }

    pub(crate) fn insert(&mut self, mr: LocalMr<M>) -> u32 {
        let lkey = mr.info.lkey;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        self.slots[slot as usize] = Some(mr);
        self.by_lkey.insert(lkey, slot);
        slot
    }

    pub(crate) fn slot_of(&self, lkey: u32) -> Option<u32> {
        self.by_lkey.get(&lkey).copied()
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&LocalMr<M>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// The region in a slot, if there is one.
    #[inline]
    pub(crate) fn of(&self, slot: MaybeSlot) -> Option<&LocalMr<M>> {
        self.slots.get(slot.index())?.as_ref()
    }

    #[inline]
    fn of_mut(&mut self, slot: MaybeSlot) -> Option<&mut LocalMr<M>> {
        self.slots.get_mut(slot.index())?.as_mut()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut LocalMr<M>> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<LocalMr<M>> {
        let mr = self.slots.get_mut(slot as usize)?.take()?;
        self.by_lkey.remove(&mr.info.lkey);
        self.free.push(slot);
        self.forget_hits();
        Some(mr)
    }

    /// A region's deregistration is tried when its lease ends.
    pub(crate) fn close_at(&mut self, slot: u32, due: Time) {
        self.closing.push(due, slot);
    }

    /// A region's deregistration is tried again then, if it is not at another time.
    pub(crate) fn close_again_at(&mut self, slot: u32, due: Time) {
        let closing = self.get_mut(slot).and_then(|mr| mr.closing.as_mut());
        if let Some(closing) = closing.filter(|closing| !closing.again) {
            closing.again = true;
            self.again.push(due, slot);
        }
    }

    /// The next region whose deregistration is to be tried.
    pub(crate) fn pop_closing(&mut self, now: Time) -> Option<u32> {
        if let Some(slot) = self.closing.pop_due(now) {
            return Some(slot);
        }
        let slot = self.again.pop_due(now)?;
        if let Some(closing) = self.get_mut(slot).and_then(|mr| mr.closing.as_mut()) {
            closing.again = false;
        }
        Some(slot)
    }

    /// When [`LocalMrs::pop_closing`] gives one.
    pub(crate) fn next_closing(&self) -> Option<Time> {
        self.closing.next_due().into_iter().chain(self.again.next_due()).min()
    }

    /// What VQPs remember is checked again.
    pub(crate) fn forget_hits(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &LocalMr<M>)> {
        self.slots.iter().enumerate().filter_map(|(at, mr)| Some((at as u32, mr.as_ref()?)))
    }

    /// Checks a piece of local memory that a client names, and returns its region's slot. `hit` is
    /// what the VQP used last. A piece of no bytes needs no region.
    #[inline]
    pub(crate) fn check(
        &self,
        client: ClientId,
        hit: &mut LocalHit,
        sge: &Sge,
        writes: bool,
    ) -> Result<MaybeSlot, PostError> {
        if hit.lkey != sge.lkey || hit.epoch != self.epoch {
            *hit = self.find(client, sge.lkey);
        }
        let end = sge.addr.checked_add(u64::from(sge.length));
        if sge.addr >= hit.start
            && end.is_some_and(|end| end <= hit.end)
            && (hit.writable || !writes)
            && hit.slot != MaybeSlot::NONE
        {
            return Ok(hit.slot);
        }
        if sge.length == 0 {
            return Ok(MaybeSlot::NONE);
        }
        Err(PostError::LocalAccess { addr: sge.addr, length: sge.length, lkey: sge.lkey })
    }

    #[cold]
    fn find(&self, client: ClientId, lkey: u32) -> LocalHit {
        let slot = self.slot_of(lkey).map_or(MaybeSlot::NONE, MaybeSlot::from);
        match self.of(slot).filter(|mr| mr.owner == client && mr.closing.is_none()) {
            None => LocalHit { epoch: self.epoch, lkey, ..LocalHit::NONE },
            Some(mr) => LocalHit {
                epoch: self.epoch,
                lkey,
                slot,
                start: mr.info.addr,
                end: mr.info.addr.saturating_add(mr.info.length),
                writable: mr.access.contains(AccessFlags::LOCAL_WRITE),
            },
        }
    }

    /// So many WRs more use a region; none do where there is none.
    #[inline]
    pub(crate) fn add_users(&mut self, users: Users) {
        match self.of_mut(users.slot) {
            Some(mr) => mr.refs += users.wrs,
            None if users.slot != MaybeSlot::NONE => bug!("a region that WRs use is gone"),
            None => {}
        }
    }

    /// WRs have ended. Returns whether a deregistration may have waited for that.
    #[inline]
    pub(crate) fn remove_users(&mut self, users: Users) -> bool {
        let Some(mr) = self.of_mut(users.slot) else {
            if users.slot != MaybeSlot::NONE {
                bug!("a region that WRs use is gone");
            }
            return false;
        };
        count_off!(mr.refs, users.wrs);
        mr.refs == 0 && mr.closing.is_some()
    }

    /// Copies `len` bytes that arrived into a receive's pieces, in order: `copy` is told the memory,
    /// the offset there, the offset in the message and how many. The regions are looked up now: a
    /// receive may outlive them. `hit` is what the VQP used last.
    #[inline]
    pub(crate) fn scatter(
        &self,
        client: ClientId,
        hit: &mut LocalHit,
        sges: &[Sge],
        mut len: u64,
        copy: impl Fn(&M, u64, u64, u64) -> Result<(), MemoryError>,
    ) -> Result<(), ScatterError> {
        let mut done = 0;
        for sge in sges {
            let part = len.min(u64::from(sge.length));
            if part == 0 {
                continue;
            }
            let slot = self.check(client, hit, sge, true).map_err(|_| ScatterError::Refused)?;
            let mr = self.of(slot).ok_or(ScatterError::Refused)?;
            copy(&mr.memory, sge.addr - mr.info.addr, done, part)?;
            (done, len) = (done + part, len - part);
        }
        Ok(())
    }
}

/// Why a receive was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScatterError {
    /// Its memory is not there, or not the client's to write.
    Refused,
    /// Its memory is not at hand; some of it may have been written.
    Later,
}

impl From<MemoryError> for ScatterError {
    fn from(error: MemoryError) -> ScatterError {
        match error {
            MemoryError::Later => ScatterError::Later,
            _ => ScatterError::Refused,
        }
    }
}
