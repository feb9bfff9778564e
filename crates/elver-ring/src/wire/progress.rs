//! What a wire posts, what comes of it, and who is woken for it.

use std::time::Instant;

use elver::{
    Completed, Mr, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Vqp, Wc, WcOpcode,
    WcStatus,
};

use super::{
    ADVANCE, BELL, BELL_BYTES, HEAD, NAP, NAP_LONGEST, OTHER, Role, SENDS_MAX, Shared, TAIL,
};
use crate::Error;
use crate::carrier::{WRITES_MAX, Write};
use crate::greeting::WAKING;
use crate::inbox::REFUSAL;
use crate::ringer::Ringer;
use crate::side::Side;

/// Of so many WRs one at least is signalled, so that the send queue never fills with those of which nobody
/// hears.
const UNSIGNALLED_MAX: u64 = 32;
/// Looks for one at the clock.
const LOOKS_PER_CLOCK: u32 = 256;

impl Shared {
    /// A word that the peer writes; acquire, as [`Mr::read_u64`] is.
    #[inline]
    pub(super) fn word(&self, cell: u64) -> u64 {
        let offset = cell * self.stride;
        u64::from_le(self.cells.read_u64(offset).expect("the words lie in their region"))
    }

    /// Posts WRITEs, and the number of a nap.
    #[inline]
    pub(super) fn post(&self, writes: &[Write], nap: Option<u64>) -> Result<bool, Error> {
        const WRS_MAX: usize = WRITES_MAX + 2;
        let points = writes.iter().any(|write| !matches!(write, Write::Slots(_)));
        let naps = self.peer_naps().filter(|_| points);
        let wakes = naps.filter(|_| self.wakes_itself());
        let count = writes.len() + usize::from(nap.is_some()) + usize::from(wakes.is_some());
        if !self.has_room(count as u64) {
            self.poll()?;
            if !self.has_room(count as u64) {
                return Ok(false);
            }
        }
        let mut sges = [[Sge::default(); 1]; WRITES_MAX];
        let mut words = [[0; 8]; WRITES_MAX];
        let nap_word = nap.unwrap_or(0).to_le_bytes();
        for ((write, sge), word) in writes.iter().zip(&mut sges).zip(&mut words) {
            match *write {
                Write::Slots(span) => {
                    let length = u32::try_from(span.len).expect("a ring is no longer than a WRITE");
                    let addr = self.outgoing.addr() + span.offset;
                    sge[0] = Sge { addr, length, lkey: self.outgoing_lkey };
                }
                Write::Tail(value) | Write::Head(value) => *word = value.to_le_bytes(),
            }
        }
        let _posting = self.posting.borrow();
        let mut number = self.posted.get();
        let mut signalled = self.signalled.get();
        let wrs: [SendWr<'_>; WRS_MAX] = std::array::from_fn(|at| {
            let write = writes.get(at);
            let (kind, op, payload) = match write {
                Some(Write::Slots(span)) => {
                    let remote = beyond(self.peer.slots, span.offset);
                    (OTHER, SendOp::Write(remote), Payload::Sges(&sges[at][..]))
                }
                Some(Write::Tail(_)) => {
                    let remote = beyond(self.peer.cells, TAIL * self.stride);
                    (ADVANCE, SendOp::Write(remote), Payload::Inline(&words[at][..]))
                }
                Some(Write::Head(_)) => {
                    let remote = beyond(self.peer.cells, HEAD * self.stride);
                    (OTHER, SendOp::Write(remote), Payload::Inline(&words[at][..]))
                }
                None if nap.is_some() && at == writes.len() => {
                    let remote = beyond(self.peer.cells, NAP * self.stride);
                    (OTHER, SendOp::Write(remote), Payload::Inline(&nap_word[..]))
                }
                // The others are not posted.
                None => (OTHER, SendOp::Send, Payload::Inline(WAKING)),
            };
            let mut flags = SendFlags::empty();
            if at < count {
                number += 1;
                let is_nap = nap.is_some() && at == writes.len();
                if kind == ADVANCE || is_nap || number - signalled >= UNSIGNALLED_MAX {
                    flags = SendFlags::SIGNALED;
                    signalled = number;
                }
            }
            SendWr { wr_id: number << 2 | kind, op, flags, payload, dest: None }
        });
        if let Err(failed) = self.vqp.try_post_send(&wrs[..count]) {
            return self.posted_in_part(writes, &wrs[..failed.posted], failed.error);
        }
        self.posted.set(number);
        self.signalled.set(signalled);
        if let Some(nap) = wakes {
            self.woken.set(nap);
            self.wakings.set(self.wakings.get() + 1);
        } else if let Some(nap) = naps {
            self.ring(nap);
        }
        Ok(true)
    }

    /// A node that stands still had no room for all, or the queue has refusals of the listener's in it: if none of it went, that
    /// is want of room here as well. If the first of it went, it counts as posted, and the rest goes when there is room, before
    /// anything else. Whose node or peer is gone hears that, and nothing counts: what becomes of what went is not heeded. A
    /// waking that did not go stays to be.
    #[cold]
    fn posted_in_part(
        &self,
        writes: &[Write],
        posted: &[SendWr<'_>],
        error: elver::Error,
    ) -> Result<bool, Error> {
        match error {
            elver::Error::TimedOut | elver::Error::QueueFull { .. } if posted.is_empty() => {
                return Ok(false);
            }
            elver::Error::TimedOut | elver::Error::QueueFull { .. } => {}
            // The system's trouble may pass, and then nothing may go twice.
            elver::Error::System { .. } if !posted.is_empty() => {}
            error => return Err(self.reason(error.into())),
        }
        for wr in posted {
            let number = wr.wr_id >> 2;
            self.posted.set(number);
            if wr.flags.contains(SendFlags::SIGNALED) {
                self.signalled.set(number);
            }
        }
        self.left.borrow_mut().extend(writes.iter().skip(posted.len()));
        self.leaves.set(!self.left.borrow().is_empty());
        Ok(true)
    }

    #[inline]
    pub(super) fn ringer(&self) -> Option<&Ringer> {
        match &self.role {
            Role::Accepted { .. } => None,
            Role::Connected { ringer, .. } => Some(ringer),
        }
    }

    #[inline]
    pub(super) fn side(&self) -> Option<&Side> {
        match &self.role {
            Role::Accepted { side, .. } => side.as_ref(),
            Role::Connected { .. } => None,
        }
    }

    /// Whether wakings go by the VQP that carries the rings, behind what they tell of.
    #[inline]
    fn wakes_itself(&self) -> bool {
        matches!(self.role, Role::Accepted { side: None, .. })
    }

    /// Wakes a peer by a VQP that is not the rings'; one that is not woken now stays to be.
    #[cold]
    fn ring(&self, nap: u64) {
        let rung = match &self.role {
            Role::Accepted { side, .. } => side.as_ref().is_some_and(Side::ring),
            Role::Connected { ringer, .. } => ringer.ring(),
        };
        if rung {
            self.woken.set(nap);
            self.wakings.set(self.wakings.get() + 1);
        }
    }

    /// Takes in what came beside the VQP: at a listener's end by the port, at the other one what became of wakings.
    #[cold]
    pub(super) fn look_around(&self) -> Result<(), Error> {
        match &self.role {
            Role::Accepted { bell, .. } => bell.inbox.drain(),
            Role::Connected { ringer, .. } => {
                if ringer.tend() {
                    // From no nap: the peer is to be woken again.
                    self.woken.set(0);
                }
                if ringer.is_owed()
                    && let Some(nap) = self.peer_naps()
                {
                    self.ring(nap);
                }
                Ok(())
            }
        }
    }

    /// Whether a greeting waits that was not looked for.
    pub(super) fn is_greeted(&self) -> bool {
        match &self.role {
            Role::Accepted { bell, .. } => bell.inbox.has_news(),
            Role::Connected { .. } => false,
        }
    }

    #[inline]
    fn has_room(&self, count: u64) -> bool {
        self.posted.get() - self.completed.get() + count <= u64::from(SENDS_MAX)
    }

    /// Whether all has arrived that was posted, as far as completions tell.
    pub(super) fn has_arrived(&self) -> bool {
        !self.leaves.get()
            && self.completed.get() == self.posted.get()
            && self.side().is_none_or(Side::has_arrived)
    }

    /// The number of the peer's nap, if it has not been woken from it.
    #[inline]
    fn peer_naps(&self) -> Option<u64> {
        Some(self.word(NAP)).filter(|nap| *nap != self.woken.get())
    }

    /// Why the VQP takes nothing: the completion that it failed with says more than that it has failed.
    #[cold]
    fn reason(&self, error: Error) -> Error {
        match self.take() {
            Err(reason) => reason,
            Ok(()) => error,
        }
    }

    /// Posts what ends that have gone had still to say, and what was posted in part, as far as there is room; whether that is
    /// all.
    #[cold]
    pub(super) fn say_left(&self) -> Result<bool, Error> {
        // A task that is woken by what this calls may come back here: what is said has its order.
        if self.says.replace(true) {
            return Ok(false);
        }
        let said = self.say_in_turn();
        self.says.set(false);
        self.leaves.set(!self.left.borrow().is_empty());
        said
    }

    fn say_in_turn(&self) -> Result<bool, Error> {
        loop {
            let Some(write) = self.left.borrow().front().copied() else { return Ok(true) };
            // With a waking.
            if !self.has_room(2) {
                self.take()?;
            }
            if !self.has_room(2) || !self.post(&[write], None)? {
                return Ok(false);
            }
            self.left.borrow_mut().pop_front();
        }
    }

    /// Asks whether the peer is still there, if it was not asked for long: its node may be gone, and then
    /// nobody tells.
    #[cold]
    fn probe(&self) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.probed.get() >= NAP_LONGEST && self.has_room(2) {
            self.probed.set(now);
            // The same number: it does not sleep.
            self.post(&[], Some(self.nap.get()))?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn poll(&self) -> Result<(), Error> {
        let looks = self.looks.get().wrapping_add(1);
        self.looks.set(looks);
        if looks.is_multiple_of(LOOKS_PER_CLOCK) {
            if self.ringer().is_some() {
                self.look_around()?;
            }
            self.probe()?;
        }
        self.take()?;
        if self.leaves.get() {
            self.say_left()?;
        }
        Ok(())
    }

    /// Takes what the node told.
    #[inline]
    fn take(&self) -> Result<(), Error> {
        const AT_ONCE: usize = 8;
        let mut told = false;
        loop {
            let mut wcs = [Wc::default(); AT_ONCE];
            let taken = self.vqp.poll_cq(&mut wcs)?;
            for wc in &wcs[..taken] {
                told |= self.complete(wc)?;
            }
            if taken < AT_ONCE {
                break;
            }
        }
        // Before this one's failure: the two may fail together, and what is left untold ends every wait.
        let beside = self.side().map_or(Ok(()), Side::tend);
        // What was flushed does not say why.
        if let Some(wc) = self.failed.get().filter(|wc| wc.status != WcStatus::WrFlushErr) {
            wc.succeeded()?;
        }
        if let Some(failure) = self.vqp.failure() {
            return Err(failure.into());
        }
        if let Some(wc) = self.failed.get() {
            wc.succeeded()?;
        }
        beside?;
        // A peer that lay down meanwhile.
        if told && self.peer_naps().is_some() {
            self.wake()?;
        }
        Ok(())
    }

    /// Takes a completion in; whether it was a tail's, or a refusal's, which may have kept a waking from its place.
    #[inline]
    fn complete(&self, wc: &Wc) -> Result<bool, Error> {
        if wc.status != WcStatus::Success {
            self.failed.set(self.failed.get().or(Some(*wc)));
            return Ok(false);
        }
        if wc.opcode == WcOpcode::Recv {
            self.bell(wc.wr_id)?;
            return Ok(false);
        }
        let number = wc.wr_id >> 2;
        if number <= self.beginning || number > self.posted.get() {
            // Else the greeting's, or of an end that is gone.
            return Ok(wc.wr_id == REFUSAL);
        }
        self.completed.set(self.completed.get().max(number));
        let is_advance = wc.wr_id & 3 == ADVANCE;
        self.advances.set(self.advances.get() + u64::from(is_advance));
        Ok(is_advance)
    }

    /// A waking came: its receive is posted again.
    #[cold]
    fn bell(&self, wr_id: u64) -> Result<(), Error> {
        self.rung.set(self.rung.get() + 1);
        let Role::Connected { bells, .. } = &self.role else { return Ok(()) };
        post_bell(&self.vqp, bells, wr_id >> 2)
    }

    #[cold]
    fn wake(&self) -> Result<(), Error> {
        let nap = self.word(NAP);
        if !self.wakes_itself() {
            self.ring(nap);
            return Ok(());
        }
        if !self.has_room(1) {
            // Whoever makes room comes by again.
            return Ok(());
        }
        let _posting = self.posting.borrow();
        let number = self.posted.get() + 1;
        let flags = SendFlags::SIGNALED;
        let payload = Payload::Inline(WAKING);
        let wr_id = number << 2 | OTHER;
        let wr = SendWr { wr_id, op: SendOp::Send, flags, payload, dest: None };
        match self.vqp.try_post_send(&[wr]).map_err(|failed| failed.error) {
            Ok(()) => {}
            // The node stands still, or refusals of the listener's are in the queue, and the waking stays to be.
            Err(elver::Error::TimedOut | elver::Error::QueueFull { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.posted.set(number);
        self.signalled.set(number);
        self.woken.set(nap);
        self.wakings.set(self.wakings.get() + 1);
        Ok(())
    }
}

/// Posts a receive for wakings.
pub(crate) fn post_bell(vqp: &Vqp, bells: &Mr, index: u64) -> Result<(), Error> {
    let sges = [bells.sge(index * u64::from(BELL_BYTES), BELL_BYTES)];
    Ok(vqp.post_recv(&[RecvWr { wr_id: index << 2 | BELL, sges: &sges }])?)
}

fn beyond(remote: RemoteAddr, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: remote.addr.wrapping_add(offset), ..remote }
}
