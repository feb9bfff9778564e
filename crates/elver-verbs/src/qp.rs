use bitflags::bitflags;
use core::fmt;

use crate::{AccessFlags, Cq, Gid, Pd, SendOpcode, Srq};

/// Whether `qpn` fits the 24 bits of a queue pair number.
pub const fn qpn_valid(qpn: u32) -> bool {
    qpn < 1 << 24
}

/// The transport service of a QP, named by what it can do: see [`QpType::is_reliable`],
/// [`QpType::is_connected`] and [`QpType::supports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QpType {
    /// Reliable Connection.
    Rc,
    /// Unreliable Connection.
    Uc,
    /// Unreliable Datagram.
    Ud,
    /// Dynamically Connected initiator: sends to any DCT that a WR names.
    Dci,
    /// Dynamically Connected target: receives from any DCI that knows its access key.
    Dct,
    /// Extended Reliable Connection, the end that sends: to a shared receive queue that a WR names.
    XrcSend,
    /// Extended Reliable Connection, the end that receives: into the shared receive queues of its domain.
    XrcRecv,
}

impl QpType {
    /// Every type.
    pub const ALL: [QpType; 7] = [
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
        QpType::Dci,
        QpType::Dct,
        QpType::XrcSend,
        QpType::XrcRecv,
    ];

    /// Whether what it sends arrives exactly once and in order, or fails with a completion.
    pub const fn is_reliable(self) -> bool {
        !matches!(self, QpType::Uc | QpType::Ud)
    }

    /// Whether the QP is tied to one peer by `modify_qp`.
    pub const fn is_connected(self) -> bool {
        matches!(self, QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// Whether a WR names its destination, or which queue it is for there.
    pub const fn needs_dest(self) -> bool {
        matches!(self, QpType::Ud | QpType::Dci | QpType::XrcSend)
    }

    /// Whether the QP has a send queue.
    pub const fn has_send_queue(self) -> bool {
        !matches!(self, QpType::Dct | QpType::XrcRecv)
    }

    /// Whether a QP of this type may post the operation (IBTA vol. 1, table 69; for DC, mlx5dv).
    pub const fn supports(self, opcode: SendOpcode) -> bool {
        match self {
            QpType::Rc | QpType::XrcSend => true,
            QpType::Uc => matches!(
                opcode,
                SendOpcode::Send
                    | SendOpcode::SendWithImm
                    | SendOpcode::Write
                    | SendOpcode::WriteWithImm
                    | SendOpcode::BindMw
                    | SendOpcode::LocalInv
            ),
            QpType::Ud => matches!(opcode, SendOpcode::Send | SendOpcode::SendWithImm),
            QpType::Dci => !matches!(opcode, SendOpcode::BindMw | SendOpcode::LocalInv),
            QpType::Dct | QpType::XrcRecv => false,
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
            QpType::XrcSend => "XRC_SEND",
            QpType::XrcRecv => "XRC_RECV",
            QpType::Dci => "DCI",
            QpType::Dct => "DCT",
        })
    }
}

/// State of a QP (IBTA vol. 1, 10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QpState {
    /// Newly created; nothing may be posted.
    #[default]
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained: started WRs finish, no new one starts.
    Sqd,
    /// Send queue error, on UC and UD: receives go on.
    Sqe,
    /// Error: every WR is flushed.
    Err,
}

impl QpState {
    /// Every state.
    pub const ALL: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQE",
            QpState::Err => "ERR",
        })
    }
}

/// Path MTU: the payload bytes of a full packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// Every path MTU, ascending.
    pub const ALL: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

    /// Payload bytes of a full packet.
    #[inline]
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The code of `enum ibv_mtu`, 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU of a code of `enum ibv_mtu`.
    pub fn from_code(code: u8) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The MTU of exactly `bytes`.
    pub fn from_bytes(bytes: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest MTU of at most `bytes`.
    pub fn at_most(bytes: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }
}

/// Sizes of a QP's queues (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Most outstanding send WRs.
    pub max_send_wr: u32,
    /// Most outstanding receive WRs; 0 for a QP that uses an SRQ.
    pub max_recv_wr: u32,
    /// Most SGEs in a send WR.
    pub max_send_sge: u32,
    /// Most SGEs in a receive WR.
    pub max_recv_sge: u32,
    /// Most inline bytes in a send WR.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    fn default() -> QpCap {
        QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        }
    }
}

