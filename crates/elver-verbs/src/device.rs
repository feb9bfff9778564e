use crate::{
    AccessFlags, AddressVector, Ah, AsyncEvent, Cq, DeviceAttr, Gid, Memory, Mr, Mw, Pd, PortAttr,
    PostError, Qp, QpAttr, QpAttrMask, QpInit, QpMade, RecvWr, SendHead, SendWr, Srq, VerbsError,
    Wc, qp_state,
};

/// How much of what has arrived at a device was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Intake {
    /// What had arrived before may wait still.
    #[default]
    Behind,
    /// All was taken that had arrived when it was last [`Intake::Past`] or [`Intake::Empty`], and more came meanwhile.
    Past,
    /// There was a moment at which nothing waited.
    Empty,
}

/// Something that offers verbs: the software RNIC in real or virtual time, or hardware.
///
/// One owner drives a device; calls never block. A software device makes progress in
/// [`Device::poll_cq`] and [`Device::progress`] unless a thread of its own drives it; calling them
/// is always harmless.
///
/// # Who sent it
///
/// A device tells of every message that came over RC, UC or DC which node it came from
/// ([`Wc::src_gid`]), and nobody but that node, and who stands on the way to it, can make it say so:
/// messages carry no claim of their own. Of a connected QP it is the node at the other end. Of a DC
/// target it is the address that the packets came from, which a device believes when answers to it
/// have got there and come back. The software device fills it in from the packets. Over libibverbs
/// whoever drives the device knows the peers of RC QPs; the CQE of an mlx5 DCT names no source, so
/// that messages over its DC come from [`Gid::default`], which is nobody, until they carry a tag
/// that is made with a secret of the pair. A secret made of both nodes' records would not do: all
/// members can read these.
pub trait Device {
    /// The memory that the device can register.
    type Memory: Memory;

    /// Allocates zeroed memory of `len` bytes that can be registered.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] or [`VerbsError::Limit`] if there is not so much.
    fn alloc_memory(&mut self, len: u64) -> Result<Self::Memory, VerbsError>;

    /// Capabilities and limits.
    fn query_device(&self) -> DeviceAttr;

    /// The port.
    fn query_port(&self) -> PortAttr;

