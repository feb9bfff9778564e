//! How long a call waits: until a time, and for a node that says nothing only so long.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use elver_portal::Socket;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::Error;
use crate::waker::Bell;

/// The longest sleep without a look at the ring: against a node that forgot to wake.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Looks without letting other threads run: about a microsecond, in which a node on another core
/// answers. One that shares this core does so the sooner.
const EAGER_LOOKS: u32 = 64;
/// Looks for one at the clock.
const LOOKS_PER_CLOCK: u32 = 16;

/// How long a wait has been.
pub(crate) struct Wait {
    looks: u32,
    began: Option<Instant>,
    /// The last look at the clock.
    looked: Option<Instant>,
    deadline: Option<Instant>,
    /// Wakers and signals end it.
    endable: bool,
    /// It ends when the node says nothing for too long.
    silence: Option<Silence>,
}

/// How long a node has said nothing to who waits for its answer.
///
/// What was asked of it may take long, so that it is asked for something besides, in the middle, that it answers at once. Time
/// in which this process did not run, and could have heard nothing, counts as one sleep.
///
/// Who waits in several calls keeps it from one to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    lasted: Duration,
    /// It was asked for a sign.
    asked: bool,
    /// How often it had said something by then.
    heard: u64,
}

/// What a silence comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The node may yet say something by itself.
    NotYet,
    /// It is to be asked for a sign.
    Ask,
    /// It was asked for one, and gave none.
    None,
}

impl Wait {
    /// A wait that ends with an error after `at_most`.
    pub(crate) fn new(at_most: Option<Duration>) -> Wait {
        let deadline = at_most.and_then(|at_most| Instant::now().checked_add(at_most));
        Wait { looks: 0, began: None, looked: None, deadline, endable: false, silence: None }
    }

    /// A wait that ends with an error at a time.
    pub(crate) fn until(deadline: Option<Instant>) -> Wait {
        Wait { deadline, ..Wait::new(None) }
    }

    /// A wait that wakers and signals end too.
    pub(crate) fn endable(at_most: Option<Duration>) -> Wait {
        Wait { endable: true, ..Wait::new(at_most) }
    }

    /// A wait for what the node was asked: however long that takes, as long as the node says anything at all.
    pub(crate) fn for_an_answer() -> Wait {
        Wait::new(None).of_an_answer(Silence::default())
    }

    /// The same wait, for what the node was asked, after such a silence.
    pub(crate) fn of_an_answer(self, silence: Silence) -> Wait {
        Wait { silence: Some(silence), ..self }
    }

    /// How long the node has said nothing by now, for who waits on. What was told is told anew after as long a time.
    pub(crate) fn silence_after<T>(&self, ended: &Result<T, Error>) -> Silence {
        match ended {
            Err(Error::Silent) => Silence::default(),
            _ => self.silence.unwrap_or_default(),
        }
    }

    /// The node has said something so many times.
    #[inline]
    pub(crate) fn heard(&mut self, heard: u64) {
        if let Some(silence) = self.silence.as_mut().filter(|silence| silence.heard != heard) {
            *silence = Silence { heard, ..Silence::default() };
        }
    }

    /// Counts a look that found nothing; whether the next one follows at once.
    #[inline]
    pub(crate) fn is_eager(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.looks < EAGER_LOOKS
    }

    /// The node has no other core: it answers when it is let run.
    #[inline]
    pub(crate) fn let_others_run(&mut self) {
        self.looks = EAGER_LOOKS;
    }

    #[inline]
    pub(crate) fn asks_the_time(&self) -> bool {
        self.looks.is_multiple_of(LOOKS_PER_CLOCK)
    }

    /// Notes a look at the clock; returns the last one before it.
    pub(crate) fn look_at(&mut self, now: Instant, patience: Duration) -> (Option<Instant>, Sign) {
        self.began.get_or_insert(now);
        let looked = self.looked.replace(now);
        let sign = self.silence.as_mut().map_or(Sign::NotYet, |silence| {
            let gap = looked.map_or(Duration::ZERO, |looked| now - looked);
            silence.lasts(gap.min(SLEEP_MAX).min(patience / 2), patience)
        });
        (looked, sign)
    }

