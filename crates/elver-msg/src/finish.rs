//! How a rank leaves so that nobody misses anything.

use crate::protocol::Lent;
use crate::{Error, Group};

impl Group {
    /// Leaves when everything that this rank sent was received or taken in, and all ranks are here too.
    ///
    /// # Errors
    /// [`Error::Lost`] if a rank is not there any more: it may not have got what was sent to it.
    pub fn finish(self) -> Result<(), Error> {
        self.settle()?;
        self.barrier()?;
        {
            let mut inner = self.inner.borrow_mut();
            let others = (0..self.size()).filter(|rank| *rank != self.rank());
            others.for_each(|to| inner.engine.say_bye(to));
        }
        self.part()
    }

    /// Waits until all others have said good-bye too. Behind the barrier nobody needs anything more of anybody: who
    /// goes without a word, for which it may have had no time, has finished as well. Who would go before all have
    /// passed the barrier could take with it what others wait for there.
    fn part(&self) -> Result<(), Error> {
        self.inner.borrow_mut().wait(None, &mut Lent::none(), |inner| {
            let mut others = (0..inner.size()).filter(|rank| *rank != inner.rank);
            let has_gone = |rank| inner.engine.has_finished(rank) || inner.engine.is_lost(rank);
            let all = others.all(|rank| has_gone(rank) && !inner.engine.owes(rank));
            all.then_some(Ok(()))
        })
    }

    /// Waits until nothing is left that the others are owed.
    fn settle(&self) -> Result<(), Error> {
        self.inner.borrow_mut().wait(None, &mut Lent::none(), |inner| {
            let mut others = (0..inner.size()).filter(|rank| *rank != inner.rank);
            let owed = others.any(|rank| inner.engine.owes(rank));
            match inner.dead() {
                Some(rank) => Some(Err(inner.lost(rank))),
                None => (!owed).then_some(Ok(())),
            }
        })
    }
}
