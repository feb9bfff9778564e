//! Our end: the soft device on the guest's link.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver_soft::{FrameLink, FrameSocket, LocalAddress, SoftConfig, SoftDevice, SoftMemory};
use elver_verbs::{
    AccessFlags, AddressVector, Ah, BindMw, Cq, CqInit, Dest, Device, Gid, Memory, MrInfo, Mw,
    MwInfo, Payload, Pd, Qp, QpAttr, QpCap, QpInit, QpState, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge, Wc, WcOpcode,
};

use crate::axes::{Op, Transport};
use crate::relay::Relay;
use crate::side::{About, Connect, Done, MEMORY, QKEY, QpRef, Send, Side, number, pattern};

/// Outstanding WRs of a queue.
const DEPTH: u32 = 256;
/// READs and atomics outstanding.
const RD_ATOMIC: u8 = 16;

pub(crate) struct Ours {
    device: SoftDevice,
    pub(crate) relay: Relay,
    pd: Pd,
    memory: SoftMemory,
    mr: MrInfo,
    qps: Vec<Option<Endpoint>>,
}

struct Endpoint {
    qp: Qp,
    cq: Cq,
    ah: Option<Ah>,
    window: Option<MwInfo>,
}

const REMOTE_ACCESS: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::LOCAL_WRITE);

impl Ours {
    /// Opens a device on the link whose other end the relay has.
    pub(crate) fn open(
        relay: Relay,
        link: OwnedFd,
        address: LocalAddress,
        mtu: u32,
    ) -> Result<Ours> {
        let socket = FrameSocket::from_fd(link)?;
        let link = FrameLink { mtu, ..FrameLink::new(socket, vec![address]) };
        let mut device = SoftDevice::open(SoftConfig::for_frames(link))?;
        let pd = device.alloc_pd()?;
        let memory = device.alloc_memory(MEMORY)?;
        let access = REMOTE_ACCESS | AccessFlags::MW_BIND;
        let mr = device.reg_mr(pd, memory.clone(), None, access)?;
        Ok(Ours { device, relay, pd, memory, mr, qps: Vec::new() })
    }

    /// Moves frames and drives the device; lets others run if there was nothing to do.
    pub(crate) fn progress(&mut self) -> Result<()> {
        let moved = self.relay.pump()?;
        if !self.device.progress() && !moved {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// What the device has done and seen, where it is not 0.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let counters = self.device.counters().iter();
        counters.filter(|(_, value)| *value > 0).map(|(name, value)| (name.into(), value)).collect()
    }

    fn endpoint(&self, qp: QpRef) -> Result<&Endpoint> {
        self.qps.get(qp.id).and_then(Option::as_ref).context("no such QP")
    }

    /// Moves a QP on by one state, with just the attributes that the step requires.
    fn advance(&mut self, qp: Qp, to: QpState, attr: QpAttr) -> Result<()> {
        Ok(self.device.advance_qp(qp, &QpAttr { qp_state: to, ..attr })?)
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr + offset, length, lkey: self.mr.lkey }
    }

    fn post(
        &mut self,
        qp: QpRef,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
        dest: Option<Dest>,
    ) -> Result<()> {
        let qp = self.endpoint(qp)?.qp;
        let payload = Payload::Sges(sges);
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest };
        self.device.post_send(qp, &[wr]).map_err(|(_, error)| error)?;
        Ok(())
    }

    fn free_window(&mut self, mw: Option<Mw>) -> Result<()> {
        mw.map_or(Ok(()), |mw| Ok(self.device.dealloc_mw(mw)?))
    }
}

impl Side for Ours {
    fn about(&mut self) -> Result<About> {
        Ok(About {
            version: env!("CARGO_PKG_VERSION").into(),
            device: self.device.config().name.clone(),
            gid: self.device.query_gid(0)?.0,
            mtu: self.device.query_port().active_mtu.bytes(),
            addr: self.mr.addr,
            rkey: self.mr.rkey,
        })
    }

