use elver_ring::{Config, Options};

/// What is spoken over the rings of calls ([`elver_ring::Options::application`]), whatever the options of a
/// client or a server say: other pairs are refused when they are connected.
pub const APPLICATION: u64 = u64::from_le_bytes(*b"calls\0\0\x01");

/// Slots that hold a header and a body of 88 bytes.
const SLOT_BYTES: u32 = 128;
const SLOTS: u32 = 1024;

/// The rings of a connection, by default.
pub(crate) fn ring_options() -> Options {
    Options::both(Config { slot_bytes: SLOT_BYTES, ..Config::default() }.with_slots(SLOTS))
}
