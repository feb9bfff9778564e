//! A simulated device that refuses calls for queue pairs when it is told to.

use elver_sim::SimDevice;
use elver_verbs::*;

/// See the module. Everything else goes to the device within.
pub struct Stubborn {
    pub inner: SimDevice,
    /// It refuses to change any queue pair,
    pub no_modify: bool,
    /// or one of these.
    pub no_modify_of: Vec<Qp>,
    /// It refuses to make queue pairs.
    pub no_create: bool,
    /// Its queue pairs that are in error copy what their peers write, as it says.
    pub copies: bool,
    /// It says of regions that are deregistered so often that they are in use.
    pub in_use: u32,
    /// Which queue pairs were told to take short turns, or no longer to.
    pub short_turns: Vec<(Qp, bool)>,
    /// Parts of memory that were registered, and with which rights.
    pub parts: Vec<(MrInfo, AccessFlags)>,
    /// Send WRs of each call that posted some.
    pub posts: Vec<usize>,
}

impl Stubborn {
    pub fn new(inner: SimDevice) -> Stubborn {
        Stubborn {
            inner,
            no_modify: false,
            no_modify_of: Vec::new(),
            no_create: false,
            copies: false,
            in_use: 0,
            short_turns: Vec::new(),
            parts: Vec::new(),
            posts: Vec::new(),
        }
    }

    /// The queue pairs of a type.
    pub fn qps_of(&self, qp_type: QpType) -> Vec<Qp> {
        let of = |qp: &Qp| self.inner.query_qp(*qp).unwrap().1.qp_type == qp_type;
        self.inner.qps().filter(of).collect()
    }
}

/// Calls that go to the device within as they are.
macro_rules! passed_on {
    ($(&mut $name:ident($($arg:ident: $of:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&mut self, $($arg: $of),*) $(-> $result)? {
            self.inner.$name($($arg),*)
        })*
    };
    ($(&$name:ident($($arg:ident: $of:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $of),*) -> $result {
            self.inner.$name($($arg),*)
        })*
    };
}

type Made<T> = Result<T, VerbsError>;
type Posted = Result<(), (usize, PostError)>;

impl Device for Stubborn {
    type Memory = <SimDevice as Device>::Memory;

    fn create_qp(&mut self, init: QpInit) -> Made<Qp> {
        if self.no_create {
            return Err(VerbsError::Unsupported { what: "queue pairs, for now" });
        }
        self.inner.create_qp(init)
    }

    fn modify_qp(&mut self, qp: Qp, attr: &QpAttr, mask: QpAttrMask) -> Made<()> {
        if self.no_modify || self.no_modify_of.contains(&qp) {
            return Err(VerbsError::Unsupported { what: "changes of queue pairs, for now" });
        }
        self.inner.modify_qp(qp, attr, mask)
    }

    fn query_qp(&self, qp: Qp) -> Made<(QpAttr, QpMade)> {
        let (attr, made) = self.inner.query_qp(qp)?;
        let rq_waiting = attr.rq_waiting || self.copies && attr.qp_state == QpState::Err;
        Ok((QpAttr { rq_waiting, ..attr }, made))
    }

    fn dereg_mr(&mut self, mr: Mr) -> Made<()> {
        if self.in_use > 0 {
            self.in_use -= 1;
            return Err(VerbsError::InUse { kind: ObjectKind::Mr, handle: mr.0, users: 1 });
        }
        self.inner.dereg_mr(mr)
    }

    fn reg_mr_part(
        &mut self,
        pd: Pd,
        memory: Self::Memory,
        part: (u64, u64),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Made<MrInfo> {
        let info = self.inner.reg_mr_part(pd, memory, part, iova, access)?;
        self.parts.push((info, access));
        Ok(info)
    }

    fn take_short_turns(&mut self, qp: Qp, short: bool) {
        self.short_turns.push((qp, short));
        self.inner.take_short_turns(qp, short);
    }

    fn post_sends<'a>(&mut self, qp: Qp, wrs: impl Iterator<Item = SendWr<'a>>) -> Posted {
        let mut count = 0;
        let posted = self.inner.post_sends(qp, wrs.inspect(|_| count += 1));
        self.posts.push(count);
        posted
    }

    fn post_send(&mut self, qp: Qp, wrs: &[SendWr<'_>]) -> Posted {
        self.posts.push(wrs.len());
        self.inner.post_send(qp, wrs)
    }

    passed_on! {
        &query_device() -> DeviceAttr;
        &query_port() -> PortAttr;
        &query_gid(index: u8) -> Made<Gid>;
        &query_srq(srq: Srq) -> Made<SrqAttr>;
        &qp_num(qp: Qp) -> Made<u32>;
        &send_head(qp: Qp, stream_id: u16) -> Option<SendHead>;
    }

    passed_on! {
        &mut alloc_memory(len: u64) -> Made<Self::Memory>;
        &mut alloc_pd() -> Made<Pd>;
        &mut dealloc_pd(pd: Pd) -> Made<()>;
        &mut reg_mr(pd: Pd, memory: Self::Memory, iova: Option<u64>, access: AccessFlags)
            -> Made<MrInfo>;
        &mut write_region(mr: Mr, offset: u64, bytes: &[u8], cq: Cq, wr_id: u64) -> Made<bool>;
        &mut alloc_mw(pd: Pd) -> Made<MwInfo>;
        &mut dealloc_mw(mw: Mw) -> Made<()>;
        &mut create_cq(init: CqInit) -> Made<Cq>;
        &mut destroy_cq(cq: Cq) -> Made<()>;
        &mut poll_cq(cq: Cq, wcs: &mut [Wc]) -> Made<usize>;
        &mut req_notify_cq(cq: Cq, solicited_only: bool) -> Made<()>;
        &mut poll_cq_event() -> Option<Cq>;
        &mut create_srq(init: SrqInit) -> Made<Srq>;
        &mut modify_srq(srq: Srq, limit: u32) -> Made<()>;
        &mut destroy_srq(srq: Srq) -> Made<()>;
        &mut post_srq_recv(srq: Srq, wrs: &[RecvWr<'_>]) -> Posted;
        &mut create_ah(pd: Pd, av: AddressVector) -> Made<Ah>;
        &mut destroy_ah(ah: Ah) -> Made<()>;
        &mut destroy_qp(qp: Qp) -> Made<()>;
        &mut reset_dci_stream(qp: Qp, stream_id: u16) -> Made<()>;
        &mut give_up_head(qp: Qp, stream_id: u16, head: SendHead) -> bool;
        &mut post_recv(qp: Qp, wrs: &[RecvWr<'_>]) -> Posted;
        &mut poll_async_event() -> Option<AsyncEvent>;
        &mut progress() -> bool;
        &mut intake() -> Intake;
    }
}
