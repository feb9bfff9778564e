//! Events that wait for a program, and the descriptor that is readable as long as some do. Who reads it has the event that he was rung
//! for, as from the kernel's: the ring has its name.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::ring::{Bell, Own, bell};

/// Events whose rings were taken, and that nobody has come for: so many may still be come for. Those before were a program's, which read the
/// descriptor itself.
const COMING: usize = 64;

/// Events, the oldest first. Threads have turns at it.
pub(crate) struct Rung<T> {
    own: Own,
    /// With their names.
    waiting: VecDeque<(u64, T)>,
    /// How many of the last of them the bell had no room for: it is rung for them as others are taken.
    unrung: usize,
    /// Names so far.
    named: u64,
}

impl<T> Rung<T> {
    /// None, and the descriptor that a program has, with flags of `open`.
    pub(crate) fn new(flags: c_int) -> Result<(OwnedFd, Rung<T>), Errno> {
        bell(flags).map(Rung::of)
    }

    fn of((program, own): Bell) -> (OwnedFd, Rung<T>) {
        (program, Rung { own, waiting: VecDeque::new(), unrung: 0, named: 0 })
    }

    /// What this library rings by, once the program's descriptor is closed and all events have gone.
    pub(crate) fn into_bell(self) -> Own {
        self.own
    }

    pub(crate) fn waiting(&self) -> impl ExactSizeIterator<Item = &T> {
        self.waiting.iter().map(|(_, event)| event)
    }

    pub(crate) fn push(&mut self, event: T) {
        self.named += 1;
        self.push_named(self.named, event);
    }

    /// With a name that others may have too, which are as good.
    pub(crate) fn push_named(&mut self, name: u64, event: T) {
        self.waiting.push_back((name, event));
        self.unrung += 1;
        self.settle();
        self.forget_taken();
    }

    /// Takes the one that a ring was for; none if that has gone meanwhile.
    pub(crate) fn pop(&mut self, ring: u64) -> Option<T> {
        let rung = self.waiting.len() - self.unrung;
        let at = self.waiting.iter().take(rung).position(|(name, _)| *name == ring);
        let event = at.and_then(|at| self.waiting.remove(at));
        self.settle();
        event.map(|(_, event)| event)
    }

    /// Takes the oldest whose ring nobody has taken.
    pub(crate) fn next(&mut self) -> Option<T> {
        let ring = self.own.take()?;
        self.pop(ring)
    }

    /// Takes those out that nobody is to hear of here.
    pub(crate) fn extract(&mut self, is_out: impl Fn(&T) -> bool) -> VecDeque<T> {
        let rung = self.waiting.len() - self.unrung;
        let (mut out, mut unrung) = (VecDeque::new(), 0);
        for (at, (name, event)) in std::mem::take(&mut self.waiting).into_iter().enumerate() {
            if is_out(&event) {
                out.push_back(event);
            } else {
                unrung += usize::from(at >= rung);
                self.waiting.push_back((name, event));
            }
        }
        self.unrung = unrung;
        if !out.is_empty() {
            // There is room for those that stay.
            let rings: Vec<u64> = std::iter::from_fn(|| self.own.take()).collect();
            let stays = |ring: &u64| self.waiting.iter().any(|(name, _)| name == ring);
            rings.into_iter().filter(stays).for_each(|ring| _ = self.own.ring(ring));
        }
        self.settle();
        out
    }

    fn settle(&mut self) {
        while self.unrung > 0 {
            let (name, _) = self.waiting[self.waiting.len() - self.unrung];
            if !self.own.ring(name) {
                break;
            }
            self.unrung -= 1;
        }
    }

    /// Forgets events that a program has taken by their rings alone.
    fn forget_taken(&mut self) {
        let rung = self.waiting.len() - self.unrung;
        if rung > COMING {
            let taken = rung.saturating_sub(self.own.count());
            self.waiting.drain(..taken.saturating_sub(COMING));
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    use crate::ring::apart;

    fn is_ready(program: &OwnedFd) -> bool {
        let mut ready = [PollFd::new(program, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    fn without_proc() -> Bell {
        let (program, rings) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let own = apart(&program, rings).unwrap();
        (program, own)
    }

    /// One, and what is in its place where there is no /proc.
    fn both() -> [(OwnedFd, Rung<usize>); 2] {
        [bell(libc::O_NONBLOCK).unwrap(), without_proc()].map(Rung::of)
    }

    fn ring_of(program: &OwnedFd) -> Option<u64> {
        let mut name = [0; 8];
        rustix::io::read(program, &mut name).ok().map(|_| u64::from_ne_bytes(name))
    }

    /// As a program does.
    fn next(program: &OwnedFd, rung: &mut Rung<usize>) -> Option<usize> {
        ring_of(program).and_then(|ring| rung.pop(ring))
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
                let found = if event % 3 == 0 { rung.next() } else { next(&program, &mut rung) };
                assert_eq!(found, Some(event));
            }
            assert!(!is_ready(&program) && next(&program, &mut rung).is_none());
            assert!(rung.next().is_none());
        }
    }

    #[test]
    fn who_has_a_ring_finds_its_event_or_none() {
        for (program, mut rung) in both() {
            (0..2).for_each(|event| rung.push(event));
            let ring = ring_of(&program).unwrap();
            rung.extract(|event| *event == 0);
            assert!(is_ready(&program));
            assert_eq!(rung.pop(ring), None);
            assert_eq!(next(&program, &mut rung), Some(1));
            rung.push(2);
            let ring = ring_of(&program).unwrap();
            rung.extract(|event| *event == 2);
            assert_eq!(rung.pop(ring), None);
        }
    }

    /// One has taken the ring of an event that is gone before he comes for it: what came by then is another one's.
    #[test]
    fn no_ring_is_without_an_event_and_none_the_other_way() {
        for (program, mut rung) in both() {
            rung.push(0);
            let ring = ring_of(&program).unwrap();
            rung.extract(|event| *event == 0);
            rung.push(1);
            assert_eq!(rung.pop(ring), None);
            assert!(is_ready(&program));
            assert_eq!(next(&program, &mut rung), Some(1));
            assert!(!is_ready(&program));
        }
    }

    /// Programs that read the descriptor themselves, and never ask for what they read.
    #[test]
    fn events_that_are_taken_by_their_rings_do_not_pile_up() {
        for (program, mut rung) in both() {
            for event in 0..10 * COMING {
                rung.push_named(7, event);
                assert_eq!(ring_of(&program), Some(7));
                assert!(!is_ready(&program));
            }
            assert!(rung.waiting().len() <= COMING + 1);
            rung.push_named(8, 0);
            assert_eq!(next(&program, &mut rung), Some(0));
        }
    }

    /// A write without a reader would be SIGPIPE, which is not ignored outside of a test.
    #[test]
    fn what_a_program_closed_is_rung_without_harm() {
        for (program, mut rung) in both() {
            drop(program);
            rung.push(1);
            assert_eq!((rung.unrung, rung.next()), (0, Some(1)));
        }
    }
}
