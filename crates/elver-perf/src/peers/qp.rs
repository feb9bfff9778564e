//! One QP with its memory: a region to send from and a region to receive into.

use anyhow::{Context, Result, ensure};
use elver_soft::{SoftDevice, SoftMemory};
use elver_verbs::{
    AccessFlags, AddressVector, Cq, CqInit, Dest, Device, Gid, Memory, MrInfo, Mtu, Payload, Pd,
    Qp, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge,
};

use crate::peers::args::PeerTransport;

/// `wr_id` of receives.
pub(crate) const RECV: u64 = 1;
/// `wr_id` of sends.
pub(crate) const SEND: u64 = 2;
/// Q_Key of the UD QPs of both programs.
const QKEY: u32 = 0x1111_1111;
/// Bytes in front of a UD payload.
const GRH: u64 = 40;
/// Receives are posted in batches of at most this many.
const BATCH: usize = 32;
/// RNR timer code of both programs: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// Local ACK timeout code of both programs: 67 ms.
const TIMEOUT: u8 = 14;

/// What a QP is made for.
pub(crate) struct Plan {
    pub(crate) transport: PeerTransport,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Bytes of each region; a message at least.
    pub(crate) room: u64,
    /// Most sends outstanding.
    pub(crate) sends: u32,
    /// Most receives outstanding.
    pub(crate) receives: u32,
}

/// Where the other end's QP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) gid: [u8; 16],
}

/// How the QP is connected.
pub(crate) struct Connection {
    pub(crate) mtu: Mtu,
    /// First PSN of our sends.
    pub(crate) psn: u32,
    /// READs and atomics outstanding towards the peer.
    pub(crate) rd_atomic: u8,
}

pub(crate) struct PeerQp {
    pub(crate) qp: Qp,
    pub(crate) qpn: u32,
    /// Where both directions complete, with [`SEND`] or [`RECV`] as `wr_id`.
    pub(crate) cq: Cq,
    pub(crate) dest: Option<Dest>,
    /// What we send from.
    pub(crate) outbox: Region,
    /// What we receive into; the peer may read and write it.
    pub(crate) inbox: Region,
    /// Where a message begins in the inbox.
    pub(crate) headroom: u64,
    size: u32,
    pd: Pd,
}

pub(crate) struct Region {
    pub(crate) memory: SoftMemory,
    pub(crate) mr: MrInfo,
}

impl PeerQp {
    /// Makes everything up to a QP in INIT and posts its receives.
    pub(crate) fn open(device: &mut SoftDevice, plan: &Plan) -> Result<PeerQp> {
        let qp_type = match plan.transport {
            PeerTransport::Rc => QpType::Rc,
            PeerTransport::Uc => QpType::Uc,
            PeerTransport::Ud => QpType::Ud,
        };
        let headroom = if qp_type == QpType::Ud { GRH } else { 0 };
        let room = plan.room.max(plan.size.into());
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(CqInit { cqe: plan.sends + plan.receives })?;
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let mut region = |len, access| -> Result<Region> {
            let memory = device.alloc_memory(len)?;
            let mr = device.reg_mr(pd, memory.clone(), None, access)?;
            Ok(Region { memory, mr })
        };
        let outbox = region(room, AccessFlags::LOCAL_WRITE)?;
        let inbox = region(headroom + room, access)?;
        let cap = QpCap {
            max_send_wr: plan.sends,
            max_recv_wr: plan.receives.max(1),
            ..QpCap::default()
        };
        let qp = device.create_qp(QpInit { cap, ..QpInit::new(qp_type, pd, cq) })?;
        let qpn = device.qp_num(qp)?;
        let size = plan.size;
        let made = PeerQp { qp, qpn, cq, dest: None, outbox, inbox, headroom, size, pd };
        let attr = QpAttr { qp_access_flags: access, qkey: QKEY, ..QpAttr::default() };
        made.advance(device, QpState::Init, attr)?;
        made.post_receives(device, plan.receives as usize)?;
        Ok(made)
    }

    /// Connects to the other end.
    pub(crate) fn connect(
        &mut self,
        device: &mut SoftDevice,
        remote: &Remote,
        with: &Connection,
    ) -> Result<()> {
        let av = AddressVector { dgid: Gid(remote.gid), ..AddressVector::default() };
        let served = device.query_device().max_qp_rd_atom;
        let attr = QpAttr {
            ah_attr: av,
            path_mtu: with.mtu,
            dest_qp_num: remote.qpn,
            rq_psn: remote.psn,
            sq_psn: with.psn,
            max_rd_atomic: with.rd_atomic,
            max_dest_rd_atomic: served,
            min_rnr_timer: MIN_RNR_TIMER,
            timeout: TIMEOUT,
            ..QpAttr::default()
        };
        self.advance(device, QpState::Rtr, attr)?;
        self.advance(device, QpState::Rts, attr)?;
        if self.headroom > 0 {
            let ah = device.create_ah(self.pd, av)?;
            self.dest = Some(Dest::Ud { ah, remote_qpn: remote.qpn, remote_qkey: QKEY });
        }
        Ok(())
    }

    /// Posts `count` receives of a message each, all into the beginning of the inbox.
    pub(crate) fn post_receives(&self, device: &mut SoftDevice, count: usize) -> Result<()> {
        let MrInfo { addr, lkey, .. } = self.inbox.mr;
        let length = self.headroom as u32 + self.size;
        let sges = [Sge { addr, length, lkey }];
        let wrs = [RecvWr { wr_id: RECV, sges: &sges }; BATCH];
        let mut left = count;
        while left > 0 {
            let now = left.min(BATCH);
            device
                .post_recv(self.qp, &wrs[..now])
                .map_err(|(_, error)| error)
                .context("cannot post receives")?;
            left -= now;
        }
        Ok(())
    }

    /// Posts `op` on a message of the outbox.
    pub(crate) fn post(
        &self,
        device: &mut SoftDevice,
        op: SendOp,
        offset: u64,
        flags: SendFlags,
    ) -> Result<()> {
        let MrInfo { addr, lkey, .. } = self.outbox.mr;
        let sges = [Sge { addr: addr + offset, length: self.size, lkey }];
        let payload = Payload::Sges(&sges);
        let wr = SendWr { wr_id: SEND, op, flags, payload, dest: self.dest };
        device.post_send(self.qp, &[wr]).map_err(|(_, error)| error).context("cannot post a send")
    }

    /// Makes what came what goes next. Nothing may be on its way out.
    pub(crate) fn answer(&self) -> Result<()> {
        let (from, size) = (&self.inbox.memory, self.size.into());
        Ok(self.outbox.memory.copy_from(0, from, self.headroom, size)?)
    }

    /// Moves the QP on by one state, with just the attributes that the step requires.
    fn advance(&self, device: &mut SoftDevice, to: QpState, attr: QpAttr) -> Result<()> {
        Ok(device.advance_qp(self.qp, &QpAttr { qp_state: to, ..attr })?)
    }
}

impl Remote {
    /// Checks what a peer sent against what a QP can be.
    pub(crate) fn checked(self) -> Result<Remote> {
        ensure!(
            elver_verbs::qpn_valid(self.qpn) && self.psn <= 0xff_ffff,
            "the peer's QPN {:#x} or PSN {:#x} is wider than 24 bits",
            self.qpn,
            self.psn
        );
        Ok(self)
    }
}
