//! A device with what its QPs need, and how QPs come to RTS.

use std::net::IpAddr;

use anyhow::{Context, Result};
use elver_rnic::{Config, Rnic, Time};
use elver_soft::SoftMemory;
use elver_verbs::{
    AccessFlags, AddressVector, Cq, CqInit, Dest, Gid, MrInfo, Mtu, Pd, Qp, QpAttr, QpAttrMask,
    QpCap, QpInit, QpState, QpType, RecvWr, RemoteAddr, Sge, Srq, SrqInit, Wc, WcStatus, qp_state,
};

/// The most operations that any path keeps outstanding.
pub(crate) const OUTSTANDING_MAX: u32 = 64;

const ACCESS: AccessFlags = AccessFlags::all().difference(AccessFlags::ZERO_BASED);
const DC_KEY: u64 = 0x0123_4567_89ab_cdef;
const QKEY: u32 = 0x1111;
const MEMORY_BYTES: u64 = 2 << 20;

pub(crate) struct Host {
    pub(crate) nic: Rnic<SoftMemory>,
    cq: Cq,
    /// Kept, so that clearing it is not counted.
    wcs: [Wc; OUTSTANDING_MAX as usize],
    address: IpAddr,
    pd: Pd,
    mr: MrInfo,
}

impl Host {
    /// A device with a PD, a CQ and a region.
    pub(crate) fn new(number: u8) -> Result<Host> {
        let address = IpAddr::from([10, 0, 0, number]);
        let mut nic = Rnic::new(Config::for_address(address), u64::from(number))?;
        let pd = nic.alloc_pd()?;
        let cq = nic.create_cq(CqInit { cqe: 4 * OUTSTANDING_MAX })?;
        let mr = nic.reg_mr(pd, SoftMemory::alloc(MEMORY_BYTES)?, None, ACCESS)?;
        let wcs = [Wc::default(); OUTSTANDING_MAX as usize];
        Ok(Host { nic, cq, wcs, address, pd, mr })
    }

    /// The start of its region, as local memory.
    pub(crate) fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.mr.addr, length, lkey: self.mr.lkey }
    }

    /// The start of its region, as remote memory.
    pub(crate) fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr, rkey: self.mr.rkey }
    }

    /// Posts receives of `length` bytes.
    pub(crate) fn post_receives(&mut self, now: Time, qp: Qp, count: u32, length: u32) {
        let sges = [self.sge(length)];
        for wr_id in 0..u64::from(count) {
            let wr = RecvWr { wr_id, sges: &sges };
            self.nic.post_recv(now, qp, &[wr]).expect("the receive queue has room");
        }
    }

    /// Takes the completions that are there; returns how many.
    pub(crate) fn completions(&mut self) -> u32 {
        let count = self.nic.poll_cq(self.cq, &mut self.wcs).expect("the CQ is there");
        for wc in &self.wcs[..count] {
            assert!(wc.status == WcStatus::Success, "{wc:?}");
        }
        count as u32
    }

    pub(crate) fn create_qp(&mut self, qp_type: QpType, srq: Option<Srq>) -> Result<Qp> {
        let cap = QpCap {
            max_send_wr: OUTSTANDING_MAX,
            max_recv_wr: OUTSTANDING_MAX,
            ..QpCap::default()
        };
        let init = QpInit::new(qp_type, self.pd, self.cq);
        let dc_access_key = if qp_type == QpType::Dct { DC_KEY } else { 0 };
        Ok(self.nic.create_qp(QpInit { cap, srq, dc_access_key, sq_sig_all: true, ..init })?)
    }

    /// Brings a QP as far as its type goes, towards `peer`.
    pub(crate) fn connect(&mut self, qp: Qp, qp_type: QpType, peer: Peer) -> Result<()> {
        let mut attr = QpAttr {
            qp_access_flags: ACCESS,
            qkey: QKEY,
            ah_attr: AddressVector { dgid: Gid::from(peer.address), ..AddressVector::default() },
            path_mtu: Mtu::Mtu4096,
            dest_qp_num: peer.qp_num,
            max_rd_atomic: 128,
            max_dest_rd_atomic: 128,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let mut from = QpState::Reset;
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let Some(row) = qp_state::transition(qp_type, from, to) else { break };
            attr.qp_state = to;
            self.nic.modify_qp(Time::ZERO, qp, &attr, QpAttrMask::STATE | row.required)?;
            from = to;
        }
        Ok(())
    }

    /// Where QPs of others find one of ours.
    pub(crate) fn peer(&self, qp: Qp) -> Result<Peer> {
        Ok(Peer { address: self.address, qp_num: self.nic.qp_num(qp)? })
    }

    /// A DCT with an SRQ, in RTR.
    pub(crate) fn create_dct(&mut self) -> Result<Qp> {
        let srq = SrqInit { pd: self.pd, max_wr: OUTSTANDING_MAX, max_sge: 1 };
        let srq = self.nic.create_srq(srq)?;
        let qp = self.create_qp(QpType::Dct, Some(srq))?;
        self.connect(qp, QpType::Dct, self.nobody())?;
        Ok(qp)
    }

    /// For QPs that are tied to no peer.
    pub(crate) fn nobody(&self) -> Peer {
        Peer { address: self.address, qp_num: 0 }
    }

    /// What a WR says of its destination.
    pub(crate) fn dest(&mut self, qp_type: QpType, peer: Peer) -> Result<Option<Dest>> {
        if !qp_type.needs_dest() {
            return Ok(None);
        }
        let av = AddressVector { dgid: Gid::from(peer.address), ..AddressVector::default() };
        let ah = self.nic.create_ah(self.pd, av).context("an address handle")?;
        let remote_qpn = peer.qp_num;
        Ok(Some(match qp_type {
            QpType::Ud => Dest::Ud { ah, remote_qpn, remote_qkey: QKEY },
            _ => Dest::Dc { ah, remote_dctn: remote_qpn, dc_access_key: DC_KEY, stream_id: 0 },
        }))
    }
}

/// Where a QP is found.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    address: IpAddr,
    qp_num: u32,
}
