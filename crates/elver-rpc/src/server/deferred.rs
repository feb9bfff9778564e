//! Calls that are answered later: as long as somebody works on them, whether their client waits for them or not.

use std::collections::HashMap;

use elver::Gid;

/// How many there are, in all and of each node.
#[derive(Debug)]
pub(super) struct Deferred {
    all: usize,
    of: HashMap<Option<Gid>, usize>,
    most: usize,
    most_of_one: usize,
}

impl Deferred {
    pub(super) fn new(most: usize, most_of_one: usize) -> Deferred {
        Deferred { all: 0, of: HashMap::new(), most, most_of_one }
    }

    pub(super) fn len(&self) -> usize {
        self.all
    }

    /// Counts one of a node; or why not.
    pub(super) fn take(&mut self, node: Option<Gid>) -> Result<(), String> {
        let of_one = self.of.get(&node).copied().unwrap_or_default();
        if self.all >= self.most {
            return Err(format!("{} calls are being worked on, and no more may be", self.all));
        }
        if of_one >= self.most_of_one {
            return Err(format!(
                "{of_one} calls of this client's node are being worked on, cancelled ones among them, and no more of one node may be"
            ));
        }
        self.of.insert(node, of_one + 1);
        self.all += 1;
        Ok(())
    }

    /// One of a node is not worked on any more.
    pub(super) fn give_back(&mut self, node: Option<Gid>) {
        let of_one = self.of.get_mut(&node).expect("it was counted");
        *of_one -= 1;
        if *of_one == 0 {
            self.of.remove(&node);
        }
        self.all -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_leaves_others_theirs() {
        let [one, other] =
            [1, 2].map(|host| Some(Gid::from(std::net::IpAddr::from([10, 0, 0, host]))));
        let mut deferred = Deferred::new(3, 2);
        assert!(deferred.take(one).is_ok() && deferred.take(one).is_ok());
        assert!(deferred.take(one).unwrap_err().contains("of this client's node"));
        assert!(deferred.take(other).is_ok());
        assert!(deferred.take(other).unwrap_err().starts_with("3 calls are being worked on"));
        deferred.give_back(one);
        assert!(deferred.take(other).is_ok());
        for node in [one, other, other] {
            deferred.give_back(node);
        }
        assert_eq!((deferred.len(), deferred.of.len()), (0, 0));
    }
}
