use elver::SessionRefMut;

use crate::error::Loss;
use crate::inner::Inner;
use crate::protocol::tags::{self, COLLECTIVE, NUMBER_MASK, OPERATIONS};
use crate::protocol::{Discord, Status, Wanted};
use crate::{Error, Group};

/// What a collective operation is. Its number stands in the tags of its messages, so that ranks notice when they
/// call different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Barrier,
    Broadcast,
    Gather,
    Allgather,
    Reduce,
    Allreduce,
    /// In a ring, where a rank's part may be as long as all that another rank has.
    AllreduceRing,
    /// In a ring, where others are waited for than otherwise.
    AllgatherRing,
}

/// One that goes on.
pub(super) struct Operation<'a> {
    inner: SessionRefMut<'a, Inner>,
    what: What,
    number: u32,
}

impl<'a> Operation<'a> {
    pub(super) fn begin(group: &'a Group, what: What) -> Result<Operation<'a>, Error> {
        let mut inner = group.inner.borrow_mut();
        let number = inner.collectives & NUMBER_MASK;
        inner.collectives = inner.collectives.wrapping_add(1);
        inner.engine.begin_operation(tags::of_operation(what as u32, number));
        let mut operation = Operation { inner, what, number };
        let begun = dead(&operation.inner).map_or(Ok(()), Err);
        operation.or_give_up(begun)?;
        Ok(operation)
    }

    pub(super) fn rank(&self) -> u32 {
        self.inner.rank
    }

    pub(super) fn size(&self) -> u32 {
        self.inner.size()
    }

    pub(super) fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), Error> {
        let (tag, what) = (self.tag(), self.what);
        let sent = self.inner.send(to, tag, bytes, |inner, _| hopeless(inner, what));
        self.or_give_up(sent)
    }

    /// Receives as many bytes as there is room for.
    pub(super) fn receive(&mut self, from: u32, into: &mut [u8]) -> Result<(), Error> {
        let (wanted, ours, what) = (self.wanted(from), into.len() as u64, self.what);
        let received = self.inner.receive(wanted, into, |inner, _| hopeless(inner, what));
        let fits = self.fits(received, ours);
        self.or_give_up(fits)
    }

    /// Sends to one rank while it receives from one.
    pub(super) fn exchange(
        &mut self,
        (to, bytes): (u32, &[u8]),
        (from, into): (u32, &mut [u8]),
    ) -> Result<(), Error> {
        let (tag, wanted, ours) = (self.tag(), self.wanted(from), into.len() as u64);
        let what = self.what;
        let received =
            self.inner.exchange((to, tag, bytes), (wanted, into), |inner, _| hopeless(inner, what));
        let fits = self.fits(received, ours);
        self.or_give_up(fits)
    }

    /// Whoever cannot go on says so, since others may wait for it; but where they hear of the cause themselves.
    fn or_give_up<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        let is_heard = |error: &Error| match error {
            Error::GaveUp { .. } => true,
            // What a rank sent to this one, or offered it, is this one's to tell.
            Error::Lost { loss, .. } => !matches!(loss, Loss::Fault(_) | Loss::Unreadable(_)),
            _ => false,
        };
        if done.as_ref().is_err_and(|error| !is_heard(error)) {
            let tag = self.tag();
            self.inner.engine.give_up(tag);
            self.inner.send_all();
        }
        done
    }

    fn tag(&self) -> u32 {
        tags::of_operation(self.what as u32, self.number)
    }

    /// Whatever the other rank does.
    fn wanted(&self, from: u32) -> Wanted {
        let mask = COLLECTIVE | NUMBER_MASK;
        Wanted { source: Some(from), tag: COLLECTIVE | self.number, mask }
    }

    fn fits(&self, received: Result<Status, Error>, ours: u64) -> Result<(), Error> {
        let status = match received {
            Ok(status) | Err(Error::Truncated { status, .. }) => status,
            Err(error) => return Err(error),
        };
        let Status { source: rank, tag, len: theirs } = status;
        if tag != self.tag() {
            return Err(disagree(&status, self.what));
        }
        let operation = self.what.name();
        if theirs == ours { Ok(()) } else { Err(Error::Length { rank, theirs, ours, operation }) }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.inner.engine.end_operation();
    }
}

impl What {
    fn name(self) -> &'static str {
        OPERATIONS[self as usize]
    }
}

fn disagree(status: &Status, what: What) -> Error {
    let theirs = tags::operation(status.tag).expect("a turn is in tags of operations alone");
    Error::Disagree { rank: status.source, theirs: OPERATIONS[theirs as usize], ours: what.name() }
}

/// Why it is not waited for any more.
fn hopeless(inner: &Inner, what: What) -> Option<Error> {
    match inner.engine.discord() {
        Some(Discord::Differs(status)) => Some(disagree(&status, what)),
        Some(Discord::GivenUp { rank }) => Some(Error::GaveUp { rank, operation: what.name() }),
        None => dead(inner),
    }
}

/// Without all ranks there is no end to it.
fn dead(inner: &Inner) -> Option<Error> {
    inner.dead().map(|rank| inner.lost(rank))
}
