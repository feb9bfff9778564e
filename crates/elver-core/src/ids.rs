/// A client of the node: a process's session, or the process that hosts an embedded node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A virtual queue pair. The id also names it on the wire; it is random in part, so that the id of
/// a destroyed VQP misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VqpId(pub u32);
