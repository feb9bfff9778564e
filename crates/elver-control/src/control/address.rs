//! Where control messages go.

use elver_verbs::Gid;

/// Where a core takes control messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ControlAddr {
    /// The node.
    pub gid: Gid,
    /// Its UD QP.
    pub qpn: u32,
    /// Without it nothing gets there.
    pub qkey: u32,
}
