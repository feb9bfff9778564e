//! The VQP back to who connected, where a listener's end has a VQP of its own for what it writes
//! ([`crate::ListenerOptions::policy`]): messages to who connected go by it alone, since that is whom it names.

use std::cell::Cell;

use elver::{Completed, Payload, SendFlags, SendOp, SendWr, Vqp, Wc, WcStatus};

use crate::Error;
use crate::greeting::WAKING;
use crate::inbox::REFUSAL;

/// Of so many wakings one is signalled, so that the send queue never fills with those of which nobody hears.
const SIGNALLED: u64 = 8;

pub(crate) struct Side {
    vqp: Vqp,
    sent: Cell<u64>,
    /// Messages whose completions come, and those that came.
    signalled: Cell<u64>,
    completed: Cell<u64>,
}

impl Side {
    /// Of a VQP by which the answer went, whose completion comes.
    pub(crate) fn new(vqp: Vqp) -> Side {
        Side { vqp, sent: Cell::default(), signalled: Cell::new(1), completed: Cell::default() }
    }

    /// Sends a waking; false if it does not go now: come back.
    pub(crate) fn ring(&self) -> bool {
        let number = self.sent.get() + 1;
        let is_signalled = number.is_multiple_of(SIGNALLED);
        let flags = if is_signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let payload = Payload::Inline(WAKING);
        let wr = SendWr { wr_id: number, op: SendOp::Send, flags, payload, dest: None };
        let rung = self.vqp.try_post_send(&[wr]).is_ok();
        if rung {
            self.sent.set(number);
            self.signalled.set(self.signalled.get() + u64::from(is_signalled));
        }
        rung
    }

    /// Takes in what became of them, and whether who connected is still there.
    pub(crate) fn tend(&self) -> Result<(), Error> {
        const AT_ONCE: usize = 4;
        let mut failed = None;
        loop {
            let mut wcs = [Wc::default(); AT_ONCE];
            let taken = self.vqp.poll_cq(&mut wcs)?;
            let failure = |wc: &&Wc| wc.status != WcStatus::Success;
            failed = failed.or(wcs[..taken].iter().find(failure).copied());
            let own = wcs[..taken].iter().filter(|wc| wc.wr_id != REFUSAL).count();
            self.completed.set(self.completed.get() + own as u64);
            if taken < AT_ONCE {
                break;
            }
        }
        if let Some(failure) = self.vqp.failure() {
            return Err(failure.into());
        }
        failed.map_or(Ok(()), |wc| wc.succeeded().map(drop).map_err(Error::from))
    }

    /// Whether the answer has arrived, and the wakings of which that is told.
    pub(crate) fn has_arrived(&self) -> bool {
        self.completed.get() >= self.signalled.get()
    }
}
