//! Opening long messages to their receivers, and closing them again.

use alloc::vec::Vec;

use elver_verbs::{AccessFlags, Device, Memory, ObjectKind, Pd, Sge, Time, VerbsError};

use crate::VqpId;
use crate::memory::mr::LocalMrs;
use crate::memory::openings::Opening;
use crate::vqp::seq::SendSeq;

impl<M: Memory> LocalMrs<M> {
    /// Opens a message's pieces to READs; returns the key of each.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Limit`] if the account, or the device, has as many open as it may.
    pub(crate) fn open<D: Device<Memory = M>>(
        &mut self,
        (vqp, seq): (VqpId, SendSeq),
        pieces: &[Sge],
        device: &mut D,
        pd: Pd,
    ) -> Result<Vec<u32>, VerbsError> {
        let (mut open, mut keys) = (Vec::new(), Vec::new());
        for sge in pieces {
            match self.open_piece(sge, pieces.len() as u32, device, pd) {
                Ok((opening, rkey)) => {
                    open.push(opening);
                    keys.push(rkey);
                }
                Err(error) => {
                    for opening in open {
                        let closed = device.dereg_mr(opening.mr);
                        debug_assert_eq!(closed, Ok(()), "a key that nobody was told is in use");
                    }
                    return Err(error);
                }
            }
        }
        for opening in &open {
            if let Some(mr) = self.get_mut(opening.slot) {
                mr.pieces += 1;
            }
        }
        self.openings.add(vqp, seq, open);
        Ok(keys)
    }

    fn open_piece<D: Device<Memory = M>>(
        &self,
        sge: &Sge,
        pieces: u32,
        device: &mut D,
        pd: Pd,
    ) -> Result<(Opening, u32), VerbsError> {
        let gone = VerbsError::InvalidArgument { what: "the region is gone" };
        let found = self.slot_of(sge.lkey).and_then(|slot| Some((slot, self.get(slot)?)));
        let (slot, mr) = found.ok_or(gone)?;
        if !self.openings.has_room(mr.account, pieces) {
            let limit = u64::from(self.openings.limit());
            return Err(VerbsError::Limit { kind: ObjectKind::Mr, limit, setting: "max_mrs" });
        }
        let part = (sge.addr - mr.info.addr, u64::from(sge.length));
        let (memory, rights) = (mr.memory.clone(), AccessFlags::REMOTE_READ);
        let info = device.reg_mr_part(pd, memory, part, Some(sge.addr), rights)?;
        Ok((Opening { slot, mr: info.mr, account: mr.account }, info.rkey))
    }

    /// Closes a message. Returns whether nobody reads it any longer; false while somebody's copy of it has
    /// not ended.
    pub(crate) fn close<D: Device<Memory = M>>(
        &mut self,
        vqp: VqpId,
        seq: SendSeq,
        device: &mut D,
    ) -> bool {
        let mut open = self.openings.take(vqp, seq);
        open.retain(|opening| !self.close_piece(opening, device));
        let closed = open.is_empty();
        if !closed {
            self.openings.put_back(vqp, seq, open);
        }
        closed
    }

    /// Closes a message that has ended. What somebody copies just now is closed `then`.
    pub(crate) fn close_ended<D: Device<Memory = M>>(
        &mut self,
        (vqp, seq): (VqpId, SendSeq),
        then: Time,
        device: &mut D,
    ) {
        for opening in self.openings.take(vqp, seq) {
            if !self.close_piece(&opening, device) {
                self.openings.linger(then, opening);
            }
        }
    }

    /// Closes what could not be closed before, and may be tried again. Whether anything was.
    pub(crate) fn close_lingering<D: Device<Memory = M>>(
        &mut self,
        now: Time,
        then: Time,
        device: &mut D,
    ) -> bool {
        let mut closed = false;
        while let Some(opening) = self.openings.pop_lingering(now) {
            if self.close_piece(&opening, device) {
                closed = true;
            } else {
                self.openings.linger(then, opening);
            }
        }
        closed
    }

    /// Whether it is closed.
    fn close_piece<D: Device<Memory = M>>(&mut self, opening: &Opening, device: &mut D) -> bool {
        if matches!(device.dereg_mr(opening.mr), Err(VerbsError::InUse { .. })) {
            return false;
        }
        match self.get_mut(opening.slot) {
            Some(mr) => count_off!(mr.pieces, 1),
            None => bug!("a region of which a message is open is gone"),
        }
        self.openings.closed(opening.account);
        true
    }
}
