use elver_portal::{ConnectOptions, VqpOptions};
use elver_verbs::Gid;

/// A VQP that a session has from its beginning, connected: one that is dialled ([`crate::Session::dial`]), or each of a
/// set for children ([`crate::Session::prepare`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// The peer.
    pub gid: Gid,
    /// The port there; 0 for none.
    pub port: u16,
    /// How it is connected.
    pub connect: ConnectOptions,
    /// What the VQP is created with.
    pub options: VqpOptions,
}

impl Destination {
    /// A VQP to a node, with the usual options.
    pub fn new(gid: Gid) -> Destination {
        Destination { gid, ..Destination::default() }
    }
}
