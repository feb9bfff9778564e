use std::io;
use std::time::Duration;

use elver::{Numa, Policy};
use elver_ring::Config;

use crate::error;

/// Bytes of a slot: 120 of a write, and its header.
const SLOT_BYTES: u32 = 128;
/// What a buffer may be: the least has room for a write while another is read.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=64 << 20;

/// How rings of streams are told from others in the greeting, with the version of what is spoken over them.
pub(crate) const APPLICATION: u64 = u64::from_le_bytes(*b"stream\0\x01");

/// How a stream is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes that may be on their way to the peer, 4 KiB to 64 MiB; a power of two, or the next one is taken.
    /// A write takes at least 128 of them, and each end has that much memory.
    pub send_buffer_bytes: u32,
    /// The same from the peer.
    pub receive_buffer_bytes: u32,
    /// Each write goes out at once ([`Stream::set_nodelay`](crate::Stream::set_nodelay)).
    pub nodelay: bool,
    /// How long a wait looks before it sleeps.
    pub spin: Duration,
    /// Buffers from huge pages where the system has them ([`elver::Session::alloc_huge`]).
    pub huge_pages: bool,
    /// At which NUMA node this end's buffers lie: that of the thread which makes it ([`elver_ring::Options::numa`]).
    pub numa: Numa,
    /// What carries what this end writes: shared queue pairs, or one of its own ([`elver_ring::Options::policy`]).
    pub policy: Policy,
}

impl Default for Options {
    /// 256 KiB each way.
    fn default() -> Options {
        let elver_ring::Options { spin, huge_pages, numa, policy, .. } =
            elver_ring::Options::default();
        let bytes = 256 << 10;
        let (send_buffer_bytes, receive_buffer_bytes) = (bytes, bytes);
        let nodelay = false;
        Options { send_buffer_bytes, receive_buffer_bytes, nodelay, spin, huge_pages, numa, policy }
    }
}

impl Options {
    pub(crate) fn ring(&self) -> io::Result<elver_ring::Options> {
        let Options { spin, huge_pages, numa, policy, .. } = *self;
        let there = ring(self.send_buffer_bytes)?;
        let back = ring(self.receive_buffer_bytes)?;
        let application = APPLICATION;
        Ok(elver_ring::Options {
            there,
            back,
            huge_pages,
            numa,
            spin,
            policy,
            token: 0,
            application,
        })
    }
}

/// A ring of so many bytes, with the batching of RB²'s paper in proportion.
fn ring(bytes: u32) -> io::Result<Config> {
    if !BUFFER_BYTES.contains(&bytes) {
        return Err(error::buffer(bytes, BUFFER_BYTES));
    }
    let slots = (bytes / SLOT_BYTES).next_power_of_two();
    Ok(Config { slot_bytes: SLOT_BYTES, ..Config::default() }.with_slots(slots))
}

/// What a listener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Most bytes of a stream's buffers, both together.
    pub buffer_bytes_max: u64,
    /// As [`Options::nodelay`], of the streams that are accepted.
    pub nodelay: bool,
    /// As [`Options::spin`].
    pub spin: Duration,
    /// As [`Options::huge_pages`].
    pub huge_pages: bool,
    /// As [`Options::numa`]: of the thread that accepts.
    pub numa: Numa,
    /// As [`Options::policy`], for what the streams write that are accepted ([`elver_ring::ListenerOptions::policy`]).
    pub policy: Policy,
}

impl Default for ListenerOptions {
    /// 16 MiB a stream.
    fn default() -> ListenerOptions {
        let Options { nodelay, spin, huge_pages, numa, policy, .. } = Options::default();
        ListenerOptions { buffer_bytes_max: 16 << 20, nodelay, spin, huge_pages, numa, policy }
    }
}

impl ListenerOptions {
    pub(crate) fn ring(&self) -> elver_ring::ListenerOptions {
        let ListenerOptions {
            buffer_bytes_max: ring_bytes_max,
            spin,
            huge_pages,
            numa,
            policy,
            ..
        } = *self;
        elver_ring::ListenerOptions {
            ring_bytes_max,
            huge_pages,
            numa,
            spin,
            policy,
            application: APPLICATION,
            ..elver_ring::ListenerOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_where_it_is_said() {
        for numa in [Numa::Any, Numa::Here, Numa::Node(3)] {
            assert_eq!(Options { numa, ..Options::default() }.ring().unwrap().numa, numa);
            let listener = ListenerOptions { numa, ..ListenerOptions::default() };
            assert_eq!(listener.ring().numa, numa);
        }
    }

    #[test]
    fn buffers_have_measures_that_fit() {
        for bytes in [4 << 10, 5_000, 256 << 10, 64 << 20] {
            let config = ring(bytes).unwrap();
            let shape = config.check().unwrap();
            assert!(shape.bytes() >= u64::from(bytes) - u64::from(SLOT_BYTES));
            assert!(shape.bytes() < 2 * u64::from(bytes));
        }
        for bytes in [0, 4_095, (64 << 20) + 1, u32::MAX] {
            let refused = ring(bytes).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            assert!(refused.to_string().contains(&bytes.to_string()), "{refused}");
        }
    }
}
