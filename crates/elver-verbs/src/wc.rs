use bitflags::bitflags;
use core::fmt;

use crate::Gid;

/// A work completion (IBTA vol. 1, 11.4.2.1; `struct ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The `wr_id` of the WR that completed.
    pub wr_id: u64,
    /// How it ended. When it is not [`WcStatus::Success`] only `wr_id`, `qp_num` and
    /// `vendor_err` have a meaning.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Which of the optional fields are set.
    pub flags: WcFlags,
    /// Bytes received or read. For UD this counts the 40 bytes of the GRH.
    pub byte_len: u32,
    /// Immediate data, in host order, if [`WcFlags::WITH_IMM`]; the invalidated rkey if
    /// [`WcFlags::WITH_INV`].
    pub imm_data: u32,
    /// QPN of the local QP.
    pub qp_num: u32,
    /// QPN of the sender, for UD and DC receives.
    pub src_qp: u32,
    /// A detail of the device's own; 0 when there is none. Elver's devices have none. Of a virtual queue
    /// pair's WR that ended with [`WcStatus::RemAccessErr`] it is an [`AccessFault`].
    pub vendor_err: u32,
    /// The node that a message came from, for RC, UC and DC receives: of RC and UC the one that the
    /// QP is connected to, of DC the source address of the message's packets. See
    /// [`Device`](crate::Device#who-sent-it). Of a UD receive it is what its GRH says, which anybody can have written;
    /// devices that leave it to the GRH say nobody ([`Gid::default`]).
    pub src_gid: Gid,
}

impl Default for Wc {
    fn default() -> Wc {
        Wc {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            flags: WcFlags::empty(),
            byte_len: 0,
            imm_data: 0,
            qp_num: 0,
            src_qp: 0,
            vendor_err: 0,
            src_gid: Gid::default(),
        }
    }
}

/// What a completion completes (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcOpcode {
    /// SEND of any kind.
    Send,
    /// WRITE, with or without immediate data.
    RdmaWrite,
    /// READ.
    RdmaRead,
    /// Compare and swap.
    CompSwap,
    /// Fetch and add.
    FetchAdd,
    /// Bind of a memory window.
    BindMw,
    /// Local invalidate.
    LocalInv,
    /// A receive filled by a SEND.
    Recv,
    /// A receive consumed by a WRITE with immediate data.
    RecvRdmaWithImm,
}

bitflags! {
    /// Which optional fields of a [`Wc`] are set (`enum ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of a UD receive hold a GRH.
        const GRH = 1;
        /// `imm_data` holds immediate data.
        const WITH_IMM = 1 << 1;
        /// `imm_data` holds an rkey that the sender invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// Why a virtual queue pair's access to a peer's memory was refused: [`Wc::vendor_err`] of one that ended
/// with [`WcStatus::RemAccessErr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AccessFault {
    /// The peer has no region with that key: it never had, or has deregistered it.
    Key = 1,
    /// The bytes do not lie in the region.
    Range = 2,
    /// The region does not grant the right.
    Right = 3,
    /// The peer's table told of the region, and the peer's device refused it all the same: it was
    /// deregistered meanwhile.
    Region = 4,
    /// The peer was not asked: too many keys were wrong of the user who has the process.
    Distrusted = 5,
}

impl AccessFault {
    /// What a completion says, if it says that.
    pub fn of(wc: &Wc) -> Option<AccessFault> {
        const ALL: [AccessFault; 5] = [
            AccessFault::Key,
            AccessFault::Range,
            AccessFault::Right,
            AccessFault::Region,
            AccessFault::Distrusted,
        ];
        let is_said = wc.status == WcStatus::RemAccessErr;
        ALL.into_iter().find(|fault| is_said && *fault as u32 == wc.vendor_err)
    }
}

