//! Sessions of unit tests, at a node that is nobody: a test has its ends.

use elver_portal::{ClientEnd, HeirsLayout, Limits, NodeEnd, Socket, Welcome, memfd};
use elver_verbs::Gid;

use crate::link::Link;
use crate::{Session, SessionOptions};

/// Of a node without memory of its own.
pub(crate) const WELCOME: Welcome = Welcome {
    layout: HeirsLayout::RINGS,
    gid: Gid([7; 16]),
    limits: Limits {
        max_sge: 4,
        max_inline: 64,
        max_vqp_wr: 64,
        vqps: 8,
        mrs: 8,
        completions: 64,
        message_bytes: 4_096,
        alloc_bytes: 0,
    },
    first: false,
};

/// A session, and what its node would have: a socket, and the other end of the rings.
pub(crate) fn session() -> (Session, Socket, NodeEnd) {
    let bytes = HeirsLayout::RINGS.bytes() as u64;
    let rings = memfd::create("rings", bytes, memfd::Pages::Small).unwrap();
    let node = NodeEnd::map(&rings, HeirsLayout::RINGS).unwrap();
    let end = ClientEnd::map(rings, HeirsLayout::RINGS).unwrap();
    let (socket, its) = Socket::pair().unwrap();
    let session = Session::of(Link::over(socket, end, WELCOME, SessionOptions::default()));
    (session, its, node)
}
