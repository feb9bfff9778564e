//! A device that is the RNIC and nothing else: without a link, at a time that stands still.

use elver_rnic::{Rnic, Time};
use elver_soft::SoftMemory;
use elver_verbs::{
    AccessFlags, AddressVector, Ah, AsyncEvent, Cq, CqInit, Device, DeviceAttr, Gid, Intake, Mr,
    MrInfo, Mw, MwInfo, Pd, PortAttr, PostError, Qp, QpAttr, QpAttrMask, QpInit, QpMade, RecvWr,
    SendHead, SendWr, Srq, SrqAttr, SrqInit, VerbsError, Wc,
};

/// What its clock shows.
pub(crate) const NOW: Time = Time(1_000_000);

pub(crate) struct Bare(pub(crate) Rnic<SoftMemory>);

/// Calls that the RNIC has under the same names, which ask something.
macro_rules! asks {
    ($($name:ident($($argument:ident: $type:ty),*) -> $returns:ty;)+) => {
        $(fn $name(&self, $($argument: $type),*) -> $returns {
            self.0.$name($($argument),*)
        })+
    };
}

/// Those that change something.
macro_rules! does {
    ($($name:ident($($argument:ident: $type:ty),*) -> $returns:ty;)+) => {
        $(fn $name(&mut self, $($argument: $type),*) -> $returns {
            self.0.$name($($argument),*)
        })+
    };
}

/// Those that are given the time as well.
macro_rules! does_at {
    ($($name:ident($($argument:ident: $type:ty),*) -> $returns:ty;)+) => {
        $(fn $name(&mut self, $($argument: $type),*) -> $returns {
            self.0.$name(NOW, $($argument),*)
        })+
    };
}

impl Device for Bare {
    type Memory = SoftMemory;

    fn alloc_memory(&mut self, len: u64) -> Result<SoftMemory, VerbsError> {
        let what = "memory that cannot be mapped";
        SoftMemory::alloc(len).map_err(|_| VerbsError::InvalidArgument { what })
    }

    asks! {
        query_device() -> DeviceAttr;
        query_port() -> PortAttr;
        query_gid(index: u8) -> Result<Gid, VerbsError>;
        query_srq(srq: Srq) -> Result<SrqAttr, VerbsError>;
        query_qp(qp: Qp) -> Result<(QpAttr, QpMade), VerbsError>;
        qp_num(qp: Qp) -> Result<u32, VerbsError>;
        send_head(qp: Qp, stream_id: u16) -> Option<SendHead>;
    }

    does! {
        alloc_pd() -> Result<Pd, VerbsError>;
        dealloc_pd(pd: Pd) -> Result<(), VerbsError>;
        reg_mr(
            pd: Pd, memory: SoftMemory, iova: Option<u64>, access: AccessFlags
        ) -> Result<MrInfo, VerbsError>;
        reg_mr_part(
            pd: Pd, memory: SoftMemory, part: (u64, u64), iova: Option<u64>, access: AccessFlags
        ) -> Result<MrInfo, VerbsError>;
        dereg_mr(mr: Mr) -> Result<(), VerbsError>;
        write_region(
            mr: Mr, offset: u64, bytes: &[u8], cq: Cq, wr_id: u64
        ) -> Result<bool, VerbsError>;
        alloc_mw(pd: Pd) -> Result<MwInfo, VerbsError>;
        dealloc_mw(mw: Mw) -> Result<(), VerbsError>;
        create_cq(init: CqInit) -> Result<Cq, VerbsError>;
        destroy_cq(cq: Cq) -> Result<(), VerbsError>;
        poll_cq(cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError>;
        req_notify_cq(cq: Cq, solicited_only: bool) -> Result<(), VerbsError>;
        poll_cq_event() -> Option<Cq>;
        create_srq(init: SrqInit) -> Result<Srq, VerbsError>;
        modify_srq(srq: Srq, limit: u32) -> Result<(), VerbsError>;
        destroy_srq(srq: Srq) -> Result<(), VerbsError>;
        create_ah(pd: Pd, av: AddressVector) -> Result<Ah, VerbsError>;
        destroy_ah(ah: Ah) -> Result<(), VerbsError>;
        create_qp(init: QpInit) -> Result<Qp, VerbsError>;
        poll_async_event() -> Option<AsyncEvent>;
        take_short_turns(qp: Qp, short: bool) -> ();
    }

    does_at! {
        post_srq_recv(srq: Srq, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)>;
        modify_qp(qp: Qp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError>;
        destroy_qp(qp: Qp) -> Result<(), VerbsError>;
        reset_dci_stream(qp: Qp, stream_id: u16) -> Result<(), VerbsError>;
        give_up_head(qp: Qp, stream_id: u16, head: SendHead) -> bool;
        post_send(qp: Qp, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)>;
        post_recv(qp: Qp, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)>;
    }

    #[inline]
    fn post_sends<'a>(
        &mut self,
        qp: Qp,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        self.0.post_sends(NOW, qp, wrs)
    }

    fn progress(&mut self) -> bool {
        false
    }

    fn intake(&mut self) -> Intake {
        Intake::Empty
    }
}
