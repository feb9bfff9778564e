//! One end of a measurement: a QP with what it needs, on any device.

use anyhow::{Context, Result, ensure};
use elver_verbs::{
    AccessFlags, AddressVector, Cq, CqInit, Dest, Device, Gid, Memory, MrInfo, Mtu, Pd, Qp, QpAttr,
    QpCap, QpInit, QpState, QpType, RecvWr, RemoteAddr, Sge, Srq, SrqInit, Wc, WcStatus,
};
use serde::{Deserialize, Serialize};

use crate::perf::load::{Load, Transport};

/// Q_Key of UD QPs; below 2^31, so that it needs no privilege.
const QKEY: u32 = 0x1111_1111;
/// Access key of DCTs. The exchange tells it to the client; it is no secret of the host's.
const DC_KEY: u64 = 0x656c_7665_7220_6463;
/// First PSN of both directions.
const PSN: u32 = 0x123;
/// Receives are posted in batches of at most this many.
const REPOST: usize = 32;
/// Bytes in front of a UD payload.
const GRH: u32 = 40;
/// Local ACK timeout: 4.096 µs · 2^18 = 1.1 s, seven times before an operation fails. Tail probes find what is lost
/// long before; an end that had no turn on its core is not gone.
const TIMEOUT: u8 = 18;

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// What one end tells the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
    pub(crate) qkey: u32,
    pub(crate) dc_access_key: u64,
    /// In bytes.
    pub(crate) mtu: u32,
    pub(crate) rd_atomic: u8,
}

pub(crate) struct Endpoint<M> {
    role: Role,
    transport: Transport,
    size: u32,
    pd: Pd,
    pub(crate) cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    pub(crate) qp: Qp,
    memory: M,
    mr: MrInfo,
    mtu: Mtu,
    pub(crate) dest: Option<Dest>,
    pub(crate) remote: RemoteAddr,
    /// Messages that arrived.
    pub(crate) received: u64,
    /// Receives that are not posted.
    owed: usize,
}

impl<M: Memory> Endpoint<M> {
    /// Makes everything up to a QP in INIT; a DCT in RTR.
    pub(crate) fn open<D: Device<Memory = M>>(
        device: &mut D,
        load: &Load,
        role: Role,
    ) -> Result<Endpoint<M>> {
        let attr = device.query_device();
        let pd = device.alloc_pd()?;
        let receives = (load.depth * 2).clamp(512, attr.max_qp_wr);
        let cq = device.create_cq(CqInit { cqe: load.depth.max(64) })?;
        let recv_cq = device.create_cq(CqInit { cqe: receives + 64 })?;
        let len = u64::from(load.size.max(8)) + u64::from(GRH);
        let memory = device.alloc_memory(len)?;
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let mr = device.reg_mr(pd, memory.clone(), None, access)?;
        let (qp_type, srq) = match (load.transport, role) {
            (Transport::Rc, _) => (QpType::Rc, None),
            (Transport::Uc, _) => (QpType::Uc, None),
            (Transport::Ud, _) => (QpType::Ud, None),
            (Transport::Dc, Role::Client) => (QpType::Dci, None),
            (Transport::Dc, Role::Server) => {
                let init = SrqInit { pd, max_wr: receives, max_sge: 1 };
                (QpType::Dct, Some(device.create_srq(init)?))
            }
        };
        let cap = QpCap {
            max_send_wr: load.depth.max(16),
            max_recv_wr: if srq.is_some() { 0 } else { receives },
            ..QpCap::default()
        };
        let dc_access_key = DC_KEY;
        let init = QpInit { cap, srq, recv_cq, dc_access_key, ..QpInit::new(qp_type, pd, cq) };
        let qp = device.create_qp(init)?;
        let active = device.query_port().active_mtu;
        let remote = RemoteAddr { addr: 0, rkey: 0 };
        let endpoint = Endpoint {
            role,
            transport: load.transport,
            size: load.size,
            pd,
            cq,
            recv_cq,
            srq,
            qp,
            memory,
            mr,
            mtu: load.mtu.unwrap_or(active).min(active),
            dest: None,
            remote,
            received: 0,
            owed: receives as usize,
        };
        let attr = QpAttr { qp_access_flags: access, qkey: QKEY, ..QpAttr::default() };
        endpoint.advance(device, QpState::Init, attr)?;
        if qp_type == QpType::Dct {
            let path_mtu = endpoint.mtu;
            endpoint.advance(
                device,
                QpState::Rtr,
                QpAttr { path_mtu, min_rnr_timer: 1, ..attr },
            )?;
        }
        Ok(endpoint)
    }

    /// Moves the QP on by one state, with just the attributes that the step requires.
    fn advance<D: Device>(&self, device: &mut D, to: QpState, attr: QpAttr) -> Result<()> {
        Ok(device.advance_qp(self.qp, &QpAttr { qp_state: to, ..attr })?)
    }

