//! Calls that wait with memory of their caller's.

use crate::inner::Inner;
use crate::protocol::{Held, Lent, RequestId, Status, Wanted};
use crate::{Error, Payload, Region};

impl Inner {
    /// Sends, and returns when the bytes may be used again. `check` says whether the wait still makes sense.
    #[inline]
    pub(crate) fn send(
        &mut self,
        to: u32,
        tag: u32,
        bytes: &[u8],
        check: impl Fn(&Inner, RequestId) -> Option<Error>,
    ) -> Result<(), Error> {
        let id = self.engine.send(to, tag, bytes.len() as u64, Held::Lent)?;
        let mut lent = Lent { send: Some((id, bytes)), receive: None };
        let offered = self.engine.counters().offered;
        self.send_to(to, &mut lent);
        let sent = self.finish_send(id, &mut lent, check);
        if self.engine.counters().offered != offered {
            // Its receiver waits for the last of it.
            self.flush(&mut lent);
        }
        // Its receiver may have a part of it.
        sent.or_else(|error| self.go_on_with(id, Payload::from(bytes), error))
    }

    /// The same, of registered memory.
    pub(crate) fn send_region(&mut self, to: u32, tag: u32, region: &Region) -> Result<(), Error> {
        let id = self.engine.send(to, tag, region.len(), Held::Own(Payload::from(region)))?;
        let mut lent = Lent::none();
        self.send_to(to, &mut lent);
        match self.finish_send(id, &mut lent, |_, _| None) {
            Err(Error::Itself) => {
                let mut copy = vec![0; region.len() as usize];
                region.read(0, &mut copy)?;
                self.go_on_with(id, Payload::from(copy), Error::Itself)
            }
            Err(error) => {
                // Its receiver may READ it: the memory lasts as long as the request.
                self.engine.abandon(id, None);
                Err(error)
            }
            Ok(()) => {
                self.flush(&mut lent);
                Ok(())
            }
        }
    }

    /// A send that is not waited for any more has a copy. To itself a rank has sent with that.
    fn go_on_with(&mut self, id: RequestId, copy: Payload, error: Error) -> Result<(), Error> {
        self.engine.abandon(id, Some(copy));
        if matches!(error, Error::Itself) { Ok(()) } else { Err(error) }
    }

    #[inline]
    fn finish_send(
        &mut self,
        id: RequestId,
        lent: &mut Lent<'_>,
        check: impl Fn(&Inner, RequestId) -> Option<Error>,
    ) -> Result<(), Error> {
        self.wait_batching(None, lent, |inner| match inner.take(id) {
            Some((how, _)) => Some(how.map(drop)),
            None if inner.is_stuck(id) => Some(Err(Error::Itself)),
            None => check(inner, id).map(Err),
        })
    }

    /// Receives, and returns when the message is here. `check` as for [`Inner::send`].
    #[inline]
    pub(crate) fn receive(
        &mut self,
        wanted: Wanted,
        into: &mut [u8],
        check: impl Fn(&Inner, RequestId) -> Option<Error>,
    ) -> Result<Status, Error> {
        let id = self.engine.receive_into(wanted, into)?;
        let mut lent = Lent { send: None, receive: Some((id, into)) };
        self.finish_receive(id, &mut lent, check)
    }

    /// Sends to one rank while it receives from another. `check` as for [`Inner::send`].
    pub(crate) fn exchange(
        &mut self,
        (to, tag, bytes): (u32, u32, &[u8]),
        (wanted, into): (Wanted, &mut [u8]),
        check: impl Fn(&Inner, RequestId) -> Option<Error>,
    ) -> Result<Status, Error> {
        let receive = self.engine.receive_into(wanted, into)?;
        let send = match self.engine.send(to, tag, bytes.len() as u64, Held::Lent) {
            Ok(send) => send,
            Err(refused) => {
                self.engine.abandon(receive, None);
                return Err(refused.into());
            }
        };
        let mut lent = Lent { send: Some((send, bytes)), receive: Some((receive, into)) };
        self.send_to(to, &mut lent);
        // What comes meanwhile is taken in, whichever is over first.
        if let Err(error) = self.finish_send(send, &mut lent, &check) {
            self.engine.abandon(send, Some(Payload::from(bytes)));
            self.engine.abandon(receive, None);
            return Err(error);
        }
        lent.send = None;
        self.finish_receive(receive, &mut lent, check)
    }

    fn finish_receive(
        &mut self,
        id: RequestId,
        lent: &mut Lent<'_>,
        check: impl Fn(&Inner, RequestId) -> Option<Error>,
    ) -> Result<Status, Error> {
        let received = self.wait(None, lent, |inner| match inner.take(id) {
            Some((how, _)) => Some(how),
            None => inner.hopeless(id).or_else(|| check(inner, id)).map(Err),
        });
        if received.is_err() {
            self.engine.abandon(id, None);
        }
        received
    }

    /// Whether a request waits for nobody but this rank, which waits for it.
    pub(crate) fn is_stuck(&self, id: RequestId) -> bool {
        self.is_still() && self.engine.waits_for_itself(id)
    }

    /// Why a wait without an end for a request would have none: this rank would have to do what it does not do while it waits.
    pub(crate) fn hopeless(&self, id: RequestId) -> Option<Error> {
        if self.is_stuck(id) {
            return Some(Error::Itself);
        }
        let rank = self.is_still().then(|| self.engine.waits_behind(id)).flatten()?;
        Some(self.crowded(rank))
    }

    fn crowded(&self, rank: u32) -> Error {
        Error::Crowded { rank, messages: self.engine.held_from(rank) }
    }

    /// Why a probe that finds nothing would never find anything.
    pub(crate) fn probe_is_stuck<T>(&self, wanted: &Wanted) -> Option<Result<T, Error>> {
        if !self.is_still() {
            return None;
        }
        if self.engine.is_own_alone(wanted.source) {
            return Some(Err(Error::Itself));
        }
        self.engine.is_behind(wanted).map(|rank| Err(self.crowded(rank)))
    }

    /// What a probe finds.
    pub(crate) fn probed(&self, wanted: &Wanted) -> Option<Result<Status, Error>> {
        match (self.engine.probe(wanted), self.engine.probe_fails(wanted)) {
            (Some(status), _) => Some(Ok(status)),
            (None, Some(rank)) => Some(Err(self.lost(rank))),
            (None, None) => None,
        }
    }
}
