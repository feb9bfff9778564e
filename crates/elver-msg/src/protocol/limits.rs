/// Messages of collective operations that are held beside those that [`Limits::unexpected_messages`] allows for: no
/// barrier waits for a receive behind it, and no receive for a rank that is behind with its operations. One is enough: of a
/// peer's operations each rank takes the oldest first.
pub(super) const OPERATIONS_MESSAGES: u32 = 16;

/// What an end takes from a peer: no peer can have it hold more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages of a peer's that wait for a receive: beyond them it is held back. 1 to 65,535. Beside them 16 of collective
    /// operations are held.
    pub unexpected_messages: u32,
    /// Bytes of those that came whole: beyond them short messages are offered as well.
    pub unexpected_bytes: u32,
    /// Longest message that comes whole, at most [`Limits::unexpected_bytes`]: a longer one is offered, and
    /// comes when it is received.
    pub eager_bytes: u32,
    /// Longest message that is taken at all.
    pub message_bytes: u64,
}

impl Default for Limits {
    /// 1,024 messages, 1 MiB; whole up to 8 KiB; messages up to 64 GiB.
    fn default() -> Limits {
        Limits {
            unexpected_messages: 1_024,
            unexpected_bytes: 1 << 20,
            eager_bytes: 8 << 10,
            message_bytes: 64 << 30,
        }
    }
}

impl Limits {
    /// Whether an end can have these.
    pub fn can_be(&self) -> bool {
        (1..=u32::from(u16::MAX)).contains(&self.unexpected_messages)
            && self.eager_bytes <= self.unexpected_bytes
            && self.message_bytes >= u64::from(self.eager_bytes)
            && self.message_bytes > 0
    }
}
