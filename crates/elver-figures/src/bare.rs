//! One end of an RC QP on a bare device, as a program with verbs has it; the two ends are threads of
//! this process and tell each other of themselves there.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use elver_soft::{SoftConfig, SoftDevice, SoftMemory};
use elver_testbed::meet::Meet;
use elver_verbs::{
    AccessFlags, AddressVector, Cq, CqInit, Device, Gid, MrInfo, Qp, QpAttr, QpCap, QpInit,
    QpState, QpType, RecvWr, RemoteAddr, Sge,
};

/// First PSN of both directions.
const PSN: u32 = 0x123;
/// Local ACK timeout: 4.096 µs · 2^18 = 1.1 s. Tail probes find what is lost long before; an end that
/// had no turn on its core is not gone.
const TIMEOUT: u8 = 18;
/// Bytes of the region.
const REGION: u64 = 64 << 10;
/// How long one end waits for the other.
const WAIT: Duration = Duration::from_secs(60);

/// A connected QP with what it needs.
pub(crate) struct Bare {
    pub(crate) device: SoftDevice,
    pub(crate) qp: Qp,
    /// Of sends, and of receives.
    pub(crate) cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) remote: RemoteAddr,
    mr: MrInfo,
    _memory: SoftMemory,
}

/// What one end tells the other.
#[derive(Clone, Copy, Debug)]
struct Offer {
    gid: Gid,
    qpn: u32,
    remote: RemoteAddr,
}

/// Where the two ends leave their offers, and meet when both can take packets.
#[derive(Default)]
pub(crate) struct Desk {
    offers: [OnceLock<Offer>; 2],
    connected: Meet,
}

impl Bare {
    /// Opens an end with queues of these depths, and connects it to the other one.
    pub(crate) fn open(
        address: IpAddr,
        sends: u32,
        receives: u32,
        desk: &Desk,
        end: usize,
        meanwhile: impl FnOnce(),
    ) -> Result<Bare> {
        let soft = SoftConfig { publish: false, ..SoftConfig::for_address(address) };
        let mut device = SoftDevice::open(soft)?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(CqInit { cqe: sends.max(16) })?;
        let recv_cq = device.create_cq(CqInit { cqe: receives.max(16) })?;
        let memory = device.alloc_memory(REGION)?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        let mr = device.reg_mr(pd, memory.clone(), None, access)?;
        let cap = QpCap { max_send_wr: sends, max_recv_wr: receives, ..QpCap::default() };
        let qp = device.create_qp(QpInit { cap, recv_cq, ..QpInit::new(QpType::Rc, pd, cq) })?;
        let remote = RemoteAddr { addr: mr.addr, rkey: mr.rkey };
        let own = Offer { gid: device.query_gid(0)?, qpn: device.qp_num(qp)?, remote };
        let _ = desk.offers[end].set(own);
        meanwhile();
        let begin = Instant::now();
        let peer = loop {
            if let Some(peer) = desk.offers[1 - end].get() {
                break *peer;
            }
            if begin.elapsed() > WAIT {
                bail!("the other end did not come");
            }
            std::thread::yield_now();
        };
        let most = device.query_device().max_qp_init_rd_atom;
        let attr = QpAttr {
            qp_access_flags: access,
            ah_attr: AddressVector { dgid: peer.gid, ..AddressVector::default() },
            path_mtu: device.query_port().active_mtu,
            dest_qp_num: peer.qpn,
            rq_psn: PSN,
            sq_psn: PSN,
            max_rd_atomic: most,
            max_dest_rd_atomic: most,
            min_rnr_timer: 1,
            timeout: TIMEOUT,
            ..QpAttr::default()
        };
        for qp_state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            device.advance_qp(qp, &QpAttr { qp_state, ..attr })?;
        }
        desk.connected.wait()?;
        Ok(Bare { device, qp, cq, recv_cq, remote: peer.remote, mr, _memory: memory })
    }

    pub(crate) fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.mr.addr, length, lkey: self.mr.lkey }
    }

    /// Posts so many receives of these bytes.
    pub(crate) fn post_recv(&mut self, count: usize, length: u32) -> Result<()> {
        let sges = [self.sge(length)];
        let wrs = vec![RecvWr { wr_id: 0, sges: &sges }; count];
        self.device.post_recv(self.qp, &wrs).map_err(|(_, error)| error.into())
    }
}
