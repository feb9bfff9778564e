//! Messages that are too long to be copied (section 4.5): the sender tells where they are, the
//! receiver READs them into the posted receive and says so.
//!
//! ```text
//!   sender                               receiver
//!     SEND  where it is ───────────────▶   waits for a receive
//!           ◀─────────────────────────── READ, one for each piece
//!           ◀─────────────────────────── FIN  completes the receive
//!     completes the SEND
//! ```
//!
//! The sender's regions need not be open to peers: while such messages are on their way, the core
//! has them registered a second time, for READs alone.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{
    AccessFlags, Device, Memory, MrInfo, Pd, RemoteAddr, Sge, Time, VerbsError, WcOpcode, WcStatus,
};

use crate::datapath::ops::{OpKind, Work};
use crate::memory::mr::{LocalHit, LocalMrs, Users};
use crate::messaging::inbox::{Body, Incoming};
use crate::messaging::message::{Kind, Refusal};
use crate::messaging::notes::Note;
use crate::vqp::send_ring::NONE;
use crate::{ClientId, Core};

/// Bytes of a piece in a descriptor: address, rkey, length.
pub(crate) const PIECE_BYTES: usize = 16;

/// A message that is being read.
#[derive(Debug)]
pub(crate) struct Gather {
    /// The VQP, and the receive.
    vqp: u32,
    seq: u32,
    incoming: Incoming,
    /// Regions of the receive's pieces, which it uses.
    slots: Vec<u32>,
    /// READs that are still to be done, the current one first.
    reads: VecDeque<(RemoteAddr, Vec<Sge>)>,
}

impl Gather {
    /// Whether its sender may have taken the message back.
    pub(crate) fn is_late(&self, now: Time) -> bool {
        self.incoming.is_late(now)
    }

    /// Whether it reads into a receive of this VQP.
    pub(crate) fn is_of(&self, vqp: u32) -> bool {
        self.vqp == vqp
    }

    /// How often it counts among the users of a region.
    pub(crate) fn uses(&self, slot: u32) -> u32 {
        self.slots.iter().filter(|used| **used == slot).count() as u32
    }

    /// Whether it reads this message.
    pub(crate) fn reads(&self, from: (u32, u32), cookie: u64) -> bool {
        self.incoming.from == from && self.incoming.cookie == cookie
    }

    /// The READ to do now.
    pub(crate) fn read(&self) -> (RemoteAddr, &[Sge]) {
        match self.reads.front() {
            Some((remote, sges)) => (*remote, sges),
            None => (RemoteAddr { addr: 0, rkey: 0 }, &[]),
        }
    }
}

impl<D: Device> Core<D> {
    /// Begins to read a message into a receive; how the receive ends, if that fails at once.
    pub(crate) fn begin_gather(
        &mut self,
        vqp: u32,
        seq: u32,
        incoming: &Incoming,
        body: &Body<'_>,
        now: Time,
    ) -> Result<(), WcStatus> {
        let mut bytes = [0; 32 * PIECE_BYTES];
        let pieces = match *body {
            Body::Held(bytes) => bytes,
            Body::Buffer(offset, len) => {
                let bytes = bytes.get_mut(..len as usize).ok_or(WcStatus::BadRespErr)?;
                self.pool.memory.read(offset, bytes).map_err(|_| WcStatus::BadRespErr)?;
                bytes
            }
        };
        let sender = self.peers.get(incoming.from.0).and_then(|peer| peer.tag);
        if sender.is_some_and(|tag| tag != incoming.tag) {
            // The keys that it names may be others' by now.
            return Err(WcStatus::RemOpErr);
        }
        let entry = self.vqps.get_mut(vqp).ok_or(WcStatus::WrFlushErr)?;
        let (client, class) = (ClientId(entry.client), entry.class);
        let (slots, reads) = plan(&self.mrs, client, entry.rq.sges(seq), pieces, incoming.length)?;
        entry.reads += 1;
        for slot in &slots {
            self.mrs.add_users(Users::one(*slot));
        }
        let gather = Gather { vqp, seq, incoming: *incoming, slots, reads };
        let kind = OpKind::Gather(Box::new(gather));
        match self.start_op(incoming.from.0, class, kind, Work::Gather) {
            Ok(op) => {
                self.post_op(op, now);
                Ok(())
            }
            Err(OpKind::Gather(gather)) => {
                self.let_go(&gather, now);
                Err(WcStatus::RetryExcErr)
            }
            Err(_) => {
                bug!("an operation that was not begun is another");
                Err(WcStatus::RetryExcErr)
            }
        }
    }

