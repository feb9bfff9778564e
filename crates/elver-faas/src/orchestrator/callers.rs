//! Who is connected to the front door: one user cannot take what there is for all.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::http::BODIES_MAX;

#[derive(Debug)]
struct Caller {
    connections: usize,
    bodies: Arc<Semaphore>,
}

/// Users who have connections.
#[derive(Debug)]
pub(super) struct Callers {
    most: usize,
    of: Rc<RefCell<BTreeMap<u32, Caller>>>,
}

/// A user's connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Connected {
    uid: u32,
    bodies: Arc<Semaphore>,
    of: Rc<RefCell<BTreeMap<u32, Caller>>>,
}

impl Callers {
    /// Each may have so many connections.
    pub(super) fn new(most: usize) -> Callers {
        Callers { most, of: Rc::default() }
    }

    /// One of a user more, unless he has as many as he may.
    pub(super) fn connected(&self, uid: u32) -> Option<Connected> {
        let mut of = self.of.borrow_mut();
        let new = || Caller { connections: 0, bodies: Arc::new(Semaphore::new(BODIES_MAX)) };
        let caller = of.entry(uid).or_insert_with(new);
        if caller.connections >= self.most {
            return None;
        }
        caller.connections += 1;
        Some(Connected { uid, bodies: caller.bodies.clone(), of: self.of.clone() })
    }
}

impl Connected {
    /// Room for the user's bodies.
    pub(super) fn bodies(&self) -> Arc<Semaphore> {
        self.bodies.clone()
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut of = self.of.borrow_mut();
        if let Some(caller) = of.get_mut(&self.uid) {
            caller.connections -= 1;
            if caller.connections == 0 {
                of.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_has_so_many_and_others_theirs() {
        let callers = Callers::new(2);
        let first = callers.connected(1).unwrap();
        let _second = callers.connected(1).unwrap();
        assert!(callers.connected(1).is_none());
        assert!(callers.connected(2).is_some());
        drop(first);
        assert!(callers.connected(1).is_some());
        assert_eq!(callers.of.borrow().len(), 1);
    }
}
