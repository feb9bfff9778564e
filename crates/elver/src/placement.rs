use elver_portal::numa;

/// Where memory of [`crate::Session::alloc_placed`] lies. Each is a wish: there is memory in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// From huge pages, as [`crate::Session::alloc_huge`].
    pub huge: bool,
    /// In a file of its own however small it is, as [`crate::Session::alloc_apart`].
    pub apart: bool,
    /// At which NUMA node.
    pub numa: Numa,
}

/// At which of the machine's NUMA nodes memory lies, as long as that one has some left. On a machine with one it makes no
/// difference, and costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// Wherever the system puts it: near the thread of the daemon that makes it, as a rule.
    Any,
    /// At the node of the CPU that the calling thread runs on. A thread that the system may move to another node is better bound
    /// to its own before.
    #[default]
    Here,
    /// At this one, by the system's number. One that has no memory is refused by a daemon
    /// that knows which have: not by an older one, nor where the system tells of none.
    Node(u16),
}

impl Numa {
    /// The nodes that have memory, in order; none where the system does not tell. It is asked once.
    pub fn nodes() -> &'static [u16] {
        numa::nodes()
    }

    /// The node that the daemon is to be asked for, if there is any choice.
    pub(crate) fn near(self) -> Option<u16> {
        self.among(numa::nodes(), numa::here)
    }

    fn among(self, nodes: &[u16], here: impl FnOnce() -> Option<u16>) -> Option<u16> {
        match self {
            Numa::Any => None,
            Numa::Here if nodes.len() < 2 => None,
            // A CPU may be at a node that has no memory.
            Numa::Here => here().filter(|node| nodes.contains(node)),
            Numa::Node(node) if nodes == [node] => None,
            Numa::Node(node) => Some(node),
        }
    }
}

#[cfg(test)]
mod tests;
