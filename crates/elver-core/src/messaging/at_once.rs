//! A short message that finds a receive of one piece, at hand and with none before it, as most do.

use elver_verbs::{Device, Memory, WcFlags, WcOpcode, WcStatus};

use crate::Core;
use crate::VqpId;
use crate::client::all::Clients;
use crate::memory::Regions;
use crate::messaging::message::Header;
use crate::vqp::recv_ring::RecvOutcome;

impl<D: Device> Core<D> {
    /// Copies a message that stands in a receive buffer, its bytes from `start` on, into the next receive of a VQP,
    /// and tells it. Returns whether it did; if not, nothing was told, and another way tells why.
    #[inline(always)] // It has one caller, once for each message.
    pub(crate) fn receive_at_once(
        &mut self,
        id: VqpId,
        source: Option<VqpId>,
        header: &Header,
        start: u64,
    ) -> bool {
        let Core {
            vqps,
            pool,
            clients: Clients { all: clients, told, .. },
            regions: Regions { local: mrs, .. },
            ..
        } = self;
        let Some(vqp) = vqps.get_mut(id) else { return false };
        let seq = vqp.rq.next;
        let is_free = vqp.rq.has_next() && vqp.rq.head == seq && vqp.backlog.is_none();
        if !is_free || vqp.phase.is_over() {
            return false;
        }
        let receive = vqp.rq.entry(seq);
        let (wr_id, sge) = (receive.wr_id, receive.sge);
        if receive.num_sge != 1 || header.length > sge.length {
            return false;
        }
        // The region is looked up now: a receive may outlive it.
        let Ok(slot) = mrs.check(vqp.client, &mut vqp.local, &sge, true) else { return false };
        let (Some(mr), Some(client)) = (mrs.of(slot), clients.get_mut(vqp.client)) else {
            bug!("a region that was checked, or the client of a VQP, is gone");
            return false;
        };
        let (at, length) = (sge.addr - mr.info.addr, u64::from(header.length));
        if mr.memory.copy_from(at, &pool.memory, start, length).is_err() {
            return false;
        }
        (vqp.rq.head, vqp.rq.next) = (seq.after(1), seq.after(1));
        let flags = if header.imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        let (byte_len, imm) = (header.length, header.imm.unwrap_or(0));
        let (status, opcode) = (WcStatus::Success, WcOpcode::Recv);
        let outcome = RecvOutcome { status, opcode, flags, byte_len, imm, source };
        client.tell(vqp.client, outcome.completion(id, wr_id), told);
        true
    }
}
