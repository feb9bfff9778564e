//! What a server holds for its clients, of all nodes and of each.

use std::collections::HashMap;

use elver::Gid;

use crate::protocol::Bound;

/// What clients' connections hold, by their node.
#[derive(Debug)]
pub(super) struct Shares {
    all: Bound,
    of: HashMap<Option<Gid>, Bound>,
    most_of_one: u64,
}

impl Shares {
    pub(super) fn new(most: u64, most_of_one: u64) -> Shares {
        Shares { all: Bound::new(most, "all clients"), of: HashMap::new(), most_of_one }
    }

    /// Bytes that are held.
    pub(super) fn held(&self) -> u64 {
        self.all.held()
    }

    /// What a connection of a node's has in common with others.
    pub(super) fn of(&mut self, node: Option<Gid>) -> Vec<Bound> {
        self.of.retain(|_, bound| bound.is_shared());
        let most = self.most_of_one;
        let of_node = self
            .of
            .entry(node)
            .or_insert_with(|| Bound::new(most, "clients of this client's node"));
        vec![of_node.clone(), self.all.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_connections_are_forgotten() {
        let mut shares = Shares::new(100, 10);
        let node = |host| Some(Gid::from(std::net::IpAddr::from([10, 0, 0, host])));
        let first = shares.of(node(1));
        for host in 2..100 {
            assert_eq!(shares.of(node(host)).len(), 2);
        }
        assert_eq!(shares.of.len(), 2, "the first, and the last until one comes");
        assert!(shares.of(node(1))[0].is_shared() && first[0].is_shared());
    }
}
