//! PSNs on an RC QP: how many each WR takes, so that what was flushed can be counted back; see
//! [`crate::rc::fate`].

use elver_verbs::{Mtu, SendOpcode};

use crate::datapath::ops::{Op, OpKind, Work};
use crate::datapath::wr_id::WrId;
use crate::messaging::gather::PIECE_BYTES;
use crate::messaging::message::HEADER_BYTES;
use crate::vqp::send_ring::SendRing;
use crate::vqp::seq::SendSeq;
use crate::vqp::sq_entry::Bytes;

/// What was flushed from an RC QP and may have been executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushed {
    pub(super) who: WrId,
    pub(super) psns: u32,
}

/// How what is posted on an RC QP is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The PSN behind all that was posted, in its low 24 bits.
    pub(crate) psn: u32,
    mtu: Mtu,
    /// A WR of so many bytes takes one packet, whatever it is.
    pub(crate) one_packet: u32,
}

// Each lane has one, or none.
const _: () = assert!(size_of::<Option<Path>>() == 12);

impl Path {
    pub(crate) fn new(psn: u32, mtu: Mtu, max_sge: u32) -> Path {
        let head = HEADER_BYTES as u32 + max_sge * PIECE_BYTES as u32;
        Path { psn, mtu, one_packet: mtu.bytes().saturating_sub(head) }
    }

    /// So many PSNs were taken.
    #[inline]
    pub(crate) fn advance(&mut self, psns: u32) {
        self.psn = self.psn.wrapping_add(psns);
    }

    fn packets(&self, bytes: u64) -> u32 {
        bytes.div_ceil(self.mtu.bytes().into()).max(1) as u32
    }

    /// PSNs that one of the physical WRs of an entry takes, which was prepared.
    pub(super) fn psns_of(&self, ring: &SendRing, seq: SendSeq, second: bool) -> u32 {
        let entry = ring.entry(seq);
        let head = || u64::from(ring.message_sges(seq)[0].length);
        let bytes = u64::from(entry.length);
        self.packets(match entry.opcode {
            SendOpcode::Write | SendOpcode::Read => bytes,
            SendOpcode::WriteWithImm if second => head(),
            SendOpcode::WriteWithImm => bytes,
            // What is long is read later, and what is inline stands behind the header.
            _ if entry.is_send() && entry.bytes != Bytes::Local => head(),
            // It was copied behind its header when it was posted.
            _ if entry.is_send() && entry.run.is_some() => HEADER_BYTES as u64 + bytes,
            _ if entry.is_send() => head() + bytes,
            _ => 0,
        })
    }

    /// PSNs that an entry takes beyond one for each of its physical WRs.
    #[cold]
    pub(crate) fn more_psns(&self, ring: &SendRing, seq: SendSeq) -> u32 {
        let entry = ring.entry(seq);
        let of = |second| self.psns_of(ring, seq, second);
        match entry.opcode {
            SendOpcode::WriteWithImm if entry.first_done => of(true) - 1,
            SendOpcode::WriteWithImm => of(false) + of(true) - 2,
            _ => of(false) - 1,
        }
    }

    /// PSNs that an operation of the core's own takes.
    pub(crate) fn psns_of_op(&self, op: &Op) -> u32 {
        self.packets(match (&op.work, &op.kind) {
            (Work::Read { length, .. } | Work::Send { length, .. }, _) => u64::from(*length),
            (Work::Gather, OpKind::Gather(gather)) => {
                gather.read().1.iter().map(|sge| u64::from(sge.length)).sum()
            }
            (Work::Gather, _) => 0,
        })
    }
}