    /// A READ of a message has ended.
    pub(crate) fn conclude_gather(&mut self, id: u32, ok: bool, now: Time) {
        if let Some(op) = self.ops.get_mut(id)
            && let OpKind::Gather(gather) = &mut op.kind
        {
            gather.reads.pop_front();
            if ok && !gather.reads.is_empty() {
                return self.post_op(id, now);
            }
        }
        let Some(OpKind::Gather(gather)) = self.end_op(id).map(|op| op.kind) else {
            return bug!("a message that was read is gone");
        };
        let (to, cookie) = (gather.incoming.from, gather.incoming.cookie);
        let status = if ok { WcStatus::Success } else { WcStatus::RemOpErr };
        self.end_receive(gather.vqp, gather.seq, &gather.incoming, status, WcOpcode::Recv);
        if ok {
            self.tell(to.0, Note::to_sender(Kind::Fin, to.1, cookie), now);
        } else {
            self.refuse(to, Refusal::Unfit, cookie, now);
        }
        self.let_go(&gather, now);
        self.drained(gather.vqp, now);
    }

    /// The receive's regions are used no longer.
    fn let_go(&mut self, gather: &Gather, now: Time) {
        let mut freed = false;
        for slot in &gather.slots {
            freed |= self.mrs.remove_users(Users::one(*slot));
        }
        if let Some(vqp) = self.vqps.get_mut(gather.vqp) {
            count_off!(vqp.reads, 1);
        }
        if freed {
            self.release_mrs(now);
        }
    }
}

impl<M: Memory> LocalMrs<M> {
    /// Opens a region to READs of peers for one message; returns the key.
    pub(crate) fn share<D: Device<Memory = M>>(
        &mut self,
        slot: u32,
        device: &mut D,
        pd: Pd,
    ) -> Result<u32, VerbsError> {
        let what = "the region is gone";
        let mr = self.get_mut(slot).ok_or(VerbsError::InvalidArgument { what })?;
        if mr.access.contains(AccessFlags::REMOTE_READ) {
            mr.readers += 1;
            return Ok(mr.info.rkey);
        }
        let alias = match mr.alias {
            Some(alias) => alias,
            None => {
                let (memory, start) = (mr.memory.clone(), mr.info.addr);
                device.reg_mr(pd, memory, Some(start), AccessFlags::REMOTE_READ)?
            }
        };
        mr.alias = Some(alias);
        mr.readers += 1;
        Ok(alias.rkey)
    }

    /// A message is on its way no longer. Returns whether it was the region's last.
    pub(crate) fn unshare(&mut self, slot: u32) -> bool {
        let Some(mr) = self.get_mut(slot) else {
            bug!("a region that a message is read from is gone");
            return false;
        };
        count_off!(mr.readers, 1);
        mr.readers == 0 && mr.alias.is_some()
    }

    /// The second registration of a region, if no message needs it.
    pub(crate) fn take_alias(&mut self, slot: u32) -> Option<MrInfo> {
        let mr = self.get_mut(slot)?;
        if mr.readers > 0 { None } else { mr.alias.take() }
    }
}

/// READs that fetch the pieces of a message into the pieces of a receive, and the regions of these.
type Plan = (Vec<u32>, VecDeque<(RemoteAddr, Vec<Sge>)>);

fn plan<M: Memory>(
    mrs: &LocalMrs<M>,
    client: ClientId,
    sges: &[Sge],
    pieces: &[u8],
    length: u32,
) -> Result<Plan, WcStatus> {
    let (pieces, rest) = pieces.as_chunks::<PIECE_BYTES>();
    let sum: u64 = pieces.iter().map(|piece| u64::from(piece_of(piece).1)).sum();
    if !rest.is_empty() || sum != u64::from(length) {
        return Err(WcStatus::BadRespErr);
    }
    let (mut slots, mut hit) = (Vec::new(), LocalHit::NONE);
    for sge in sges {
        let slot = mrs.check(client, &mut hit, sge, true).map_err(|_| WcStatus::LocProtErr)?;
        if slot != NONE {
            slots.push(slot);
        }
    }
    let mut room = sges.iter().filter(|sge| sge.length > 0).copied();
    let mut current = room.next();
    let mut reads = VecDeque::new();
    for (remote, mut left) in pieces.iter().map(piece_of).filter(|(_, len)| *len > 0) {
        let mut local = Vec::new();
        while left > 0 {
            let Some(sge) = &mut current else {
                bug!("a receive that was long enough is not");
                return Err(WcStatus::LocLenErr);
            };
            let part = left.min(sge.length);
            local.push(Sge { length: part, ..*sge });
            (sge.addr, sge.length, left) =
                (sge.addr + u64::from(part), sge.length - part, left - part);
            if sge.length == 0 {
                current = room.next();
            }
        }
        reads.push_back((remote, local));
    }
    Ok((slots, reads))
}

/// A piece of a descriptor.
pub(crate) fn encode_piece(remote: RemoteAddr, length: u32) -> [u8; PIECE_BYTES] {
    let mut bytes = [0; PIECE_BYTES];
    bytes[..8].copy_from_slice(&remote.addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&remote.rkey.to_le_bytes());
    bytes[12..].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn piece_of(bytes: &[u8; PIECE_BYTES]) -> (RemoteAddr, u32) {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let addr = u64::from(word(0)) | u64::from(word(4)) << 32;
    (RemoteAddr { addr, rkey: word(8) }, word(12))
}