/// What a QP is created with (`struct ibv_qp_init_attr`, and `mlx5dv_qp_init_attr` for DC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: Pd,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// Shared receive queue; a DCT needs one.
    pub srq: Option<Srq>,
    /// Queue sizes.
    pub cap: QpCap,
    /// Whether every send WR is signalled.
    pub sq_sig_all: bool,
    /// Access key of a DCT.
    pub dc_access_key: u64,
    /// Streams of a DCI.
    pub dci: DciInit,
    /// A UD QP drops datagrams that were not sent from the device's own UDP port. RoCEv2 lets a
    /// sender choose (IBTA vol. 1, A17.3.3); a device of ours does not, and nobody else on its host
    /// can send from that port while it has it.
    pub same_source_port: bool,
    /// The UD QP that peers know as QP 1, where management datagrams go (IBTA vol. 1, 3.9.2): a device
    /// has one at most.
    pub general_services: bool,
}

/// The oldest WR of a send queue that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHead {
    /// What it was posted with.
    pub wr_id: u64,
    /// Another one once its peer has acknowledged more of it.
    pub progress: u32,
}

/// What a device tells of how a QP was made. An XRC target has no protection domain and no CQs of its own: those of the
/// queues that requests name serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpMade {
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: Option<Pd>,
    /// Where sends complete.
    pub send_cq: Option<Cq>,
    /// Where receives complete.
    pub recv_cq: Option<Cq>,
    /// Shared receive queue.
    pub srq: Option<Srq>,
    /// Queue sizes.
    pub cap: QpCap,
    /// Whether every send WR is signalled.
    pub sq_sig_all: bool,
}

impl QpInit {
    /// What is told of a QP that was made with this.
    pub fn made(&self) -> QpMade {
        let own = self.qp_type != QpType::XrcRecv;
        QpMade {
            qp_type: self.qp_type,
            pd: own.then_some(self.pd),
            send_cq: own.then_some(self.send_cq),
            recv_cq: own.then_some(self.recv_cq),
            srq: self.srq.filter(|_| own),
            cap: self.cap,
            sq_sig_all: self.sq_sig_all,
        }
    }

    /// A QP with default sizes and one CQ for both directions.
    pub fn new(qp_type: QpType, pd: Pd, cq: Cq) -> QpInit {
        QpInit {
            qp_type,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap::default(),
            sq_sig_all: false,
            dc_access_key: 0,
            dci: DciInit::default(),
            same_source_port: false,
            general_services: false,
        }
    }
}

/// Streams of a DCI (`struct mlx5dv_dci_streams`). A DCI without streams has one: the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DciInit {
    /// Log2 of the number of streams that run side by side.
    pub log_num_concurrent: u8,
    /// Log2 of the number of errored streams at which the DCI itself fails.
    pub log_num_errored: u8,
}

/// Where a QP's packets go (`struct ibv_ah_attr`, its global route).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// GID of the peer.
    pub dgid: Gid,
    /// Index of our GID.
    pub sgid_index: u8,
    /// IP hop limit; 0 takes the device's default.
    pub hop_limit: u8,
    /// IP traffic class.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Attributes of a QP (`struct ibv_qp_attr`). Which of them a call reads is said by a
/// [`QpAttrMask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State to move to; or, from a query, the state.
    pub qp_state: QpState,
    /// State that the caller believes the QP to be in.
    pub cur_qp_state: QpState,
    /// Whether an event tells that the send queue is drained.
    pub en_sqd_async_notify: bool,
    /// What peers may do.
    pub qp_access_flags: AccessFlags,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Port, from 1.
    pub port_num: u8,
    /// Q_Key of a UD QP.
    pub qkey: u32,
    /// Where packets go.
    pub ah_attr: AddressVector,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Local ACK timeout, 5 bits: 4.096 µs · 2^timeout; 0 waits without bound.
    pub timeout: u8,
    /// Retries after a timeout or a sequence NAK, 3 bits.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 3 bits; 7 retries without bound.
    pub rnr_retry: u8,
    /// First PSN of the receive queue, 24 bits.
    pub rq_psn: u32,
    /// Queried only, of an RC QP: its responder waits for memory ([`crate::MemoryError::Later`]). A
    /// peer's WRITE is being written to it, so that `rq_psn` may move once more even in ERR; or a
    /// peer's READ waits for it, and with it the refusal of what came behind.
    pub rq_waiting: bool,
    /// Queried only, in SQD: WRs that had started are not done yet.
    pub sq_draining: bool,
    /// First PSN of the send queue, 24 bits.
    pub sq_psn: u32,
    /// Outstanding READs and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding READs and atomics served as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code, 5 bits (IBTA vol. 1, table 45).
    pub min_rnr_timer: u8,
    /// QPN of the peer, 24 bits.
    pub dest_qp_num: u32,
    /// Queue sizes; reported by a query, not modifiable.
    pub cap: QpCap,
}