/// How a WR ended (IBTA vol. 1, 11.6.2; `enum ibv_wc_status`, with its numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// An incoming message is longer than the receive, or a request longer than its SGEs permit.
    LocLenErr = 1,
    /// An internal consistency error of the local QP.
    LocQpOpErr = 2,
    /// An internal error of the local end-to-end context.
    LocEecOpErr = 3,
    /// A local SGE does not lie in a valid MR, or the MR lacks local write.
    LocProtErr = 4,
    /// The QP was in, or went to, the error state before the WR ran.
    WrFlushErr = 5,
    /// Memory window bind failed.
    MwBindErr = 6,
    /// An unexpected response from the peer.
    BadRespErr = 7,
    /// A protection error on a local buffer while a remote request ran.
    LocAccessErr = 8,
    /// The peer found the request invalid.
    RemInvReqErr = 9,
    /// The peer refused the access.
    RemAccessErr = 10,
    /// The peer could not complete the operation.
    RemOpErr = 11,
    /// The peer did not answer within the configured retries.
    RetryExcErr = 12,
    /// The peer had no receive posted within the configured RNR retries.
    RnrRetryExcErr = 13,
    /// Local reliable datagram domain violation.
    LocRddViolErr = 14,
    /// Invalid reliable datagram request at the peer.
    RemInvRdReqErr = 15,
    /// The operation was aborted by the peer.
    RemAbortErr = 16,
    /// Invalid end-to-end context number.
    InvEecnErr = 17,
    /// Invalid end-to-end context state.
    InvEecStateErr = 18,
    /// Fatal error of the device.
    FatalErr = 19,
    /// The response took too long.
    RespTimeoutErr = 20,
    /// Any other error.
    GeneralErr = 21,
    /// Tag matching error.
    TmErr = 22,
}

impl WcStatus {
    /// Every status, by number.
    pub const ALL: [WcStatus; 23] = [
        WcStatus::Success,
        WcStatus::LocLenErr,
        WcStatus::LocQpOpErr,
        WcStatus::LocEecOpErr,
        WcStatus::LocProtErr,
        WcStatus::WrFlushErr,
        WcStatus::MwBindErr,
        WcStatus::BadRespErr,
        WcStatus::LocAccessErr,
        WcStatus::RemInvReqErr,
        WcStatus::RemAccessErr,
        WcStatus::RemOpErr,
        WcStatus::RetryExcErr,
        WcStatus::RnrRetryExcErr,
        WcStatus::LocRddViolErr,
        WcStatus::RemInvRdReqErr,
        WcStatus::RemAbortErr,
        WcStatus::InvEecnErr,
        WcStatus::InvEecStateErr,
        WcStatus::FatalErr,
        WcStatus::RespTimeoutErr,
        WcStatus::GeneralErr,
        WcStatus::TmErr,
    ];

    /// The status of a number of `enum ibv_wc_status`.
    pub fn from_code(code: u8) -> Option<WcStatus> {
        WcStatus::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::Success => "success",
            WcStatus::LocLenErr => "local length error",
            WcStatus::LocQpOpErr => "local QP operation error",
            WcStatus::LocEecOpErr => "local EE context operation error",
            WcStatus::LocProtErr => "local protection error",
            WcStatus::WrFlushErr => "work request flushed",
            WcStatus::MwBindErr => "memory window bind error",
            WcStatus::BadRespErr => "bad response",
            WcStatus::LocAccessErr => "local access error",
            WcStatus::RemInvReqErr => "remote invalid request",
            WcStatus::RemAccessErr => "remote access error",
            WcStatus::RemOpErr => "remote operation error",
            WcStatus::RetryExcErr => "transport retries exceeded",
            WcStatus::RnrRetryExcErr => "RNR retries exceeded",
            WcStatus::LocRddViolErr => "local RDD violation",
            WcStatus::RemInvRdReqErr => "remote invalid RD request",
            WcStatus::RemAbortErr => "remote aborted",
            WcStatus::InvEecnErr => "invalid EE context number",
            WcStatus::InvEecStateErr => "invalid EE context state",
            WcStatus::FatalErr => "fatal error",
            WcStatus::RespTimeoutErr => "response timeout",
            WcStatus::GeneralErr => "general error",
            WcStatus::TmErr => "tag matching error",
        })
    }
}
