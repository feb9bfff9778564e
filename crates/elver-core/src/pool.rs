//! The physical queue pairs that all VQPs share, their lanes and buffers (section 4.3).

pub(crate) mod buffers;
pub(crate) mod create;
pub(crate) mod index_vec;
pub(crate) mod lane;
pub(crate) mod lanes;

use elver_verbs::{
    AccessFlags, AddressVector, Cq, Device, DeviceAttr, Gid, MemoryError, MrInfo, Mtu, Pd, Qp,
    QpAttr, RecvWr, Sge, Srq, VerbsError,
};

use crate::Config;
use crate::datapath::wr_id::WrId;
use crate::messaging::message::{HEADER_BYTES, Header};
use crate::pool::buffers::Buffers;

/// Receive buffers that are posted by one call.
const RECVS_AT_ONCE: usize = 32;
/// What the code of the shortest RNR NAK timer is (IBTA vol. 1, table 45).
pub(crate) const RNR_TIMER_MIN: u8 = 1;

/// The physical objects that all VQPs share, but for the QPs that they send on: those stand, with
/// their lanes, in [`lanes::Lanes`].
#[derive(Debug)]
pub(crate) struct Pool<M> {
    pub(crate) pd: Pd,
    /// Where everything completes, sends and receives: polling costs the same however many QPs
    /// there are. It holds an entry for all that can be outstanding.
    pub(crate) cq: Cq,
    /// Where messages arrive, over the DCT and over RC QPs.
    pub(crate) srq: Srq,
    /// What peers' DCIs send to; none on a device without DC.
    pub(crate) dct: Option<Qp>,
    pub(crate) dctn: u32,
    pub(crate) dc_key: u64,
    /// The UD QP for control.
    pub(crate) ud: Qp,
    pub(crate) ud_qpn: u32,
    /// Capabilities and limits of the device.
    pub(crate) attr: DeviceAttr,
    pub(crate) mtu: Mtu,
    /// Most bytes of a message that is copied.
    pub(crate) eager_max: u32,
    /// Most bytes of a message.
    pub(crate) max_length: u32,
    /// Most inline bytes of a user's WR.
    pub(crate) max_inline: u32,
    /// Depth of the send queues that VQPs share.
    pub(crate) depth: u32,
    /// Buffers of the node's own, in one region: receives, send slots, look-ups.
    pub(crate) memory: M,
    pub(crate) mr: MrInfo,
    pub(crate) recvs: Buffers,
    pub(crate) sends: Buffers,
    pub(crate) reads: Buffers,
}

impl<M: elver_verbs::Memory> Pool<M> {
    /// Bytes of a message that a receive buffer holds behind a header, and the most that is copied to one.
    #[inline]
    pub(crate) fn rooms(&self) -> (u32, u32) {
        (self.recvs.bytes as u32 - HEADER_BYTES as u32, self.eager_max)
    }

    /// The SGE of the first `length` bytes of a receive buffer.
    #[inline]
    pub(crate) fn recv_sge(&self, buffer: u32, length: u32) -> Sge {
        Sge { addr: self.mr.addr + self.recvs.offset(buffer), length, lkey: self.mr.lkey }
    }

    /// The SGE of the first `length` bytes of a send slot.
    #[inline]
    pub(crate) fn send_sge(&self, slot: u32, length: u32) -> Sge {
        Sge { addr: self.mr.addr + self.sends.offset(slot), length, lkey: self.mr.lkey }
    }

    /// Writes a message's header to its slot.
    #[inline(always)] // So that the header exists in registers alone.
    pub(crate) fn write_header(&mut self, slot: u32, header: &Header) -> Result<(), MemoryError> {
        self.memory.write(self.sends.offset(slot), &header.encode())
    }

    /// The SGE of the first `length` bytes of a look-up's buffer.
    #[inline]
    pub(crate) fn read_sge(&self, buffer: u32, length: u32) -> Sge {
        Sge { addr: self.mr.addr + self.reads.offset(buffer), length, lkey: self.mr.lkey }
    }

    /// The attributes that a QP of the pool goes to RTS with, towards `dgid`.
    pub(crate) fn qp_attr(&self, config: &Config, dgid: Gid) -> QpAttr {
        QpAttr {
            qp_access_flags: AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_ATOMIC,
            ah_attr: AddressVector { dgid, ..AddressVector::default() },
            path_mtu: self.mtu,
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            max_rd_atomic: self.attr.max_qp_init_rd_atom,
            max_dest_rd_atomic: self.attr.max_qp_rd_atom,
            min_rnr_timer: RNR_TIMER_MIN,
            ..QpAttr::default()
        }
    }

    /// Posts receive buffers that were read.
    pub(crate) fn post_receives<D: Device<Memory = M>>(
        &self,
        device: &mut D,
        buffers: &[u32],
    ) -> Result<(), VerbsError> {
        for buffers in buffers.chunks(RECVS_AT_ONCE) {
            let mut sges = [Sge::default(); RECVS_AT_ONCE];
            for (sge, &buffer) in sges.iter_mut().zip(buffers) {
                *sge = self.recv_sge(buffer, self.recvs.bytes as u32);
            }
            let mut wrs = [RecvWr { wr_id: 0, sges: &[] }; RECVS_AT_ONCE];
            for ((wr, sge), &buffer) in wrs.iter_mut().zip(sges.chunks(1)).zip(buffers) {
                *wr = RecvWr { wr_id: WrId::Recv(buffer).encode(), sges: sge };
            }
            let posted = device.post_srq_recv(self.srq, &wrs[..buffers.len()]);
            posted.map_err(|(_, error)| error)?;
        }
        Ok(())
    }
}
