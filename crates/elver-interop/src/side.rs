//! What the two ends of the table have in common.

use anyhow::Result;
use elver_verbs::{Mtu, WcStatus};
use serde::Serialize;

use crate::axes::{Op, Transport};

/// Bytes of memory at each end.
pub(crate) const MEMORY: u64 = 4 << 20;
/// Q_Key of both ends' UD QPs.
pub(crate) const QKEY: u32 = 0x1ee7;

/// Byte `at` of the pattern of a seed; the guest's program has the same.
pub(crate) fn pattern(at: u32, seed: u32) -> u8 {
    (at ^ at >> 8 ^ (at >> 16).wrapping_mul(53))
        .wrapping_mul(167)
        .wrapping_add(seed.wrapping_mul(59))
        .wrapping_add(13) as u8
}

/// What an end tells of itself.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct About {
    /// Kernel release, or our version.
    pub(crate) version: String,
    pub(crate) device: String,
    #[serde(skip)]
    pub(crate) gid: [u8; 16],
    /// Largest path MTU in bytes.
    pub(crate) mtu: u32,
    #[serde(skip)]
    pub(crate) addr: u64,
    #[serde(skip)]
    pub(crate) rkey: u32,
}

/// A QP of one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRef {
    pub(crate) id: usize,
    pub(crate) qpn: u32,
}

/// How a QP is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connect {
    pub(crate) mtu: Mtu,
    pub(crate) peer_qpn: u32,
    pub(crate) peer_gid: [u8; 16],
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
}

/// A send WR. Offsets are into the end's own memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Send {
    pub(crate) wr_id: u64,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    /// Immediate data, the rkey to invalidate, what to compare with or to add.
    pub(crate) argument: u64,
    pub(crate) swap: u64,
    /// Where a datagram goes.
    pub(crate) peer_qpn: u32,
}

/// A completion. `opcode` and `flags` are the numbers of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: u32,
    pub(crate) length: u32,
    pub(crate) imm: u32,
    pub(crate) flags: u32,
}

/// Numbers of `enum ibv_wc_opcode` and `enum ibv_wc_flags`.
pub(crate) mod number {
    pub(crate) const SEND: u32 = 0;
    pub(crate) const RDMA_WRITE: u32 = 1;
    pub(crate) const RDMA_READ: u32 = 2;
    pub(crate) const COMP_SWAP: u32 = 3;
    pub(crate) const FETCH_ADD: u32 = 4;
    pub(crate) const BIND_MW: u32 = 5;
    pub(crate) const LOCAL_INV: u32 = 6;
    pub(crate) const RECV: u32 = 128;
    pub(crate) const RECV_RDMA_WITH_IMM: u32 = 129;
    pub(crate) const WITH_IMM: u32 = 2;
    pub(crate) const WITH_INV: u32 = 8;
}

/// One end. Both are told what to do in the same words.
pub(crate) trait Side {
    fn about(&mut self) -> Result<About>;
    /// Writes the pattern of a seed.
    fn fill(&mut self, offset: u64, length: u32, seed: u32) -> Result<()>;
    /// The first byte that is not the pattern's.
    fn check(&mut self, offset: u64, length: u32, seed: u32) -> Result<Option<u32>>;
    /// The first byte that is neither pattern's.
    fn mixed(&mut self, offset: u64, length: u32, seeds: [u32; 2]) -> Result<Option<u32>>;
    /// The 8 bytes at an offset.
    fn word(&mut self, offset: u64) -> Result<u64>;
    /// A QP in INIT.
    fn qp(&mut self, transport: Transport) -> Result<QpRef>;
    /// Takes it to RTS.
    fn connect(&mut self, qp: QpRef, connect: &Connect) -> Result<()>;
    fn destroy(&mut self, qp: QpRef) -> Result<()>;
    /// Opens a part of the memory through a window of the QP's, in place of an earlier one; its
    /// rkey.
    fn window(&mut self, qp: QpRef, offset: u64, length: u32) -> Result<u32>;
    fn recv(&mut self, qp: QpRef, wr_id: u64, offset: u64, length: u32) -> Result<()>;
    fn send(&mut self, qp: QpRef, send: &Send) -> Result<()>;
    /// Waits for so many completions, so long.
    fn poll(&mut self, qp: QpRef, count: usize, milliseconds: u64) -> Result<Vec<Done>>;
    /// Whether the QP is in the error state.
    fn is_in_error(&mut self, qp: QpRef) -> Result<bool>;
}
