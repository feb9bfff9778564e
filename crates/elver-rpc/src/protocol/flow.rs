//! The bytes of a call's stream in one direction: no more go than the other end has given credit for.

use super::fault::Fault;
use super::kind::Kind;

/// Of the end that sends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outflow {
    sent: u64,
    allowed: u64,
}

impl Outflow {
    pub(super) fn new(window: u32) -> Outflow {
        Outflow { sent: 0, allowed: window.into() }
    }

    /// How many may be sent now, `chunk` at most.
    pub(super) fn room(&self, chunk: usize) -> usize {
        usize::try_from(self.allowed - self.sent).map_or(chunk, |most| most.min(chunk))
    }

    pub(super) fn send(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// The other end takes so many more.
    pub(super) fn grant(&mut self, bytes: u64) -> Result<(), Fault> {
        let allowed = self.allowed.checked_add(bytes);
        self.allowed = allowed.ok_or(Fault::Field { kind: Kind::Credit })?;
        Ok(())
    }
}

/// Of the end that it comes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inflow {
    came: u64,
    allowed: u64,
    ungranted: u64,
    ended: bool,
}

impl Inflow {
    pub(super) fn new(window: u32) -> Inflow {
        Inflow { came: 0, allowed: window.into(), ungranted: 0, ended: false }
    }

    /// Bytes came, `ends`: the last ones.
    pub(super) fn take(&mut self, bytes: u32, ends: bool) -> Result<(), Fault> {
        self.came += u64::from(bytes);
        let (bytes, allowed) = (self.came, self.allowed);
        if bytes > allowed || self.ended {
            return Err(Fault::Credit { bytes, allowed });
        }
        self.ended = ends;
        Ok(())
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes were read. How many more may come, when it is worth saying and anybody `listens`.
    pub(super) fn read(&mut self, bytes: usize, window: u32, listens: bool) -> Option<u64> {
        self.ungranted += bytes as u64;
        if self.ungranted < u64::from(window).div_ceil(2) || !listens || self.ended {
            return None;
        }
        let bytes = std::mem::take(&mut self.ungranted);
        self.allowed += bytes;
        Some(bytes)
    }
}
