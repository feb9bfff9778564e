use crate::protocol::Limits;
use crate::ring::ring_options;

/// How a client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// The rings.
    pub ring: elver_ring::Options,
    /// What this end takes.
    pub limits: Limits,
    /// Which of a group's servers it goes to: this number modulo how many there are. None stays at the
    /// one that was named.
    pub spread: Option<u64>,
}

impl Default for ClientOptions {
    /// Rings of 1024 slots of 128 bytes, which hold a frame with 88 bytes each; no group.
    fn default() -> ClientOptions {
        ClientOptions { ring: ring_options(), limits: Limits::default(), spread: None }
    }
}