    fn fill(&mut self, offset: u64, length: u32, seed: u32) -> Result<()> {
        let bytes: Vec<u8> = (0..length).map(|at| pattern(at, seed)).collect();
        self.memory.write(offset, &bytes).context("fill")
    }

    fn check(&mut self, offset: u64, length: u32, seed: u32) -> Result<Option<u32>> {
        let mut bytes = vec![0; length as usize];
        self.memory.read(offset, &mut bytes).context("check")?;
        Ok((0..length).find(|at| bytes[*at as usize] != pattern(*at, seed)))
    }

    fn mixed(&mut self, offset: u64, length: u32, seeds: [u32; 2]) -> Result<Option<u32>> {
        let mut bytes = vec![0; length as usize];
        self.memory.read(offset, &mut bytes).context("mixed")?;
        let known = |at: u32| seeds.iter().any(|seed| bytes[at as usize] == pattern(at, *seed));
        Ok((0..length).find(|at| !known(*at)))
    }

    fn word(&mut self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read(offset, &mut bytes).context("word")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn qp(&mut self, transport: Transport) -> Result<QpRef> {
        let cq = self.device.create_cq(CqInit { cqe: 2 * DEPTH })?;
        let cap = QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpCap::default() };
        let init = QpInit { cap, ..QpInit::new(transport.qp_type(), self.pd, cq) };
        let qp = self.device.create_qp(init)?;
        let attr = QpAttr { qp_access_flags: REMOTE_ACCESS, qkey: QKEY, ..QpAttr::default() };
        self.advance(qp, QpState::Init, attr)?;
        let endpoint = Endpoint { qp, cq, ah: None, window: None };
        let id = self.qps.iter().position(Option::is_none).unwrap_or(self.qps.len());
        if id == self.qps.len() {
            self.qps.push(None);
        }
        self.qps[id] = Some(endpoint);
        Ok(QpRef { id, qpn: self.device.qp_num(qp)? })
    }

    fn connect(&mut self, qp: QpRef, connect: &Connect) -> Result<()> {
        let handle = self.endpoint(qp)?.qp;
        let av = AddressVector { dgid: Gid(connect.peer_gid), ..AddressVector::default() };
        let (_, init) = self.device.query_qp(handle)?;
        if init.qp_type == elver_verbs::QpType::Ud {
            let ah = self.device.create_ah(self.pd, av)?;
            if let Some(endpoint) = &mut self.qps[qp.id] {
                endpoint.ah = Some(ah);
            }
        }
        let attr = QpAttr {
            ah_attr: av,
            path_mtu: connect.mtu,
            dest_qp_num: connect.peer_qpn,
            rq_psn: connect.rq_psn,
            sq_psn: connect.sq_psn,
            max_rd_atomic: RD_ATOMIC,
            max_dest_rd_atomic: RD_ATOMIC,
            min_rnr_timer: connect.min_rnr_timer,
            timeout: connect.timeout,
            retry_cnt: connect.retry_cnt,
            rnr_retry: connect.rnr_retry,
            ..QpAttr::default()
        };
        self.advance(handle, QpState::Rtr, attr)?;
        self.advance(handle, QpState::Rts, attr)
    }

    fn destroy(&mut self, qp: QpRef) -> Result<()> {
        let Some(endpoint) = self.qps.get_mut(qp.id).and_then(Option::take) else {
            bail!("no QP {}", qp.id);
        };
        self.device.destroy_qp(endpoint.qp)?;
        self.free_window(endpoint.window.map(|window| window.mw))?;
        if let Some(ah) = endpoint.ah {
            self.device.destroy_ah(ah)?;
        }
        Ok(self.device.destroy_cq(endpoint.cq)?)
    }