    /// An entry of the GID table.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if the table has no such entry.
    fn query_gid(&self, index: u8) -> Result<Gid, VerbsError>;

    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Limit`].
    fn alloc_pd(&mut self) -> Result<Pd, VerbsError>;

    /// Frees a protection domain that nothing uses.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`].
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), VerbsError>;

    /// Registers memory. `iova` is the address of its first byte in WRs and for peers; without it,
    /// [`Memory::base_addr`], or 0 with [`AccessFlags::ZERO_BASED`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain; [`VerbsError::OutOfRange`] and
    /// [`VerbsError::InvalidArgument`] if memory, address and rights do not go together; [`VerbsError::Limit`].
    fn reg_mr(
        &mut self,
        pd: Pd,
        memory: Self::Memory,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError>;

    /// Registers a part of a memory, the offset of its first byte and its length: what lies outside of it
    /// its keys do not open. `iova` is the address of the part's first byte; otherwise as
    /// [`Device::reg_mr`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if the part does not lie in the memory; otherwise as [`Device::reg_mr`].
    fn reg_mr_part(
        &mut self,
        pd: Pd,
        memory: Self::Memory,
        part: (u64, u64),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError>;

    /// Deregisters a region that no window is bound to, and that nothing is copied to or from just now
    /// ([`crate::MemoryError::Later`]); otherwise it is in use. Accesses that arrive later are refused.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`].
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), VerbsError>;

    /// Writes bytes to a region, at most 64 KiB. If its memory is not at hand
    /// ([`crate::MemoryError::Later`]) the answer is false, the region and `cq` are in use, and a completion
    /// with `wr_id` comes to `cq` when they were written; its status is [`crate::WcStatus::LocProtErr`] if
    /// they could not be. `cq` must have room for as many as are under way.
    ///
    /// No verb: for who takes part in what a device does, and must wait for nobody either.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for more than 64 KiB; [`VerbsError::InvalidHandle`] if there is no such CQ;
    /// [`VerbsError::InvalidArgument`] if the region is gone or does not take the bytes, or too much waits for
    /// its owner.
    fn write_region(
        &mut self,
        mr: Mr,
        offset: u64,
        bytes: &[u8],
        cq: Cq,
        wr_id: u64,
    ) -> Result<bool, VerbsError>;

    /// Allocates a type 2 memory window, unbound.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain; [`VerbsError::Limit`].
    fn alloc_mw(&mut self, pd: Pd) -> Result<MwInfo, VerbsError>;

    /// Frees a memory window, bound or not.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] as long as bytes are copied through it.
    fn dealloc_mw(&mut self, mw: Mw) -> Result<(), VerbsError>;

    /// Creates a completion queue.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`]; [`VerbsError::Limit`].
    fn create_cq(&mut self, init: CqInit) -> Result<Cq, VerbsError>;

    /// Destroys a CQ that no QP uses.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`].
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), VerbsError>;

    /// Takes completions, oldest first; returns how many.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`].
    fn poll_cq(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError>;

    /// Asks for one completion event at the next completion, or the next solicited one.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`].
    fn req_notify_cq(&mut self, cq: Cq, solicited_only: bool) -> Result<(), VerbsError>;

    /// Takes a completion event: the CQ that has something to poll.
    fn poll_cq_event(&mut self) -> Option<Cq>;

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain; [`VerbsError::OutOfRange`];
    /// [`VerbsError::Limit`].
    fn create_srq(&mut self, init: SrqInit) -> Result<Srq, VerbsError>;

    /// Arms the limit event of an SRQ: it fires once when fewer WRs than `limit` are left.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::OutOfRange`] if the limit is more than it holds.
    fn modify_srq(&mut self, srq: Srq, limit: u32) -> Result<(), VerbsError>;

    /// Sizes of an SRQ and its armed limit.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`].
    fn query_srq(&self, srq: Srq) -> Result<SrqAttr, VerbsError>;

    /// Destroys an SRQ that no QP uses.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`].
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), VerbsError>;

    /// Posts receives on an SRQ, as [`Device::post_send`].
    ///
    /// # Errors
    ///
    /// The index of the receive that was refused, and why.
    fn post_srq_recv(&mut self, srq: Srq, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)>;

    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain or GID; [`VerbsError::InvalidArgument`] if
    /// nothing can be sent there; [`VerbsError::Limit`].
    fn create_ah(&mut self, pd: Pd, av: AddressVector) -> Result<Ah, VerbsError>;

    /// Destroys an address handle.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`].
    fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError>;

    /// Creates a QP in RESET.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain, CQ or SRQ; [`VerbsError::OutOfRange`];
    /// [`VerbsError::InvalidArgument`] and [`VerbsError::Unsupported`] for a type that the device does not
    /// have, or not so; [`VerbsError::Limit`].
    fn create_qp(&mut self, init: QpInit) -> Result<Qp, VerbsError>;

    /// Changes attributes and state of a QP; see [`crate::qp_state`]. It cannot go to RESET, and is
    /// in use, while something is copied to the memory of its WRs ([`crate::MemoryError::Later`]);
    /// their completions say when that has ended.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::WrongCurrentState`]; [`VerbsError::InvalidTransition`];
    /// [`VerbsError::InvalidAttributeMask`]; [`VerbsError::OutOfRange`] for an attribute that cannot be;
    /// [`VerbsError::InUse`].
    fn modify_qp(&mut self, qp: Qp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError>;

    /// Takes a QP to `attr.qp_state` with just the attributes that this step requires; the others in
    /// `attr` are not looked at, so that one value serves for several steps.
    ///
    /// # Errors
    ///
    /// As [`Device::modify_qp`].
    fn advance_qp(&mut self, qp: Qp, attr: &QpAttr) -> Result<(), VerbsError> {
        let (now, init) = self.query_qp(qp)?;
        let row = qp_state::transition(init.qp_type, now.qp_state, attr.qp_state);
        let required = row.map_or(QpAttrMask::empty(), |row| row.required);
        self.modify_qp(qp, attr, required | QpAttrMask::STATE)
    }

    /// All attributes of a QP, and what it was created with. Of an RC QP `rq_psn` is the PSN that it
    /// expects next (IBTA vol. 1, 11.2.5.3): its peer's requests before that were executed, and none
    /// is any more once it is in ERR, unless `rq_waiting` says so.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`].
    fn query_qp(&self, qp: Qp) -> Result<(QpAttr, QpMade), VerbsError>;

    /// The QP's number on the wire. A DCT has one only from RTR on.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InvalidArgument`] of a DCT that is not in RTR.
    fn qp_num(&self, qp: Qp) -> Result<u32, VerbsError>;

    /// Destroys a QP. Its outstanding WRs give no completions, and completions of its that were
    /// not yet polled are gone. It is in use as long as it cannot go to RESET.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`].
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), VerbsError>;

    /// Sets an errored stream of a DCI going again (`mlx5dv_dci_stream_id_reset`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InvalidArgument`] of what is no DCI, or is not in RTS.
    fn reset_dci_stream(&mut self, qp: Qp, stream_id: u16) -> Result<(), VerbsError>;

    /// The oldest WR of a send queue, or of a DCI's stream, that has not ended, if the device can tell which.
    fn send_head(&self, qp: Qp, stream_id: u16) -> Option<SendHead>;

    /// Ends that WR with `RetryExcErr`, as if its peer had never answered, with all that follows from it: a peer
    /// that keeps saying that it is not ready is heard, and its WR has no end of its own. Returns whether
    /// it did: not if something was acknowledged since.
    fn give_up_head(&mut self, qp: Qp, stream_id: u16, head: SendHead) -> bool;

    /// Whether a QP sends but little in each of its turns, so that others wait less for it: what goes
    /// to the network in one piece, a software device cannot take back. A device whose hardware
    /// interleaves packets has nothing to do for it.
    fn take_short_turns(&mut self, _qp: Qp, _short: bool) {}

    /// Posts send WRs. On an error the WRs before the refused one are posted: the pair tells how
    /// many.
    ///
    /// # Errors
    ///
    /// The index of the WR that was refused, and why.
    fn post_send(&mut self, qp: Qp, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)>;

    /// Posts the send WRs that `wrs` gives, as [`Device::post_send`]: who keeps WRs in another form
    /// writes none of them down in this one.
    ///
    /// # Errors
    ///
    /// As [`Device::post_send`].
    fn post_sends<'a>(
        &mut self,
        qp: Qp,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)>;

    /// Posts receive WRs, as [`Device::post_send`].
    ///
    /// # Errors
    ///
    /// The index of the receive that was refused, and why.
    fn post_recv(&mut self, qp: Qp, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)>;

    /// Takes an asynchronous event, oldest first.
    fn poll_async_event(&mut self) -> Option<AsyncEvent>;

    /// Drives a software device: sends, receives, timers. Returns whether anything happened.
    fn progress(&mut self) -> bool;

    /// How much of what has arrived was taken since this was asked last: whoever calls a peer silent must know that
    /// nothing of its waits here.
    fn intake(&mut self) -> Intake;
}

/// What a CQ is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqInit {
    /// Entries that it must hold.
    pub cqe: u32,
}

/// What an SRQ is created with (`struct ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Protection domain of its buffers.
    pub pd: Pd,
    /// Most outstanding receives.
    pub max_wr: u32,
    /// Most SGEs in a receive.
    pub max_sge: u32,
}

/// Attributes of an SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Most outstanding receives.
    pub max_wr: u32,
    /// Most SGEs in a receive.
    pub max_sge: u32,
    /// The armed limit; 0 when none is armed.
    pub limit: u32,
}

/// A registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// The handle.
    pub mr: Mr,
    /// Key for local SGEs.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwInfo {
    /// The handle.
    pub mw: Mw,
    /// The rkey whose upper 24 bits every bind must carry.
    pub rkey: u32,
}
