//! Sessions of unit tests, at a node that is nobody: a test has its ends.

use std::time::Duration;

use elver_portal::{ClientEnd, Command, HeirsLayout, Limits, NodeEnd, Socket, Welcome, memfd};
use elver_verbs::{Gid, Payload, QpState, RecvWr, SendFlags, SendOp, SendWr};

use crate::link::Link;
use crate::{Session, SessionOptions, Vqp, VqpOptions};

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

/// Of who waits for a node that will not answer.
pub(crate) fn impatient() -> SessionOptions {
    let patience = Duration::from_millis(300);
    SessionOptions { spin: Duration::ZERO, patience, ..SessionOptions::default() }
}

/// A session, and what its node would have: a socket, and the other end of the rings.
pub(crate) fn session() -> (Session, Socket, NodeEnd) {
    session_with(SessionOptions::default())
}

pub(crate) fn session_with(options: SessionOptions) -> (Session, Socket, NodeEnd) {
    let bytes = HeirsLayout::RINGS.bytes() as u64;
    let rings = memfd::create("rings", bytes, memfd::Pages::Small).unwrap();
    let node = NodeEnd::map(&rings, HeirsLayout::RINGS).unwrap();
    let end = ClientEnd::map(rings, HeirsLayout::RINGS).unwrap();
    let (its, socket) = Socket::pair().unwrap();
    let session = Session::of(Link::over(socket, end, WELCOME, options));
    (session, its, node)
}

/// What gives the node something that it is to be woken for.
pub(crate) type Gives = fn(&Session, &Vqp);

pub(crate) fn commands(session: &Session, _: &Vqp) {
    session.inner.borrow_mut().tell_only(&Command::QueryVqp { vqp: 1 }).unwrap();
}

pub(crate) fn sends(_: &Session, vqp: &Vqp) {
    let (op, payload) = (SendOp::Send, Payload::Inline(b"x"));
    let flags = SendFlags::empty();
    vqp.post_send(&[SendWr { wr_id: 1, op, flags, payload, dest: None }]).unwrap();
}

pub(crate) fn receives(_: &Session, vqp: &Vqp) {
    vqp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
}

/// A VQP that may do both.
pub(crate) fn vqp(session: &Session) -> Vqp {
    Vqp::inherited(session, 1, QpState::Rts, &VqpOptions::default(), None)
}

/// Has the session's socket take no message, though nobody has closed, until it gets back the one that this returns.
pub(crate) fn cut(session: &Session) -> Socket {
    let (connected, cut) = (Socket::unconnected().unwrap(), Socket::unconnected().unwrap());
    connected.leave(&session.socket).unwrap();
    session.socket.leave(&cut).unwrap();
    connected
}
