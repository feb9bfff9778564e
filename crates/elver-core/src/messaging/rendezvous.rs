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
//! The bytes are opened to it for that alone, by keys that go with the message
//! ([`openings`](crate::memory::openings)).

use alloc::boxed::Box;

use elver_verbs::{Device, Memory, Time, WcOpcode, WcStatus};

use crate::Core;
use crate::VqpId;
use crate::datapath::ops::{OpKind, Work};
use crate::ids::OpId;
use crate::memory::mr::Users;
use crate::messaging::gather::{Gather, PIECE_BYTES, plan};
use crate::messaging::incoming::{Body, Incoming};
use crate::messaging::message::{Kind, Refusal};
use crate::messaging::notes::Note;
use crate::vqp::seq::RecvSeq;

impl<D: Device> Core<D> {
    /// Begins to read a message into a receive; how the receive ends, if that fails at once.
    pub(crate) fn begin_gather(
        &mut self,
        vqp: VqpId,
        seq: RecvSeq,
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
        let (client, class) = (entry.client, entry.class);
        let (slots, reads) =
            plan(&self.regions.local, client, entry.rq.sges(seq), pieces, incoming.length)?;
        entry.reads += 1;
        for slot in &slots {
            self.regions.local.add_users(Users::one((*slot).into()));
        }
        let gather = Gather { vqp, seq, incoming: *incoming, slots, reads };
        let kind = OpKind::Gather(Box::new(gather));
        match self.start_op(incoming.from.0, class, kind, Work::Gather) {
            Ok(op) => {
                if let Some(entry) = self.peers.get_mut(incoming.from.0) {
                    entry.reads += 1;
                }
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
    pub(crate) fn conclude_gather(&mut self, id: OpId, ok: bool, now: Time) {
        if let Some(op) = self.datapath.ops.get_mut(id)
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
        if let Some(entry) = self.peers.get_mut(to.0) {
            count_off!(entry.reads, 1);
        }
        let status = if ok { WcStatus::Success } else { WcStatus::RemOpErr };
        self.end_receive(gather.vqp, gather.seq, &gather.incoming, status, WcOpcode::Recv);
        if ok {
            self.messaging.notes.tell(
                &mut self.stats,
                to.0,
                Note::to_sender(Kind::Fin, to.1, cookie),
            );
        } else {
            self.refuse(to, Refusal::Unfit, cookie);
        }
        self.let_go(&gather, now);
        self.drained(gather.vqp, now);
    }

    /// The receive's regions are used no longer.
    fn let_go(&mut self, gather: &Gather, now: Time) {
        let mut freed = false;
        for slot in &gather.slots {
            freed |= self.regions.local.remove_users(Users::one((*slot).into()));
        }
        if let Some(vqp) = self.vqps.get_mut(gather.vqp) {
            count_off!(vqp.reads, 1);
        }
        if freed {
            self.release_mrs(now);
        }
    }
}
