//! Calls of the verbs: those that all devices have, and those that only a soft one has.

use std::net::{IpAddr, SocketAddr};

use elver_memory::SoftMemory;
use elver_rnic::{MrChange, Time};
use elver_verbs::{
    AccessFlags, AddressVector, Ah, Cq, Device, Gid, Intake, Mr, MrInfo, MwInfo, Pd, PostError, Qp,
    QpAttr, QpMade, SendFlags, SendOp, SendWr, Srq, SrqInit, VerbsError, Wc, Xrcd,
};

use super::SoftDevice;
use crate::SoftError;
use crate::clock::now;
use crate::groups::Groups;
use crate::link::Port;

/// Polls that found completions before one of them drives the device all the same.
const POLLS_PER_PROGRESS: u32 = 64;

impl SoftDevice {
    #[inline]
    fn now(&self) -> Time {
        now()
    }

    /// As [`Rnic::rereg_mr`](elver_rnic::Rnic::rereg_mr).
    ///
    /// # Errors
    /// As there.
    pub fn rereg_mr(&mut self, mr: Mr, change: MrChange<SoftMemory>) -> Result<(), VerbsError> {
        self.rnic.rereg_mr(mr, change)
    }

    /// As [`Rnic::alloc_mw_type_1`](elver_rnic::Rnic::alloc_mw_type_1).
    ///
    /// # Errors
    /// As there.
    pub fn alloc_mw_type_1(&mut self, pd: Pd) -> Result<MwInfo, VerbsError> {
        self.rnic.alloc_mw_type_1(pd)
    }

    /// As [`Rnic::open_xrcd`](elver_rnic::Rnic::open_xrcd).
    ///
    /// # Errors
    /// As there.
    pub fn open_xrcd(&mut self) -> Result<Xrcd, VerbsError> {
        self.rnic.open_xrcd()
    }

    /// As [`Rnic::close_xrcd`](elver_rnic::Rnic::close_xrcd).
    ///
    /// # Errors
    /// As there.
    pub fn close_xrcd(&mut self, xrcd: Xrcd) -> Result<(), VerbsError> {
        self.rnic.close_xrcd(xrcd)
    }

    /// As [`Rnic::create_xrc_srq`](elver_rnic::Rnic::create_xrc_srq).
    ///
    /// # Errors
    /// As there.
    pub fn create_xrc_srq(&mut self, init: SrqInit, xrcd: Xrcd, cq: Cq) -> Result<Srq, VerbsError> {
        self.rnic.create_xrc_srq(init, xrcd, cq)
    }

    /// As [`Rnic::create_xrc_target`](elver_rnic::Rnic::create_xrc_target).
    ///
    /// # Errors
    /// As there.
    pub fn create_xrc_target(&mut self, xrcd: Xrcd) -> Result<Qp, VerbsError> {
        self.rnic.create_xrc_target(xrcd)
    }

    /// As [`Rnic::create_multicast_ah`](elver_rnic::Rnic::create_multicast_ah).
    ///
    /// # Errors
    /// As there.
    pub fn create_multicast_ah(&mut self, pd: Pd, av: AddressVector) -> Result<Ah, VerbsError> {
        self.rnic.create_multicast_ah(pd, av)
    }

    /// As [`Rnic::attach_multicast`](elver_rnic::Rnic::attach_multicast); and what is sent to the group is brought from now on.
    ///
    /// # Errors
    /// As there; [`SoftError::System`], [`SoftError::Option`] or [`SoftError::Bind`] if the group cannot be joined.
    pub fn attach_multicast(&mut self, qp: Qp, group: Gid) -> Result<(), SoftError> {
        if !self.rnic.attach_multicast(qp, group)? {
            return Ok(());
        }
        let joined = self.join(group.to_ip());
        if joined.is_err() {
            self.rnic.detach_multicast(qp, group)?;
        }
        joined
    }

    /// Has the datagrams of a group brought.
    fn join(&mut self, group: IpAddr) -> Result<(), SoftError> {
        if let Port::Frames(port) = &mut self.port {
            port.host_mut().join(group);
            return Ok(());
        }
        let groups = match &mut self.groups {
            Some(groups) => groups,
            none => none.insert(Box::new(Groups::new()?)),
        };
        groups.join(SocketAddr::new(group, self.rnic.config().udp_port), self.interface)
    }

    /// As [`Rnic::detach_multicast`](elver_rnic::Rnic::detach_multicast).
    ///
    /// # Errors
    /// As there.
    pub fn detach_multicast(&mut self, qp: Qp, group: Gid) -> Result<(), VerbsError> {
        if self.rnic.detach_multicast(qp, group)? {
            if let Port::Frames(port) = &mut self.port {
                port.host_mut().leave(group.to_ip());
            }
            if let Some(groups) = &mut self.groups {
                groups.leave(group.to_ip());
            }
        }
        Ok(())
    }

    /// Detaches a QP from all multicast groups.
    pub fn detach_all_multicast(&mut self, qp: Qp) {
        for group in self.rnic.groups_of(qp) {
            // It is attached.
            let _ = self.detach_multicast(qp, group);
        }
    }

    /// As [`Rnic::resize_cq`](elver_rnic::Rnic::resize_cq).
    ///
    /// # Errors
    /// As there.
    pub fn resize_cq(&mut self, cq: Cq, cqe: u32) -> Result<(), VerbsError> {
        self.rnic.resize_cq(cq, cqe)
    }

