//! Who is connected to the front door: one user cannot take what there is for all, and all who may invoke nothing cannot take
//! together what there is for those who may.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::room::Room;

#[derive(Debug)]
struct Caller {
    connections: usize,
    bodies: Arc<Room>,
    is_stranger: bool,
}

impl Caller {
    /// Whether nothing is left of one: a request that he has gone from may still have his body, and he would have as many bytes
    /// anew with each connection else. Beside him, so many have his room.
    fn has_gone(&self, others: usize) -> bool {
        self.connections == 0 && Arc::strong_count(&self.bodies) == 1 + others
    }
}

/// Users who have connections, or whose bodies are kept.
#[derive(Debug)]
pub(super) struct Callers {
    most: usize,
    of: Rc<RefCell<BTreeMap<u32, Caller>>>,
}

/// A user's connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Connected {
    uid: u32,
    bodies: Arc<Room>,
    of: Rc<RefCell<BTreeMap<u32, Caller>>>,
}

impl Callers {
    /// Each may have so many connections, and as many all who may invoke nothing together.
    pub(super) fn new(most: usize) -> Callers {
        Callers { most, of: Rc::default() }
    }

    /// One of a user more, unless he has as many as he may.
    ///
    /// # Errors
    /// Why he gets none.
    pub(super) fn connected(&self, uid: u32, is_stranger: bool) -> Result<Connected, &'static str> {
        let mut of = self.of.borrow_mut();
        of.retain(|_, caller| !caller.has_gone(0));
        let strangers = of.values().filter(|caller| caller.is_stranger);
        let of_strangers: usize = strangers.map(|caller| caller.connections).sum();
        if is_stranger && of_strangers >= self.most {
            return Err("all who may invoke nothing have as many connections as they may have");
        }
        let new = || Caller { connections: 0, bodies: Room::new(), is_stranger };
        let caller = of.entry(uid).or_insert_with(new);
        if caller.connections >= self.most {
            return Err("you have as many connections as one user may have");
        }
        caller.connections += 1;
        Ok(Connected { uid, bodies: caller.bodies.clone(), of: self.of.clone() })
    }
}

impl Connected {
    /// Room for the user's bodies.
    pub(super) fn bodies(&self) -> Arc<Room> {
        self.bodies.clone()
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut of = self.of.borrow_mut();
        if let Some(caller) = of.get_mut(&self.uid) {
            caller.connections -= 1;
            if caller.has_gone(1) {
                of.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::Part;
    use super::*;

    #[test]
    fn one_user_has_so_many_and_others_theirs() {
        let callers = Callers::new(2);
        let first = callers.connected(1, false).unwrap();
        let _second = callers.connected(1, false).unwrap();
        assert!(callers.connected(1, false).is_err());
        assert!(callers.connected(2, false).is_ok());
        drop(first);
        assert!(callers.connected(1, false).is_ok());
        assert_eq!(callers.of.borrow().len(), 1);
    }

    /// He had room for as many bodies anew.
    #[test]
    fn who_connects_again_has_the_room_that_his_bodies_leave() {
        let callers = Callers::new(2);
        let connected = || callers.connected(1, false).unwrap();
        let (first, second) = (connected(), connected());
        let kept = Part::new(first.bodies());
        drop((first, second));
        let again = connected();
        let room = Arc::downgrade(&again.bodies());
        assert_eq!(room.strong_count(), 3, "its body's, its connection's, and the table's");
        drop(again);
        drop(kept);
        assert_eq!(room.strong_count(), 1);
        callers.connected(2, false).unwrap();
        assert_eq!(room.strong_count(), 0);
        assert!(callers.of.borrow().is_empty());
    }

    #[test]
    fn all_who_may_invoke_nothing_have_as_many_as_one_user() {
        let callers = Callers::new(2);
        let first = callers.connected(1, true).unwrap();
        let _second = callers.connected(2, true).unwrap();
        assert!(callers.connected(3, true).is_err());
        assert!(callers.connected(4, false).is_ok());
        drop(first);
        assert!(callers.connected(3, true).is_ok());
    }
}
