//! What the thread does: it drives the device while the program does not.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use elver_verbs::{Device, Time};

use super::Engine;
use super::polls::Polls;
use crate::lookout::{LOOKS, Lookout};
use crate::threads::Turns;

/// How long the thread leaves the device to a program that polls before it looks again.
const NAP: Duration = Duration::from_millis(1);
/// How long a program that polls may take to its next poll, once something has come for it.
const GLANCE: Duration = Duration::from_micros(20);
/// How long it sees to packets itself after one had waited for a program that no longer polled: such a program looks at
/// memory too. The longer the more often that happens.
const STAYS: RangeInclusive<Duration> = Duration::from_millis(16)..=Duration::from_secs(1);

impl Engine {
    /// What the thread does: it drives the device while the program does not. It looks on for packets only where others
    /// have their turns of its core.
    pub(super) fn attend(&self, turns: Turns) {
        let (mut last, mut alarm) = (0, Time::ZERO);
        let mut lookout = (turns == Turns::Shared).then(|| Lookout::new(elver_soft::now()));
        let (mut stays, mut until) = (*STAYS.start(), Instant::now());
        loop {
            let seen = self.polls.seen();
            let many = Polls::are_many(last, seen);
            last = seen;
            let ended = self.watched.has_ends();
            let busy = {
                let mut state = self.lock();
                let acted = state.device.progress();
                if ended {
                    state.end_orphans();
                }
                state.tell();
                acted
            };
            let polled = many || self.polls.seen() != seen;
            if polled && !self.polls.is_awaited() && Instant::now() >= until {
                let begun = Instant::now();
                let is_seen_to = self.nap();
                // What was long ago says nothing.
                if begun.elapsed() >= *STAYS.end() {
                    stays = *STAYS.start();
                }
                stays = match is_seen_to {
                    true => (stays / 2).max(*STAYS.start()),
                    false => {
                        until = Instant::now() + stays;
                        (stays * 2).min(*STAYS.end())
                    }
                };
                last = self.polls.seen();
            } else if busy {
                std::thread::yield_now();
            } else {
                self.doze(&mut alarm, lookout.as_mut());
            }
        }
    }

    /// Sleeps until a packet arrives or a timer is due; where packets come often it looks for them first.
    fn doze(&self, alarm: &mut Time, lookout: Option<&mut Lookout>) {
        if let Some(hub) = &self.hub {
            hub.table.sleep(true);
        }
        let at_most = {
            let mut state = self.lock();
            let waits = state.device.has_beside();
            (!waits).then(|| {
                let now = elver_soft::now();
                let due = state.device.publish_in_time(now).into_iter().chain(state.due()).min();
                self.doze.begin(now, due, *alarm)
            })
        };
        if let Some(at_most) = at_most {
            let began = Instant::now();
            // What is due soon is not looked past.
            let lookout = lookout.filter(|_| at_most > LOOKS);
            let look = || !self.watched.sleep(Duration::ZERO, true);
            let found = lookout.is_some_and(|lookout| {
                lookout.look_on(elver_soft::now, look, std::thread::yield_now)
            });
            if !found {
                self.watched.sleep(at_most.saturating_sub(began.elapsed()), true);
            }
            *alarm = self.doze.end();
        }
        if let Some(hub) = &self.hub {
            hub.table.sleep(false);
        }
    }

    /// Leaves the device to who polls it, and so sees to packets and timers alike; now and then it looks itself, as who
    /// finds something each time he polls sees to little else. Says whether nothing was left lying.
    fn nap(&self) -> bool {
        self.polls.nap(true);
        let mut left_lying = false;
        // Who is about to wait for an event says so before it looks at `naps`.
        while !self.polls.is_awaited() && !left_lying {
            let before = self.polls.seen();
            let slept = self.watched.sleep(NAP, false);
            let polls = self.polls.seen();
            if !slept || before == polls {
                break;
            }
            // Nobody is made to wait for that: who has the device may just be seeing to it.
            let found = match self.state.try_lock() {
                Ok(mut state) => {
                    let found = state.device.progress();
                    state.tell();
                    found
                }
                Err(_) => false,
            };
            if found {
                // The program may be on this core, and behind this thread where it only yields.
                let slept = self.watched.sleep(GLANCE, false);
                let polled = polls != self.polls.seen();
                left_lying = slept && !polled;
            }
        }
        self.polls.nap(false);
        !left_lying
    }
}