    /// The node was asked for a sign, and has as long again for that.
    pub(crate) fn asked(&mut self, patience: Duration) {
        if let Some(silence) = &mut self.silence {
            (silence.lasted, silence.asked) = (patience / 2, true);
        }
    }

    pub(crate) fn is_endable(&self) -> bool {
        self.endable
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// How long it has looked, after the first look at the clock.
    pub(crate) fn looked_for(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now - began)
    }

    /// The longest sleep from now on.
    pub(crate) fn sleep_max(&self, now: Instant, patience: Duration) -> Duration {
        let left = self.deadline.map_or(SLEEP_MAX, |deadline| deadline - now).min(SLEEP_MAX);
        if self.silence.is_some() { left.min(patience / 2) } else { left }
    }
}

impl Silence {
    fn lasts(&mut self, longer: Duration, patience: Duration) -> Sign {
        self.lasted += longer;
        match self.asked {
            // Nor did it make room to be asked.
            _ if self.lasted >= patience => Sign::None,
            false if self.lasted >= patience / 2 => Sign::Ask,
            _ => Sign::NotYet,
        }
    }
}

/// Sleeps until there is something to receive, somebody rings, a signal comes or the time has passed.
/// Whether it was a signal.
pub(crate) fn sleep(
    socket: &Socket,
    bell: Option<&Bell>,
    at_most: Duration,
) -> Result<bool, Error> {
    let fd = socket.as_fd();
    let mut fds =
        [fd, bell.map_or(fd, Bell::fd)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let fds = &mut fds[..1 + usize::from(bell.is_some())];
    // A second at most.
    let timeout = Timespec::try_from(at_most).unwrap_or_default();
    match poll(fds, Some(&timeout)) {
        Ok(_) => Ok(false),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(Error::System { call: "poll", reason: error.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// The signs of a wait whose clock is looked at after so many milliseconds each.
    fn signs(wait: &mut Wait, gaps_ms: &[u64]) -> Vec<Sign> {
        let mut now = wait.looked.unwrap_or_else(Instant::now);
        let looks = gaps_ms.iter().map(|ms| {
            now += Duration::from_millis(*ms);
            let sign = wait.look_at(now, PATIENCE).1;
            if sign == Sign::Ask {
                wait.asked(PATIENCE);
            }
            sign
        });
        looks.collect()
    }

    #[test]
    fn a_node_is_asked_for_a_sign_after_half_of_the_time_and_has_the_other_half() {
        let mut wait = Wait::for_an_answer();
        let half = [vec![0], vec![500; 10]].concat();
        let asked = signs(&mut wait, &half);
        assert!(asked[..10].iter().all(|sign| *sign == Sign::NotYet), "{asked:?}");
        assert_eq!(asked[10], Sign::Ask);
        let waited = signs(&mut wait, &[500; 10]);
        assert!(waited[..9].iter().all(|sign| *sign == Sign::NotYet), "{waited:?}");
        assert_eq!(waited[9], Sign::None);
    }

    #[test]
    fn whatever_a_node_says_begins_the_time_anew() {
        let mut wait = Wait::for_an_answer();
        for times in 1..100 {
            let signs = signs(&mut wait, &[500; 19]);
            assert!(!signs.contains(&Sign::None), "{signs:?}");
            wait.heard(times);
        }
    }

    /// Stopped for a minute, it would take a node for silent that had nothing to say before.
    #[test]
    fn time_in_which_the_process_stands_still_is_not_the_node_s() {
        let mut wait = Wait::for_an_answer();
        let signs = signs(&mut wait, &[0, 60_000, 60_000, 60_000]);
        assert_eq!(signs, [Sign::NotYet; 4]);
    }

    #[test]
    fn who_waits_for_a_message_waits_for_no_sign() {
        let mut wait = Wait::endable(None);
        let signs = signs(&mut wait, &[500; 100]);
        assert_eq!(signs, [Sign::NotYet; 100]);
    }
}
