//! Messages that are sent: their headers, and the regions of long ones (sections 4.4 and 4.5).

use alloc::vec::Vec;

use elver_verbs::{Device, Memory, RemoteAddr, SendOpcode, Sge, VerbsError};

use crate::datapath::burst::Check;
use crate::memory::mr::LocalMrs;
use crate::messaging::gather::{PIECE_BYTES, encode_piece};
use crate::messaging::message::{HEADER_BYTES, Header, Kind};
use crate::pool::Pool;
use crate::pool::buffers::SLOTS_RESERVED;
use crate::vqp::Vqp;
use crate::vqp::seq::SendSeq;
use crate::vqp::sq_entry::{Bytes, SqEntry};

impl Vqp {
    /// Makes a message's header, in a send slot, unless that is done. A message that is too long to
    /// be copied is opened to its receiver.
    pub(crate) fn prepare<D: Device>(
        &mut self,
        seq: SendSeq,
        pool: &mut Pool<D::Memory>,
        blank: &Header,
        mrs: &mut LocalMrs<D::Memory>,
        device: &mut D,
    ) -> Check {
        let entry = self.sq.entry(seq);
        let &SqEntry { opcode, imm, length: bytes, slot, .. } = entry;
        let inline = entry.bytes == Bytes::Inline;
        if slot.get().is_some() {
            return Check::Ready;
        }
        if pool.sends.available() <= SLOTS_RESERVED {
            return Check::NoSlot;
        }
        let Some(slot) = pool.sends.take() else {
            bug!("send slots that are free are none");
            return Check::NoSlot;
        };
        // If it was short it is not any longer, since it is posted again.
        (self.sq.entry_mut(seq).slot, self.sq.entry_mut(seq).run) = (slot.into(), None);
        let (kind, imm) = match opcode {
            SendOpcode::WriteWithImm => (Kind::WriteImm, Some(imm)),
            SendOpcode::SendWithImm => (Kind::Eager, Some(imm)),
            _ => (Kind::Eager, None),
        };
        let long = kind == Kind::Eager && bytes >= self.read_from;
        // Inline bytes stand in no region that could be read.
        let (too_long, long) = (long && inline && bytes > self.room, long && !inline);
        if too_long {
            return Check::TooLong;
        }
        let kind = if long { Kind::Rendezvous } else { kind };
        let body = pool.sends.offset(slot) + HEADER_BYTES as u64;
        let (mut written, mut length) = (Ok(()), HEADER_BYTES);
        if long {
            let shared = self.share(seq, pool, mrs, device);
            let Ok(pieces) = shared else { return Check::Failed };
            written = pool.memory.write(body, &pieces);
            length += pieces.len();
        } else if inline && kind == Kind::Eager {
            written = pool.memory.write(body, self.sq.inline(seq));
            length += bytes as usize;
        }
        let (dst_port, dst_vqp) = self.destination();
        let header = Header {
            kind,
            imm,
            detail: if long { ((length - HEADER_BYTES) / PIECE_BYTES) as u16 } else { 0 },
            dst_port,
            dst_vqp,
            src_vqp: self.id.0,
            length: bytes,
            cookie: self.cookie(seq),
            ..*blank
        };
        let written = written.and(pool.write_header(slot, &header));
        debug_assert_eq!(written, Ok(()), "a slot has room for all that may stand in it");
        self.sq.set_header(seq, pool.send_sge(slot, length as u32));
        Check::Ready
    }

    /// Opens a long message to its receiver; returns where its pieces are.
    #[cold]
    fn share<D: Device>(
        &mut self,
        seq: SendSeq,
        pool: &Pool<D::Memory>,
        mrs: &mut LocalMrs<D::Memory>,
        device: &mut D,
    ) -> Result<Vec<u8>, VerbsError> {
        let sges = self.sq.sges(seq).iter().filter(|sge| sge.length > 0);
        let pieces: Vec<Sge> = sges.copied().collect();
        let keys = mrs.open((self.id, seq), &pieces, device, pool.pd)?;
        let told = pieces
            .iter()
            .zip(keys)
            .flat_map(|(sge, rkey)| encode_piece(RemoteAddr { addr: sge.addr, rkey }, sge.length));
        let told = told.collect();
        self.sq.entry_mut(seq).bytes = Bytes::Shared;
        Ok(told)
    }
}
