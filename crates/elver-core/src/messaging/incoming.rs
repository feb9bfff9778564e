//! What of a message that has come is kept until its receive has ended.

use elver_verbs::Time;

use crate::VqpId;
use crate::ids::PeerId;
use crate::messaging::message::Kind;

/// What of a message's header its receive needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) kind: Kind,
    pub(crate) imm: Option<u32>,
    pub(crate) length: u32,
    pub(crate) cookie: u64,
    /// The VQP that is connected to the sender, of a message to a port.
    pub(crate) source: Option<VqpId>,
    /// The sender's node, and its VQP.
    pub(crate) from: (PeerId, u32),
    /// Of the sender's record then: one that has started anew has not sent it.
    pub(crate) tag: u16,
    /// Until when it may be read, if it is a long one.
    pub(crate) until: Time,
    /// When its sender is next asked whether it may be read after that.
    pub(crate) ask_at: Time,
}

impl Incoming {
    /// Whether its sender must be asked before it is read.
    pub(crate) fn is_late(&self, now: Time) -> bool {
        self.kind == Kind::Rendezvous && self.until <= now
    }
}

/// Where a message's bytes are.
pub(crate) enum Body<'a> {
    /// In a receive buffer: first byte and how many.
    Buffer(u64, u32),
    /// Copied aside.
    Held(&'a [u8]),
}
