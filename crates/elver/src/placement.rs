use elver_portal::numa;

/// Where memory of [`crate::Session::alloc_placed`] lies. Each is a wish: there is memory in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// From huge pages, as [`crate::Session::alloc_huge`].
    pub huge: bool,
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
    /// At this one, by the system's number. One that has no memory is refused.
    Node(u16),
}

impl Numa {
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
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_one_node_has_no_choice() {
        let nobody = || panic!("nobody asks where the thread runs");
        for numa in [Numa::Any, Numa::Here, Numa::Node(3)] {
            assert_eq!(numa.among(&[3], nobody), None, "{numa:?}");
        }
        // The daemon says which there are.
        assert_eq!(Numa::Node(0).among(&[3], nobody), Some(0));
        // A system that tells of none may have some.
        assert_eq!(Numa::Here.among(&[], nobody), None);
        assert_eq!(Numa::Node(1).among(&[], nobody), Some(1));
    }

    #[test]
    fn among_several_it_is_the_threads_or_the_one_that_is_named() {
        let nodes = [0, 2];
        assert_eq!(Numa::Any.among(&nodes, || Some(2)), None);
        assert_eq!(Numa::Here.among(&nodes, || Some(2)), Some(2));
        assert_eq!(Numa::Here.among(&nodes, || Some(1)), None, "it has no memory");
        assert_eq!(Numa::Here.among(&nodes, || None), None);
        assert_eq!(Numa::Node(2).among(&nodes, || Some(0)), Some(2));
        assert_eq!(Numa::Node(1).among(&nodes, || Some(0)), Some(1));
    }
}
