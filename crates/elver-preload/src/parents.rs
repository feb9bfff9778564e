//! Parent domains, and what was made with each: none goes before that.

use std::collections::{HashMap, HashSet};

use elver_verbs::{Ah, Cq, Mr, Mw, Qp, Srq};

use crate::layout::Pd;

/// An object that was made with a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Made {
    Ah(Ah),
    Cq(Cq),
    Mr(Mr),
    Mw(Mw),
    Qp(Qp),
    Srq(Srq),
}

/// The device knows a parent domain's protection domain alone. What it is told of is kept here, by the addresses of the
/// program's objects, which are never followed.
#[derive(Default)]
pub(crate) struct Parents {
    domains: HashSet<usize>,
    made: HashMap<Made, usize>,
}

impl Parents {
    pub(crate) fn add(&mut self, parent: *mut Pd) {
        self.domains.insert(parent.addr());
    }

    /// A parent domain goes, unless something is left of what was made with it.
    pub(crate) fn remove(&mut self, parent: *mut Pd) -> bool {
        let is_used = self.made.values().any(|with| *with == parent.addr());
        if !is_used {
            self.domains.remove(&parent.addr());
        }
        !is_used
    }

    /// An object was made with a domain, which may be a parent.
    pub(crate) fn made(&mut self, object: Made, with: *mut Pd) {
        if self.domains.contains(&with.addr()) {
            self.made.insert(object, with.addr());
        }
    }

    /// An object goes.
    pub(crate) fn ended(&mut self, object: Made) {
        self.made.remove(&object);
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn a_parent_goes_after_all_that_was_made_with_it() {
        let [parent, other] = [64, 128].map(ptr::without_provenance_mut::<Pd>);
        let mut parents = Parents::default();
        parents.add(parent);
        // A handle is one of its kind.
        let made = [Made::Qp(Qp(5)), Made::Cq(Cq(5)), Made::Ah(Ah(5))];
        made.iter().for_each(|object| parents.made(*object, parent));
        parents.made(Made::Mr(Mr(5)), other);
        for object in made {
            assert!(!parents.remove(parent), "{object:?}");
            parents.ended(object);
        }
        assert!(parents.remove(parent));
        // One that is made at its address later is another.
        parents.made(Made::Qp(Qp(6)), parent);
        parents.add(parent);
        assert!(parents.remove(parent));
    }
}
