//! What several connections may hold together.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// Bytes that are held, by everybody who has this bound in common.
#[derive(Clone, Debug)]
pub struct Bound {
    held: Rc<Cell<u64>>,
    most: u64,
    /// Who that is.
    whose: &'static str,
}

impl Bound {
    /// Of so many bytes, of whom a refusal names so.
    pub fn new(most: u64, whose: &'static str) -> Bound {
        Bound { held: Rc::default(), most, whose }
    }

    /// Bytes that are held.
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    /// Whether somebody else has it too.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.held) > 1
    }

    fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.most.saturating_sub(self.held())
    }
}

/// Which bound there is no room within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    most: u64,
    whose: &'static str,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Full { most, whose } = self;
        write!(f, "messages of {most} bytes are held for {whose}, and no more")
    }
}

/// Bytes that a connection holds, within its own bound and those that it has in common with others. They are given back
/// with it.
#[derive(Debug)]
pub(super) struct Held {
    own: Bound,
    common: Vec<Bound>,
}

impl Held {
    pub(super) fn new(most: u64) -> Held {
        Held { own: Bound::new(most, "this client"), common: Vec::new() }
    }

    /// It holds nothing yet.
    pub(super) fn share(&mut self, common: Vec<Bound>) {
        self.common = common;
    }

    /// Counts bytes, if there is room for them everywhere.
    pub(super) fn take(&self, bytes: u64) -> Result<(), Full> {
        if bytes == 0 {
            return Ok(());
        }
        match self.bounds().find(|bound| !bound.has_room(bytes)) {
            Some(&Bound { most, whose, .. }) => Err(Full { most, whose }),
            None => {
                self.bounds().for_each(|bound| bound.held.set(bound.held() + bytes));
                Ok(())
            }
        }
    }

    pub(super) fn give_back(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.bounds().for_each(|bound| bound.held.set(bound.held() - bytes));
    }

    fn bounds(&self) -> impl Iterator<Item = &Bound> {
        std::iter::once(&self.own).chain(&self.common)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(self.own.held());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_their_own_and_what_they_share() {
        let node = Bound::new(15, "clients of this client's node");
        let [one, other] = [(); 2].map(|()| {
            let mut held = Held::new(10);
            held.share(vec![node.clone()]);
            held
        });
        assert_eq!(
            one.take(11).unwrap_err().to_string().split(" for ").last(),
            Some("this client, and no more")
        );
        one.take(10).unwrap();
        assert!(other.take(6).unwrap_err().to_string().contains("of this client's node"));
        other.take(5).unwrap();
        one.give_back(4);
        assert_eq!(node.held(), 11);
        drop(one);
        assert_eq!((node.held(), node.is_shared()), (5, true));
        drop(other);
        assert_eq!((node.held(), node.is_shared()), (0, false));
    }
}