    /// As [`Rnic::resize_srq`](elver_rnic::Rnic::resize_srq).
    ///
    /// # Errors
    /// As there.
    pub fn resize_srq(&mut self, srq: Srq, max_wr: u32) -> Result<(), VerbsError> {
        self.rnic.resize_srq(srq, max_wr)
    }

    /// Takes completions that are there, as [`Device::poll_cq`], without driving the device.
    ///
    /// # Errors
    /// An unknown CQ.
    pub fn take_completions(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError> {
        self.rnic.poll_cq(cq, wcs)
    }

    /// As [`Rnic::errored_streams`](elver_rnic::Rnic::errored_streams).
    ///
    /// # Errors
    /// As there.
    pub fn errored_streams(&self, qp: Qp) -> Result<u32, VerbsError> {
        self.rnic.errored_streams(qp)
    }

    /// As [`Rnic::check_sends`](elver_rnic::Rnic::check_sends).
    ///
    /// # Errors
    /// As there.
    pub fn check_sends<'a>(
        &self,
        qp: Qp,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        self.rnic.check_sends(qp, wrs)
    }

    /// As [`Rnic::check_direct`](elver_rnic::Rnic::check_direct).
    #[inline]
    pub fn check_direct(
        &mut self,
        qp: Qp,
        wr: &SendWr<'_>,
        ahead: usize,
        piece: impl FnMut(&SoftMemory, u64, u32) -> bool,
    ) -> Option<u32> {
        self.rnic.check_direct(qp, wr, ahead, piece)
    }

    /// As [`Rnic::end_direct`](elver_rnic::Rnic::end_direct).
    #[inline]
    pub fn end_direct(&mut self, qp: Qp, wr_id: u64, op: &SendOp, flags: SendFlags, length: u32) {
        self.rnic.end_direct(qp, wr_id, op, flags, length);
    }

    /// As [`Rnic::outstanding`](elver_rnic::Rnic::outstanding).
    #[inline]
    pub fn outstanding(&self, qp: Qp) -> usize {
        self.rnic.outstanding(qp)
    }

    /// As [`Rnic::count_direct_refused`](elver_rnic::Rnic::count_direct_refused).
    pub fn count_direct_refused(&mut self, wrs: u64, peers: u64) {
        self.rnic.count_direct_refused(wrs, peers);
    }

    /// As [`Rnic::failures`](elver_rnic::Rnic::failures).
    #[inline]
    pub fn failures(&self) -> u64 {
        self.rnic.failures()
    }
}

/// Whether memory can be registered with such rights.
fn can_open(memory: &SoftMemory, access: AccessFlags) -> Result<(), VerbsError> {
    if access.contains(AccessFlags::REMOTE_ATOMIC) && memory.is_foreign() {
        let what = "remote atomics on memory that another process registered; \
                    let the process allocate the memory at the node instead";
        return Err(VerbsError::Unsupported { what });
    }
    Ok(())
}

impl Device for SoftDevice {
    type Memory = SoftMemory;

    elver_rnic::calls_of_rnic!(rnic, now);

    fn query_qp(&self, qp: Qp) -> Result<(QpAttr, QpMade), VerbsError> {
        self.rnic.query_qp(qp)
    }

    fn alloc_memory(&mut self, len: u64) -> Result<SoftMemory, VerbsError> {
        SoftMemory::alloc(len).map_err(|_| VerbsError::OutOfRange {
            name: "memory that can be mapped, in bytes",
            value: len,
            min: 0,
            max: self.rnic.config().max_mr_size,
        })
    }

    fn reg_mr(
        &mut self,
        pd: Pd,
        memory: SoftMemory,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        can_open(&memory, access)?;
        self.rnic.reg_mr(pd, memory, iova, access)
    }

    fn reg_mr_part(
        &mut self,
        pd: Pd,
        memory: SoftMemory,
        part: (u64, u64),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        can_open(&memory, access)?;
        self.rnic.reg_mr_part(pd, memory, part, iova, access)
    }

    fn write_region(
        &mut self,
        mr: Mr,
        offset: u64,
        bytes: &[u8],
        cq: Cq,
        wr_id: u64,
    ) -> Result<bool, VerbsError> {
        self.rnic.write_region(mr, offset, bytes, cq, wr_id)
    }

    #[inline]
    fn poll_cq(&mut self, cq: Cq, wcs: &mut [Wc]) -> Result<usize, VerbsError> {
        // Before it takes anything: what that brings is taken in this call or the next one that finds something.
        if self.polls >= POLLS_PER_PROGRESS {
            self.drive();
        }
        let count = self.rnic.poll_cq(cq, wcs)?;
        if count > 0 {
            self.polls += 1;
            return Ok(count);
        }
        if !self.drive() {
            return Ok(0);
        }
        self.rnic.poll_cq(cq, wcs)
    }

    #[inline]
    fn post_send(&mut self, qp: Qp, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        let now = now();
        let result = self.rnic.post_send(now, qp, wrs);
        self.posted(now);
        result
    }

    #[inline]
    fn post_sends<'a>(
        &mut self,
        qp: Qp,
        wrs: impl Iterator<Item = SendWr<'a>>,
    ) -> Result<(), (usize, PostError)> {
        let now = now();
        let result = self.rnic.post_sends(now, qp, wrs);
        self.posted(now);
        result
    }

    fn progress(&mut self) -> bool {
        self.drive()
    }

    fn intake(&mut self) -> Intake {
        self.taken.intake()
    }
}
