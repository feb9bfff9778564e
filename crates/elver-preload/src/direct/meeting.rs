//! Whom this process is meeting just now. Two that ask each other at the same moment are to meet once: of the two the
//! one with the lower address is answered, and the other waits for what comes of that.

use std::net::IpAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// All that is under way.
pub(crate) struct Meetings {
    own: IpAddr,
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Default)]
struct Now {
    /// As many as the program has threads that connect QPs; and whether what they asked themselves came to its end
    /// meanwhile.
    asked: Vec<(IpAddr, bool)>,
    /// One is answered at a time.
    answered: Option<IpAddr>,
}

/// Why one that asked itself is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vain {
    /// What it asked came to nothing: it may have ended, and another have its address by now.
    Ended,
    /// What it asked is under way yet.
    Late,
}

/// One of them, until the value goes.
pub(crate) struct Meeting<'a> {
    all: &'a Meetings,
    address: IpAddr,
    asks: bool,
}

impl Meetings {
    /// Of the process whose device is at this address.
    pub(crate) fn new(own: IpAddr) -> Meetings {
        Meetings { own, now: Mutex::default(), changed: Condvar::new() }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to ask a process, once nobody else is meeting it. It is not to be asked where it is known by then, or
    /// the time is over.
    pub(crate) fn ask<T>(
        &self,
        address: IpAddr,
        until: Instant,
        known: impl Fn() -> Option<T>,
    ) -> Result<Meeting<'_>, Option<T>> {
        let mut now = self.now();
        loop {
            if let Some(known) = known() {
                return Err(Some(known));
            }
            if now.answered != Some(address) && !now.asks(address) {
                now.asked.push((address, false));
                return Ok(Meeting { all: self, address, asks: true });
            }
            now = self.wait(now, until).ok_or(None)?;
        }
    }

    /// Begins to answer a process; none if it is met already, or this one asks it and is the one to be answered.
    pub(crate) fn answer(&self, address: IpAddr, known: impl Fn() -> bool) -> Option<Meeting<'_>> {
        let mut now = self.now();
        if now.asks(address) && self.own < address || known() {
            return None;
        }
        now.answered = Some(address);
        Some(Meeting { all: self, address, asks: false })
    }

    fn wait<'a>(&self, now: MutexGuard<'a, Now>, until: Instant) -> Option<MutexGuard<'a, Now>> {
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        let woken = self.changed.wait_timeout(now, left);
        Some(woken.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Now {
    fn asks(&self, address: IpAddr) -> bool {
        self.asked.iter().any(|(asked, _)| *asked == address)
    }

    fn was_answered(&self, address: IpAddr) -> bool {
        self.asked.contains(&(address, true))
    }
}

impl Meeting<'_> {
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Waits, while it is asked, until it is known by what it asked itself; that may come to nothing.
    pub(crate) fn await_asker<T>(
        &self,
        until: Instant,
        known: impl Fn() -> Option<T>,
    ) -> Result<T, Vain> {
        let mut now = self.all.now();
        loop {
            let known = known();
            if known.is_some() || now.was_answered(self.address) {
                return known.ok_or(Vain::Ended);
            }
            now = self.all.wait(now, until).ok_or(Vain::Late)?;
        }
    }
}

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        let mut now = self.all.now();
        if self.asks {
            now.asked.retain(|(other, _)| *other != self.address);
        } else {
            now.answered = None;
            let asked = now.asked.iter_mut().filter(|(other, _)| *other == self.address);
            asked.for_each(|(_, answered)| *answered = true);
        }
        drop(now);
        self.all.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    const LOW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 64, 0, 1));
    const HIGH: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 64, 0, 2));
    const NOBODY: fn() -> Option<()> = || None;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn of_two_that_ask_each_other_one_is_answered() {
        let (low, high) = (Meetings::new(LOW), Meetings::new(HIGH));
        let asks = (low.ask(HIGH, later(), NOBODY), high.ask(LOW, later(), NOBODY));
        assert!(asks.0.is_ok() && asks.1.is_ok());
        assert!(low.answer(HIGH, || false).is_none());
        assert!(high.answer(LOW, || false).is_some());
        // Another one is answered meanwhile, and who asks no more answers.
        assert!(low.answer(IpAddr::from([127, 64, 0, 3]), || false).is_some());
        drop(asks);
        assert!(low.answer(HIGH, || false).is_some());
        assert!(low.answer(HIGH, || true).is_none());
    }

    #[test]
    fn who_is_being_met_is_not_asked_besides() {
        let (meetings, met) = (Meetings::new(LOW), AtomicBool::new(false));
        let known = || met.load(Ordering::SeqCst).then_some(7);
        for asks in [true, false] {
            met.store(false, Ordering::SeqCst);
            let first = match asks {
                true => meetings.ask(HIGH, later(), known).ok(),
                false => meetings.answer(HIGH, || false),
            };
            assert!(meetings.ask(HIGH, Instant::now(), known).is_err_and(|known| known.is_none()));
            std::thread::scope(|scope| {
                let second = scope.spawn(|| meetings.ask(HIGH, later(), known).err());
                met.store(true, Ordering::SeqCst);
                drop(first);
                assert_eq!(second.join().unwrap(), Some(Some(7)));
            });
        }
    }

    #[test]
    fn who_asks_is_waited_for_until_that_has_come_to_its_end() {
        let meetings = Meetings::new(HIGH);
        let asking = meetings.ask(LOW, later(), NOBODY).ok().unwrap();
        assert_eq!(asking.await_asker(later(), || Some(7)), Ok(7));
        assert_eq!(asking.await_asker(Instant::now(), NOBODY), Err(Vain::Late));
        let answering = meetings.answer(LOW, || false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| asking.await_asker(later(), NOBODY));
            drop(answering);
            assert_eq!(waits.join().unwrap(), Err(Vain::Ended));
        });
    }
}
