/// What an end takes of its peer, and holds for him.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls of a connection that may be under way; the server's counts.
    pub calls: u32,
    /// Most bytes of a message that this end takes. Streams have no such limit.
    pub message_bytes: u32,
    /// Most bytes of messages that are held for a connection: those that come in pieces, and those that
    /// wait to be sent.
    pub held_bytes: u64,
    /// Bytes of a stream that may come before its first credit, and so are held for it.
    pub window: u32,
}

impl Default for Limits {
    /// 256 calls, messages of 16 MiB, 64 MiB of them together, windows of 256 KiB.
    fn default() -> Limits {
        Limits { calls: 256, message_bytes: 16 << 20, held_bytes: 64 << 20, window: 256 << 10 }
    }
}
