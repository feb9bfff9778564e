//! A WR as its target within the device gets it, and what comes of it.

use core::net::IpAddr;

use elver_verbs::{Ah, QpType, SendOp, WcStatus};
use elver_wire::{NakCode, RnrTimer};

use crate::execute::Fault;
use crate::qp_core::QpCore;
use crate::route::Route;

/// A WR on its way to a QP of the same device. Its local memory stands in the device's scratch
/// buffers.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) op: SendOp,
    pub(crate) qp_type: QpType,
    pub(crate) source: u32,
    pub(crate) dest_qpn: u32,
    /// The DC access key, the Q_Key, or the number of an XRC SRQ.
    pub(crate) key: u64,
    /// Bytes that are copied now, behind so many that were before, of so many.
    pub(crate) length: u32,
    pub(crate) skip: u32,
    pub(crate) total: u32,
    pub(crate) solicited: bool,
    pub(crate) inline: bool,
    /// All of its own memory may take what comes back.
    pub(crate) placed: bool,
    /// The addresses that it goes from and to, and the address handle of a datagram.
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) ah: Option<Ah>,
}

impl Request {
    /// Whether a connected QP takes it: it comes from its peer, between the addresses that it has and expects.
    #[inline]
    pub(crate) fn is_of_peer(&self, core: &QpCore) -> bool {
        let fits =
            |remote: &Route| remote.flow.dst.ip() == self.from && remote.flow.src.ip() == self.to;
        core.attr.dest_qp_num == self.source && core.remote.as_ref().is_some_and(fits)
    }
}

/// Why a request came to no good end at its target.
pub(crate) enum Stopped {
    Fault(Fault),
    /// It was executed, and the request's own memory does not take what came back.
    Unplaced,
    /// An atomic was executed; what it found waits for the request's own memory.
    Found(u64),
}

impl From<Fault> for Stopped {
    fn from(fault: Fault) -> Stopped {
        Stopped::Fault(fault)
    }
}

/// What became of it.
pub(crate) enum Reply {
    Done,
    NotReady(RnrTimer),
    Refused(NakCode),
    /// Nobody is there, or not ready to receive: as if the packet was lost.
    NoAnswer,
    /// An unreliable transport dropped it, with what of it was still to come. Its sender does not hear of that.
    Dropped,
    /// It ended here, without the peer: its own memory is at fault, or it concerned no peer.
    Local(WcStatus),
    /// It must wait for memory. Nothing has happened but that an atomic has found this.
    Later(Option<u64>),
}
