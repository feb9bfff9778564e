//! Copies that could have to wait, made by others while the device goes on: the errands of its RNIC.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use elver_memory::{Copier, Ended, LOOK, SoftMemory};
use elver_rnic::{Errand, Rnic, Time};
use rustix::event::{EventfdFlags, eventfd};

/// The errands of a device that are under way.
pub(crate) struct Errands {
    out: BTreeMap<u64, Out>,
    next: u64,
    ended: Receiver<(u64, Ended)>,
    teller: Sender<(u64, Ended)>,
    /// Readable when an errand has ended.
    bell: Arc<OwnedFd>,
    looked_at: Time,
}

/// An errand that somebody runs, and for whom.
struct Out {
    errand: Errand<SoftMemory>,
    copier: Arc<Copier>,
    account: u64,
}

impl Errands {
    pub(crate) fn new() -> io::Result<Errands> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (teller, ended) = channel();
        let out = BTreeMap::new();
        Ok(Errands { out, next: 0, ended, teller, bell, looked_at: Time::ZERO })
    }

    /// Whether any is under way.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.out.is_empty()
    }

    /// What becomes readable when one has ended, and after how long somebody must look whether one
    /// takes too long; none if none is under way.
    pub(crate) fn bell(&self) -> Option<(BorrowedFd<'_>, Duration)> {
        self.any().then(|| (self.bell.as_fd(), LOOK))
    }

    /// The bell was heard.
    pub(crate) fn hush(&self) {
        // Nothing to read means that it has not rung.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }

    /// Sends new errands out, and takes back those that have ended; whether there were any.
    pub(crate) fn run(&mut self, now: Time, rnic: &mut Rnic<SoftMemory>) -> bool {
        let mut acted = self.send_out(now, rnic);
        while let Ok((id, ended)) = self.ended.try_recv() {
            // One that was given up is nobody's any more.
            let Some(Out { mut errand, copier, .. }) = self.out.remove(&id) else { continue };
            copier.end(&ended);
            let done = ended.bytes.is_some();
            errand.bytes = ended.bytes.unwrap_or_default();
            rnic.errand_done(now, errand, done);
            acted = true;
        }
        if now.ns_since(self.looked_at) >= LOOK.as_nanos() as u64 {
            self.looked_at = now;
            acted |= self.give_up(now, rnic);
        }
        // Whoever goes on may need the next piece.
        acted | self.send_out(now, rnic)
    }

    fn send_out(&mut self, now: Time, rnic: &mut Rnic<SoftMemory>) -> bool {
        let mut acted = false;
        while let Some(mut errand) = rnic.poll_errand() {
            acted = true;
            let (id, bytes) = (self.next, std::mem::take(&mut errand.bytes));
            self.next += 1;
            let (teller, bell) = (self.teller.clone(), self.bell.clone());
            let told = move |ended| {
                // It fails only when the device is gone, or when the bell rings already.
                let _ = teller.send((id, ended));
                let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
            };
            match errand.memory.submit(errand.offset, bytes, errand.writes, told) {
                Some((copier, account)) => {
                    self.out.insert(id, Out { errand, copier, account });
                }
                None => rnic.errand_done(now, errand, false),
            }
        }
        acted
    }

    /// Gives up what takes too long, with all else that is under way for the same account.
    #[cold]
    fn give_up(&mut self, now: Time, rnic: &mut Rnic<SoftMemory>) -> bool {
        let mut late: Vec<(u64, bool)> = Vec::new();
        for out in self.out.values() {
            if !late.iter().any(|(account, _)| *account == out.account) {
                late.push((out.account, out.copier.overdue(out.account)));
            }
        }
        late.retain(|(_, late)| *late);
        let is_late = |out: &Out| late.iter().any(|(account, _)| *account == out.account);
        let ids: Vec<u64> =
            self.out.iter().filter(|(_, out)| is_late(out)).map(|(id, _)| *id).collect();
        for id in &ids {
            if let Some(Out { errand, .. }) = self.out.remove(id) {
                rnic.errand_done(now, errand, false);
            }
        }
        !ids.is_empty()
    }
}
