use bitflags::bitflags;

use crate::{AccessFlags, Ah, Mr, Mw, WcOpcode};

/// A scatter/gather element: a piece of a registered region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte, in the address space that the MR was registered with.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// The MR's local key.
    pub lkey: u32,
}

/// A send work request (IBTA vol. 1, 11.4.1.1; `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation and its operands.
    pub op: SendOp,
    /// Signalled, fenced, solicited.
    pub flags: SendFlags,
    /// The local bytes: sent by SEND and WRITE, filled by READ and the atomics.
    pub payload: Payload<'a>,
    /// Where it goes, on a UD QP, an XRC initiator or a DCI; none elsewhere.
    pub dest: Option<Dest>,
}

/// The local bytes of a send WR.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Pieces of registered regions, in order.
    Sges(&'a [Sge]),
    /// Bytes copied when the WR is posted (`IBV_SEND_INLINE`); SEND and WRITE only.
    Inline(&'a [u8]),
}

bitflags! {
    /// Flags of a send WR (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u8 {
        /// Start only when the READs and atomics posted before have completed.
        const FENCE = 1;
        /// Give a completion also on success.
        const SIGNALED = 1 << 1;
        /// Ask for a completion event at the receiver.
        const SOLICITED = 1 << 2;
    }
}

/// A remote address and the key that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// Virtual address at the peer.
    pub addr: u64,
    /// Remote key of an MR or a memory window.
    pub rkey: u32,
}

/// The operation of a send WR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Message into a receive of the peer's.
    Send,
    /// Message with 4 bytes of immediate data, in host order.
    SendWithImm(u32),
    /// Message that invalidates an rkey at the peer.
    SendWithInv(u32),
    /// Write the peer's memory.
    Write(RemoteAddr),
    /// Write the peer's memory and consume one of its receives.
    WriteWithImm(RemoteAddr, u32),
    /// Read the peer's memory.
    Read(RemoteAddr),
    /// If the peer's 8-byte word equals `compare`, replace it by `swap`; the local 8 bytes get
    /// what it held.
    CompareSwap {
        /// The word; 8-byte aligned.
        remote: RemoteAddr,
        /// The value that it must hold.
        compare: u64,
        /// The value that it gets.
        swap: u64,
    },
    /// Add to the peer's 8-byte word; the local 8 bytes get what it held.
    FetchAdd {
        /// The word; 8-byte aligned.
        remote: RemoteAddr,
        /// What to add, wrapping.
        add: u64,
    },
    /// Bind a type 2 memory window.
    BindMw(BindMw),
    /// Invalidate a memory window's rkey.
    LocalInv(u32),
}

impl SendOp {
    /// The operation without its operands.
    #[inline]
    pub fn opcode(&self) -> SendOpcode {
        match self {
            SendOp::Send => SendOpcode::Send,
            SendOp::SendWithImm(_) => SendOpcode::SendWithImm,
            SendOp::SendWithInv(_) => SendOpcode::SendWithInv,
            SendOp::Write(_) => SendOpcode::Write,
            SendOp::WriteWithImm(..) => SendOpcode::WriteWithImm,
            SendOp::Read(_) => SendOpcode::Read,
            SendOp::CompareSwap { .. } => SendOpcode::CompareSwap,
            SendOp::FetchAdd { .. } => SendOpcode::FetchAdd,
            SendOp::BindMw(_) => SendOpcode::BindMw,
            SendOp::LocalInv(_) => SendOpcode::LocalInv,
        }
    }
}

/// The operations by name (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SendOpcode {
    /// SEND.
    Send,
    /// SEND_WITH_IMM.
    SendWithImm,
    /// SEND_WITH_INV.
    SendWithInv,
    /// RDMA_WRITE.
    Write,
    /// RDMA_WRITE_WITH_IMM.
    WriteWithImm,
    /// RDMA_READ.
    Read,
    /// ATOMIC_CMP_AND_SWP.
    CompareSwap,
    /// ATOMIC_FETCH_AND_ADD.
    FetchAdd,
    /// BIND_MW.
    BindMw,
    /// LOCAL_INV.
    LocalInv,
}

impl SendOpcode {
    /// Every operation.
    pub const ALL: [SendOpcode; 10] = [
        SendOpcode::Send,
        SendOpcode::SendWithImm,
        SendOpcode::SendWithInv,
        SendOpcode::Write,
        SendOpcode::WriteWithImm,
        SendOpcode::Read,
        SendOpcode::CompareSwap,
        SendOpcode::FetchAdd,
        SendOpcode::BindMw,
        SendOpcode::LocalInv,
    ];

    /// What the sender's completion says.
    #[inline]
    pub fn wc_opcode(self) -> WcOpcode {
        match self {
            SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::SendWithInv => WcOpcode::Send,
            SendOpcode::Write | SendOpcode::WriteWithImm => WcOpcode::RdmaWrite,
            SendOpcode::Read => WcOpcode::RdmaRead,
            SendOpcode::CompareSwap => WcOpcode::CompSwap,
            SendOpcode::FetchAdd => WcOpcode::FetchAdd,
            SendOpcode::BindMw => WcOpcode::BindMw,
            SendOpcode::LocalInv => WcOpcode::LocalInv,
        }
    }
}

/// Bind of a type 2 memory window (IBTA vol. 1, 10.6.7.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindMw {
    /// The window.
    pub mw: Mw,
    /// The rkey that it gets: the window's own, but for the low 8 bits, which are the caller's.
    pub rkey: u32,
    /// The region that it opens; it needs [`AccessFlags::MW_BIND`].
    pub mr: Mr,
    /// First address of the window.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What a peer may do through it: remote flags only.
    pub access: AccessFlags,
}

/// Where a UD datagram or a DC request goes, or which queue an XRC request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dest {
    /// A UD QP.
    Ud {
        /// The address.
        ah: Ah,
        /// The QPN.
        remote_qpn: u32,
        /// The Q_Key; with the high bit set the sending QP's own is used.
        remote_qkey: u32,
    },
    /// A shared receive queue of the peer's.
    Xrc {
        /// Its number, 24 bits.
        remote_srqn: u32,
    },
    /// A DCT.
    Dc {
        /// The address.
        ah: Ah,
        /// The DCT number.
        remote_dctn: u32,
        /// The 64-bit access key that the DCT was created with.
        dc_access_key: u64,
        /// The DCI stream that carries it; taken modulo the DCI's number of streams.
        stream_id: u16,
    },
}

/// A receive work request (`struct ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go, in order.
    pub sges: &'a [Sge],
}