    /// What the other end must know.
    pub(crate) fn offer<D: Device>(&self, device: &D) -> Result<Offer> {
        Ok(Offer {
            qpn: device.qp_num(self.qp)?,
            psn: PSN,
            gid: device.query_gid(0)?.0,
            rkey: self.mr.rkey,
            addr: self.mr.addr,
            qkey: QKEY,
            dc_access_key: DC_KEY,
            mtu: self.mtu.bytes(),
            rd_atomic: device.query_device().max_qp_rd_atom,
        })
    }

    /// Connects to the other end and posts the receives.
    pub(crate) fn connect<D: Device>(&mut self, device: &mut D, peer: &Offer) -> Result<()> {
        let theirs = Mtu::from_bytes(peer.mtu);
        let theirs = theirs.with_context(|| format!("the peer's MTU of {} bytes", peer.mtu))?;
        self.mtu = self.mtu.min(theirs);
        if self.transport == Transport::Ud {
            let (size, mtu) = (self.size, self.mtu.bytes());
            ensure!(size <= mtu, "a UD message of {size} bytes exceeds the path MTU of {mtu}");
        }
        let av = AddressVector { dgid: Gid(peer.gid), ..AddressVector::default() };
        let (_, init) = device.query_qp(self.qp)?;
        let most = device.query_device().max_qp_init_rd_atom;
        let attr = QpAttr {
            ah_attr: av,
            path_mtu: self.mtu,
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: PSN,
            max_rd_atomic: most.min(peer.rd_atomic),
            max_dest_rd_atomic: most,
            min_rnr_timer: 1,
            timeout: TIMEOUT,
            ..QpAttr::default()
        };
        if init.qp_type != QpType::Dct {
            self.advance(device, QpState::Rtr, attr)?;
            self.advance(device, QpState::Rts, attr)?;
        }
        self.remote = RemoteAddr { addr: peer.addr, rkey: peer.rkey };
        self.dest = match init.qp_type {
            QpType::Ud => Some(Dest::Ud {
                ah: device.create_ah(self.pd, av)?,
                remote_qpn: peer.qpn,
                remote_qkey: peer.qkey,
            }),
            QpType::Dci => Some(Dest::Dc {
                ah: device.create_ah(self.pd, av)?,
                remote_dctn: peer.qpn,
                dc_access_key: peer.dc_access_key,
                stream_id: 0,
            }),
            _ => None,
        };
        if self.role == Role::Server {
            self.repost(device, 0)?;
        }
        Ok(())
    }

    /// The local bytes of an operation.
    pub(crate) fn sge(&self) -> Sge {
        Sge { addr: self.mr.addr, length: self.size, lkey: self.mr.lkey }
    }

    /// Takes what arrived and posts receives in its place; returns how many messages there were.
    #[inline]
    pub(crate) fn serve<D: Device>(&mut self, device: &mut D) -> Result<usize> {
        let mut wcs = [Wc::default(); REPOST];
        let found = device.poll_cq(self.recv_cq, &mut wcs)?;
        if found == 0 {
            return Ok(0);
        }
        for wc in &wcs[..found] {
            ensure!(wc.status == WcStatus::Success, "a receive failed: {}", wc.status);
        }
        self.received += found as u64;
        self.owed += found;
        self.repost(device, REPOST)?;
        Ok(found)
    }

    /// Posts the receives that are owed once they are more than `spare`.
    fn repost<D: Device>(&mut self, device: &mut D, spare: usize) -> Result<()> {
        while self.owed > spare {
            let (addr, lkey) = (self.mr.addr, self.mr.lkey);
            let sges = [Sge { addr, length: self.mr.length as u32, lkey }];
            let wrs = [RecvWr { wr_id: 0, sges: &sges }; REPOST];
            let count = self.owed.min(REPOST);
            let posted = match self.srq {
                Some(srq) => device.post_srq_recv(srq, &wrs[..count]),
                None => device.post_recv(self.qp, &wrs[..count]),
            };
            posted.map_err(|(_, error)| error)?;
            self.owed -= count;
        }
        Ok(())
    }

    /// Destroys everything.
    pub(crate) fn close<D: Device<Memory = M>>(self, device: &mut D) -> Result<()> {
        device.destroy_qp(self.qp)?;
        if let Some(Dest::Ud { ah, .. } | Dest::Dc { ah, .. }) = self.dest {
            device.destroy_ah(ah)?;
        }
        if let Some(srq) = self.srq {
            device.destroy_srq(srq)?;
        }
        device.destroy_cq(self.cq)?;
        device.destroy_cq(self.recv_cq)?;
        device.dereg_mr(self.mr.mr)?;
        drop(self.memory);
        Ok(device.dealloc_pd(self.pd)?)
    }
}
