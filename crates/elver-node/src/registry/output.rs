use super::frame::Frame;

/// A connection, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ConnectionId(pub(super) u64);

/// What the server is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Send(ConnectionId, Frame),
    /// After what was sent before.
    Close(ConnectionId),
}
