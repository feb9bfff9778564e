use elver::SessionRefMut;

use crate::inner::Inner;
use crate::protocol::tags::{self, COLLECTIVE, NUMBER_MASK, OPERATIONS};
use crate::protocol::{Status, Wanted};
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
        if let Some(error) = dead(&inner) {
            return Err(error);
        }
        let number = inner.collectives & NUMBER_MASK;
        inner.collectives = inner.collectives.wrapping_add(1);
        Ok(Operation { inner, what, number })
    }

    pub(super) fn rank(&self) -> u32 {
        self.inner.rank
    }

    pub(super) fn size(&self) -> u32 {
        self.inner.size()
    }

    pub(super) fn send(&mut self, to: u32, bytes: &[u8]) -> Result<(), Error> {
        let tag = self.tag();
        self.inner.send(to, tag, bytes, |inner, _| dead(inner))
    }

    /// Receives as many bytes as there is room for.
    pub(super) fn receive(&mut self, from: u32, into: &mut [u8]) -> Result<(), Error> {
        let (wanted, ours) = (self.wanted(from), into.len() as u64);
        let received = self.inner.receive(wanted, into, |inner, _| dead(inner));
        self.fits(received, ours)
    }

    /// Sends to one rank while it receives from one.
    pub(super) fn exchange(
        &mut self,
        (to, bytes): (u32, &[u8]),
        (from, into): (u32, &mut [u8]),
    ) -> Result<(), Error> {
        let (tag, wanted, ours) = (self.tag(), self.wanted(from), into.len() as u64);
        let received =
            self.inner.exchange((to, tag, bytes), (wanted, into), |inner, _| dead(inner));
        self.fits(received, ours)
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
        let operation = OPERATIONS[self.what as usize];
        let theirs_is = tags::operation(tag).and_then(|what| OPERATIONS.get(what as usize));
        if let Some(theirs_is) = theirs_is.filter(|theirs| **theirs != operation) {
            return Err(Error::Disagree { rank, theirs: theirs_is, ours: operation });
        }
        if theirs == ours { Ok(()) } else { Err(Error::Length { rank, theirs, ours, operation }) }
    }
}

/// Without all ranks there is no end to it.
fn dead(inner: &Inner) -> Option<Error> {
    inner.dead().map(|rank| inner.lost(rank))
}
