use alloc::boxed::Box;
use core::net::IpAddr;

use elver_verbs::Time;
use elver_wire::cm::{MAD_LEN, Mad, Message};

use crate::event::Service;

/// Where a connection is (IBTA vol. 1, 12.9.5 and 12.9.6; for SIDR, 12.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// We sent a REQ.
    ReqSent,
    /// The peer's REQ waits for the consumer.
    Requested,
    /// The peer's REP waits for the consumer.
    Answered,
    /// We sent a REP.
    RepSent,
    Established,
    /// We sent a DREQ.
    DreqSent,
    /// It has ended, and answers what is late.
    TimeWait,
    /// It has ended, and waits for the consumer to let go of it.
    Closed,
    /// We sent a SIDR_REQ.
    SidrSent,
    /// The peer's SIDR_REQ waits for the consumer.
    SidrRequested,
    /// We sent a SIDR_REP.
    SidrReplied,
}

/// A connection, or a look-up of a UD service.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    pub(crate) peer: IpAddr,
    /// The peer's number; none until it told.
    pub(crate) remote: Option<u32>,
    /// Whose listener the peer asked.
    pub(crate) listener: Option<Service>,
    /// It has a place in that one's backlog.
    pub(crate) waits: bool,
    /// Its place among those that the peer began.
    pub(crate) begun: Option<(IpAddr, u32, bool)>,
    pub(crate) own_qpn: u32,
    pub(crate) peer_qpn: u32,
    pub(crate) transaction: u64,
    /// The last message, for when it is lost.
    pub(crate) sent: Option<Box<[u8; MAD_LEN]>>,
    /// How often it may be sent again.
    pub(crate) left: u8,
    /// How long its answer is waited for, in nanoseconds.
    pub(crate) patience: u64,
    pub(crate) due: Option<Time>,
    /// The consumer has let go of it.
    pub(crate) detached: bool,
}

impl Connection {
    /// Whether the last thing we said is that we do not want it.
    pub(crate) fn refused(&self) -> bool {
        let sent = self.sent.as_deref().and_then(|sent| Mad::parse(sent).ok());
        sent.is_some_and(|mad| matches!(mad.message, Message::Rej { .. }))
    }
}

/// 4.096 µs · 2^code, in nanoseconds, as the specification tells times; 31 is the largest code.
pub(crate) const fn nanoseconds(code: u8) -> u64 {
    4096 << if code > 31 { 31 } else { code }
}
