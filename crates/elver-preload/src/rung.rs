//! Events that wait for a program, and the descriptor that is readable as long as some do.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::ring::{Bell, bell, ring, take};

/// Events, the oldest first. Threads have turns at it.
pub(crate) struct Rung<T> {
    own: OwnedFd,
    waiting: VecDeque<T>,
    /// How many of them the bell had no room for: it is rung for them as others are taken.
    unrung: usize,
    /// How many rings threads have taken for events that went meanwhile, and have not come for: the next event needs none.
    owed: usize,
}

impl<T> Rung<T> {
    /// None, and the descriptor that a program has, with flags of `open`.
    pub(crate) fn new(flags: c_int) -> Result<(OwnedFd, Rung<T>), Errno> {
        bell(flags).map(Rung::of)
    }

    fn of((program, own): Bell) -> (OwnedFd, Rung<T>) {
        (program, Rung { own, waiting: VecDeque::new(), unrung: 0, owed: 0 })
    }

    /// What this library rings by, once the program's descriptor is closed and all events have gone.
    pub(crate) fn into_bell(self) -> OwnedFd {
        self.own
    }

    pub(crate) fn waiting(&self) -> &VecDeque<T> {
        &self.waiting
    }

    pub(crate) fn push(&mut self, event: T) {
        self.waiting.push_back(event);
        match self.owed.checked_sub(1) {
            Some(owed) => self.owed = owed,
            None => self.unrung += 1,
        }
        self.settle();
    }

    /// Takes the oldest, for who has taken a ring; none if what that was rung for has gone meanwhile.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let event = self.waiting.pop_front();
        if event.is_none() {
            self.owed = self.owed.saturating_sub(1);
        }
        self.settle();
        event
    }

    /// Takes the oldest with its ring, if somebody else has not taken that.
    pub(crate) fn next(&mut self) -> Option<T> {
        if take(&self.own) { self.pop() } else { None }
    }

    /// Takes those out that nobody is to hear of here.
    pub(crate) fn extract(&mut self, is_out: impl Fn(&T) -> bool) -> VecDeque<T> {
        let (out, kept): (VecDeque<T>, _) = self.waiting.drain(..).partition(is_out);
        self.waiting = kept;
        let unrung = out.len().min(self.unrung);
        self.unrung -= unrung;
        self.owed += (unrung..out.len()).filter(|_| !take(&self.own)).count();
        self.settle();
        out
    }

    fn settle(&mut self) {
        while self.unrung > 0 && ring(&self.own) {
            self.unrung -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    use crate::ring::counter;

    fn is_ready(program: &OwnedFd) -> bool {
        let mut ready = [PollFd::new(program, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    /// A pipe, and what is in its place where there is no /proc.
    fn both() -> [(OwnedFd, Rung<usize>); 2] {
        [bell, counter].map(|make| Rung::of(make(libc::O_NONBLOCK).unwrap()))
    }

    /// As a program does.
    fn next(program: &OwnedFd, rung: &mut Rung<usize>) -> Option<usize> {
        rustix::io::read(program, &mut [0; 8]).ok()?;
        rung.pop()
    }

    /// Far more than a pipe has room for.
    #[test]
    fn each_event_is_rung_for_once() {
        const EVENTS: usize = 20_000;
        for (program, mut rung) in both() {
            assert!(!is_ready(&program));
            (0..EVENTS).for_each(|event| rung.push(event));
            assert_eq!(rung.extract(|event| event % 2 == 1).len(), EVENTS / 2);
            for event in (0..EVENTS).step_by(2) {
                assert!(is_ready(&program));
                assert_eq!(next(&program, &mut rung), Some(event));
            }
            assert!(!is_ready(&program) && next(&program, &mut rung).is_none());
        }
    }

    #[test]
    fn who_has_a_ring_finds_the_next_event_or_none() {
        for (program, mut rung) in both() {
            (0..2).for_each(|event| rung.push(event));
            rustix::io::read(&program, &mut [0; 8]).unwrap();
            rung.extract(|event| *event == 0);
            assert!(!is_ready(&program));
            assert_eq!(rung.pop(), Some(1));
            rung.push(2);
            rustix::io::read(&program, &mut [0; 8]).unwrap();
            rung.extract(|event| *event == 2);
            assert_eq!(rung.pop(), None);
        }
    }

    /// One has taken the ring of an event that is gone before he comes for it: with what came by then he has the ring that it would
    /// have had.
    #[test]
    fn a_ring_is_never_left_without_an_event() {
        for (program, mut rung) in both() {
            rung.push(0);
            rustix::io::read(&program, &mut [0; 8]).unwrap();
            rung.extract(|event| *event == 0);
            rung.push(1);
            assert_eq!(rung.pop(), Some(1));
            assert!(!is_ready(&program));
            rung.push(2);
            assert!(is_ready(&program));
            assert_eq!(next(&program, &mut rung), Some(2));
        }
    }

    /// A write without a reader would be SIGPIPE, which is not ignored outside of a test.
    #[test]
    fn what_a_program_closed_is_rung_without_harm() {
        for (program, mut rung) in both() {
            drop(program);
            rung.push(1);
            assert_eq!((rung.unrung, rung.pop()), (0, Some(1)));
        }
    }
}
