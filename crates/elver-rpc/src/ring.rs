use elver_ring::{Config, Options};

/// Slots that hold a header and a body of 88 bytes.
const SLOT_BYTES: u32 = 128;
const SLOTS: u32 = 1024;

/// The rings of a connection, by default.
pub(crate) fn ring_options() -> Options {
    Options::both(Config { slot_bytes: SLOT_BYTES, ..Config::default() }.with_slots(SLOTS))
}
