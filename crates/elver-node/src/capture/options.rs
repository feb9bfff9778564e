//! What is wanted of a capture, and how much may be.

use serde::{Deserialize, Serialize};

/// What is wanted of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CaptureOptions {
    /// Bytes that are kept of each packet, from its IP header on.
    pub snap_bytes: u32,
    /// Bytes of packets that wait for who reads them; what finds no room is left out, and counted.
    /// At most [`BUFFER_BYTES_MAX`].
    pub buffer_bytes: u32,
}

/// Bytes of packets that wait for who reads them, where nothing else is asked for.
const BUFFER_BYTES: u32 = 16 << 20;

/// The most bytes of packets that wait for who reads them.
pub const BUFFER_BYTES_MAX: u32 = 256 << 20;

impl Default for CaptureOptions {
    fn default() -> CaptureOptions {
        CaptureOptions { snap_bytes: 65_535, buffer_bytes: BUFFER_BYTES }
    }
}
