//! The VQP back to who connected, where a listener's end has a VQP of its own for what it writes
//! ([`crate::ListenerOptions::policy`]): messages to who connected go by it alone, since that is whom it names.

use std::cell::Cell;

use elver::{Completed, Payload, SendFlags, SendOp, SendWr, Vqp, Wc};

use crate::Error;
use crate::greeting::WAKING;

/// Of so many wakings one is signalled, so that the send queue never fills with those of which nobody hears.
const SIGNALLED: u64 = 8;

pub(crate) struct Side {
    vqp: Vqp,
    sent: Cell<u64>,
}

impl Side {
    pub(crate) fn new(vqp: Vqp) -> Side {
        Side { vqp, sent: Cell::default() }
    }

    /// Sends a waking; false if it does not go now: come back.
    pub(crate) fn ring(&self) -> bool {
        let number = self.sent.get() + 1;
        let is_signalled = number.is_multiple_of(SIGNALLED);
        let flags = if is_signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let payload = Payload::Inline(WAKING);
        let wr = SendWr { wr_id: number, op: SendOp::Send, flags, payload, dest: None };
        let rung = self.vqp.post_send(&[wr]).is_ok();
        if rung {
            self.sent.set(number);
        }
        rung
    }

    /// Takes in what became of them, and whether who connected is still there.
    pub(crate) fn tend(&self) -> Result<(), Error> {
        const AT_ONCE: usize = 4;
        loop {
            let mut wcs = [Wc::default(); AT_ONCE];
            let taken = self.vqp.poll_cq(&mut wcs)?;
            if let Some(failure) = self.vqp.failure() {
                return Err(failure.into());
            }
            for wc in &wcs[..taken] {
                wc.succeeded()?;
            }
            if taken < AT_ONCE {
                return Ok(());
            }
        }
    }
}