impl Default for QpAttr {
    fn default() -> QpAttr {
        QpAttr {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            en_sqd_async_notify: false,
            qp_access_flags: AccessFlags::empty(),
            pkey_index: 0,
            port_num: 1,
            qkey: 0,
            ah_attr: AddressVector::default(),
            path_mtu: Mtu::Mtu1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            rq_psn: 0,
            rq_waiting: false,
            sq_draining: false,
            sq_psn: 0,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            dest_qp_num: 0,
            cap: QpCap::default(),
        }
    }
}

bitflags! {
    /// Which attributes a call names (`enum ibv_qp_attr_mask`, with its numbers).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// [`QpAttr::qp_state`]
        const STATE = 1;
        /// [`QpAttr::cur_qp_state`]
        const CUR_STATE = 1 << 1;
        /// [`QpAttr::en_sqd_async_notify`]
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// [`QpAttr::qp_access_flags`]
        const ACCESS_FLAGS = 1 << 3;
        /// [`QpAttr::pkey_index`]
        const PKEY_INDEX = 1 << 4;
        /// [`QpAttr::port_num`]
        const PORT = 1 << 5;
        /// [`QpAttr::qkey`]
        const QKEY = 1 << 6;
        /// [`QpAttr::ah_attr`]
        const AV = 1 << 7;
        /// [`QpAttr::path_mtu`]
        const PATH_MTU = 1 << 8;
        /// [`QpAttr::timeout`]
        const TIMEOUT = 1 << 9;
        /// [`QpAttr::retry_cnt`]
        const RETRY_CNT = 1 << 10;
        /// [`QpAttr::rnr_retry`]
        const RNR_RETRY = 1 << 11;
        /// [`QpAttr::rq_psn`]
        const RQ_PSN = 1 << 12;
        /// [`QpAttr::max_rd_atomic`]
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// [`QpAttr::min_rnr_timer`]
        const MIN_RNR_TIMER = 1 << 15;
        /// [`QpAttr::sq_psn`]
        const SQ_PSN = 1 << 16;
        /// [`QpAttr::max_dest_rd_atomic`]
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// [`QpAttr::cap`]
        const CAP = 1 << 19;
        /// [`QpAttr::dest_qp_num`]
        const DEST_QPN = 1 << 20;
    }
}

impl fmt::Display for QpAttrMask {
    /// The attributes by the names of the fields of [`QpAttr`], separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(QpAttrMask, &str); 19] = [
            (QpAttrMask::STATE, "qp_state"),
            (QpAttrMask::CUR_STATE, "cur_qp_state"),
            (QpAttrMask::EN_SQD_ASYNC_NOTIFY, "en_sqd_async_notify"),
            (QpAttrMask::ACCESS_FLAGS, "qp_access_flags"),
            (QpAttrMask::PKEY_INDEX, "pkey_index"),
            (QpAttrMask::PORT, "port_num"),
            (QpAttrMask::QKEY, "qkey"),
            (QpAttrMask::AV, "ah_attr"),
            (QpAttrMask::PATH_MTU, "path_mtu"),
            (QpAttrMask::TIMEOUT, "timeout"),
            (QpAttrMask::RETRY_CNT, "retry_cnt"),
            (QpAttrMask::RNR_RETRY, "rnr_retry"),
            (QpAttrMask::RQ_PSN, "rq_psn"),
            (QpAttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic"),
            (QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer"),
            (QpAttrMask::SQ_PSN, "sq_psn"),
            (QpAttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
            (QpAttrMask::CAP, "cap"),
            (QpAttrMask::DEST_QPN, "dest_qp_num"),
        ];
        let mut separator = "";
        for (flag, name) in NAMES {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = ", ";
            }
        }
        if separator.is_empty() {
            f.write_str("nothing")?;
        }
        Ok(())
    }
}