    fn window(&mut self, qp: QpRef, offset: u64, length: u32) -> Result<u32> {
        let earlier = self.endpoint(qp)?.window;
        self.free_window(earlier.map(|window| window.mw))?;
        let window = self.device.alloc_mw(self.pd)?;
        if let Some(endpoint) = &mut self.qps[qp.id] {
            endpoint.window = Some(window);
        }
        let rkey = window.rkey & !0xff | (window.rkey + 1) & 0xff;
        let bind = BindMw {
            mw: window.mw,
            rkey,
            mr: self.mr.mr,
            addr: self.mr.addr + offset,
            length: length.into(),
            access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
        };
        self.post(qp, 0, SendOp::BindMw(bind), &[], None)?;
        let done = self.poll(qp, 1, 1_000)?;
        ensure!(
            done.first().is_some_and(|done| done.status == elver_verbs::WcStatus::Success),
            "the bind of a window ended with {done:?}"
        );
        Ok(rkey)
    }

    fn recv(&mut self, qp: QpRef, wr_id: u64, offset: u64, length: u32) -> Result<()> {
        let qp = self.endpoint(qp)?.qp;
        let sges = [self.sge(offset, length)];
        self.device.post_recv(qp, &[RecvWr { wr_id, sges: &sges }]).map_err(|(_, error)| error)?;
        Ok(())
    }

    fn send(&mut self, qp: QpRef, send: &Send) -> Result<()> {
        let remote = RemoteAddr { addr: send.addr, rkey: send.rkey };
        let argument = send.argument as u32;
        let op = match send.op {
            Op::Send => SendOp::Send,
            Op::SendImm => SendOp::SendWithImm(argument),
            Op::SendInv => SendOp::SendWithInv(argument),
            Op::Write => SendOp::Write(remote),
            Op::WriteImm => SendOp::WriteWithImm(remote, argument),
            Op::Read => SendOp::Read(remote),
            Op::CmpSwp => SendOp::CompareSwap { remote, compare: send.argument, swap: send.swap },
            Op::FetchAdd => SendOp::FetchAdd { remote, add: send.argument },
        };
        let ah = self.endpoint(qp)?.ah;
        let dest = ah.map(|ah| Dest::Ud { ah, remote_qpn: send.peer_qpn, remote_qkey: QKEY });
        self.post(qp, send.wr_id, op, &[self.sge(send.offset, send.length)], dest)
    }

    fn poll(&mut self, qp: QpRef, count: usize, milliseconds: u64) -> Result<Vec<Done>> {
        let cq = self.endpoint(qp)?.cq;
        let end = Instant::now() + Duration::from_millis(milliseconds);
        let mut found = Vec::new();
        loop {
            let mut wcs = [Wc::default(); DEPTH as usize];
            let room = wcs.len().min(count - found.len());
            let more = self.device.poll_cq(cq, &mut wcs[..room])?;
            found.extend(wcs[..more].iter().map(done));
            if found.len() == count || Instant::now() >= end {
                return Ok(found);
            }
            self.progress()?;
        }
    }

    fn is_in_error(&mut self, qp: QpRef) -> Result<bool> {
        let qp = self.endpoint(qp)?.qp;
        Ok(self.device.query_qp(qp)?.0.qp_state == QpState::Err)
    }
}

fn done(wc: &Wc) -> Done {
    let opcode = match wc.opcode {
        WcOpcode::Send => number::SEND,
        WcOpcode::RdmaWrite => number::RDMA_WRITE,
        WcOpcode::RdmaRead => number::RDMA_READ,
        WcOpcode::CompSwap => number::COMP_SWAP,
        WcOpcode::FetchAdd => number::FETCH_ADD,
        WcOpcode::BindMw => number::BIND_MW,
        WcOpcode::LocalInv => number::LOCAL_INV,
        WcOpcode::Recv => number::RECV,
        WcOpcode::RecvRdmaWithImm => number::RECV_RDMA_WITH_IMM,
    };
    Done {
        wr_id: wc.wr_id,
        status: wc.status,
        opcode,
        length: wc.byte_len,
        imm: wc.imm_data,
        flags: wc.flags.bits(),
    }
}
