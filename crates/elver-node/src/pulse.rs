//! Whether the engine turns: what heartbeats prove, and what the watchdog watches.
//!
//! The engine counts its rounds here. Others look now and then whether the count has moved, and ring
//! at an engine that may merely be asleep. A thread that lives says nothing of another that hangs,
//! so that whatever tells the world that this node is well must look here first.
#![allow(clippy::disallowed_types, reason = "a machine that is suspended does not hang")]

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::time::Timespec;

use crate::NodeError;
use crate::engine::Outlet;
use crate::words::Words;
use crate::worker::Worker;

/// Looks within the time after which an engine is taken to hang.
const LOOKS_PER_HANG: u32 = 8;
/// The longest time between two looks.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Bytes of a file of the system's about a thread that are read: more than is told of it.
const FILE_BYTES_MAX: usize = 512;

/// The engine's count of its rounds. On a cache line of its own: the engine writes it in each.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Pulse {
    turns: AtomicU64,
    /// A thread drives the engine. Without one its owner does, as seldom as it likes.
    driven: AtomicBool,
    /// That thread.
    thread: AtomicI32,
    /// Times that it was found hanging.
    hangs: AtomicU64,
}

/// Says that this thread drives the engine, until it is dropped.
pub(crate) struct Driven<'a>(&'a Pulse);

impl Pulse {
    /// The engine made another round, of so many.
    #[inline]
    pub(crate) fn turned(&self, turns: u64) {
        self.turns.store(turns, Ordering::Relaxed);
    }

    /// This thread drives the engine.
    pub(crate) fn drive(&self) -> Driven<'_> {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        self.driven.store(true, Ordering::Relaxed);
        Driven(self)
    }

    /// Rounds so far, if a thread drives the engine.
    fn turns(&self) -> Option<u64> {
        self.driven.load(Ordering::Relaxed).then(|| self.turns.load(Ordering::Relaxed))
    }

    pub(crate) fn hangs(&self) -> u64 {
        self.hangs.load(Ordering::Relaxed)
    }
}

impl Drop for Driven<'_> {
    fn drop(&mut self) {
        self.0.driven.store(false, Ordering::Relaxed);
    }
}

/// What heartbeats are proven by.
#[derive(Clone)]
pub(crate) struct Proof {
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) outlet: Outlet,
}

impl Proof {
    /// Whether the engine made a round since `seen`, which then is the last one. If not it may be
    /// asleep, and is woken: ask again a little later.
    pub(crate) fn turned_since(&self, seen: &mut u64) -> bool {
        let Some(turns) = self.pulse.turns() else { return true };
        if turns == *seen {
            self.outlet.ring();
            return false;
        }
        *seen = turns;
        true
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof").field("pulse", &self.pulse).finish_non_exhaustive()
    }
}

/// Watches an engine; see [`crate::Node::watch`].
pub struct Watchdog {
    /// After so long without a round the engine hangs; zero if nobody cares.
    pub hang: Duration,
    /// The longest time between two calls of `turned`, if somebody waits for these.
    pub every: Option<Duration>,
    /// Called again and again while the engine turns, and not while it does not.
    pub turned: Box<dyn FnMut() + Send>,
    /// Called once for each hang, with what the system says of where the engine's thread stands. It may hold the lock of the
    /// process's allocator: who allocates here may hang as well. Nothing was allocated for the call.
    pub hung: Box<dyn FnMut(&Words) + Send>,
}

impl Watchdog {
    pub(crate) fn start(mut self, proof: Proof) -> Result<Worker, NodeError> {
        let system = |reason| NodeError::System { call: "starting the watchdog", reason };
        let by_hang = (!self.hang.is_zero()).then(|| self.hang / LOOKS_PER_HANG);
        let every = self.every.map(|every| every / 2);
        let apart = [by_hang, every].into_iter().flatten().fold(LOOK_MAX, Duration::min);
        Worker::start("elver-watchdog", move |stop, wake| {
            let timeout = Timespec::try_from(apart).unwrap_or_default();
            let mut watch = Watch { hang: self.hang, apart, ..Watch::default() };
            let mut looked = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                // Interrupted, it looks the sooner.
                let _ = poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&timeout));
                let passed = looked.elapsed();
                looked = Instant::now();
                let Some(turns) = proof.pulse.turns() else {
                    watch.silent = Duration::ZERO;
                    continue;
                };
                match watch.look(turns, passed) {
                    Found::Turned => (self.turned)(),
                    // It may be asleep.
                    Found::Silent => proof.outlet.ring(),
                    Found::Hung => {
                        proof.pulse.hangs.fetch_add(1, Ordering::Relaxed);
                        (self.hung)(&place(proof.pulse.thread.load(Ordering::Relaxed)));
                    }
                }
            }
        })
        .map_err(system)
    }
}

/// What one who looks at an engine knows of it.
#[derive(Debug, Default)]
struct Watch {
    hang: Duration,
    apart: Duration,
    turns: u64,
    silent: Duration,
    told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It turned since the last look.
    Turned,
    /// It did not.
    Silent,
    /// It has not for too long; this is found once.
    Hung,
}

impl Watch {
    /// A look, so long after the last. A time in which this thread did not look either, since the
    /// process or the machine was stopped, says nothing against the engine.
    fn look(&mut self, turns: u64, passed: Duration) -> Found {
        if turns != self.turns {
            (self.turns, self.silent, self.told) = (turns, Duration::ZERO, false);
            return Found::Turned;
        }
        self.silent += passed.min(self.apart * 2);
        if self.hang.is_zero() || self.silent < self.hang || self.told {
            return Found::Silent;
        }
        self.told = true;
        Found::Hung
    }
}

/// Where a thread of this process stands, as far as the system tells. Allocates nothing.
fn place(thread: i32) -> Words {
    let mut words = Words::NONE;
    for what in ["stat", "wchan", "syscall", "stack"] {
        let path = Words::of(format_args!("/proc/self/task/{thread}/{what}"));
        let mut bytes = [0; FILE_BYTES_MAX];
        // Of its stack root alone may see something.
        if let Some(text) = read(&path, &mut bytes) {
            // It takes all, or leaves it out.
            let _ = tell(&mut words, what, text.trim_ascii());
        }
    }
    words
}

fn tell(words: &mut Words, what: &str, text: &[u8]) -> fmt::Result {
    let (name, text, end) = match what {
        // Behind its name, which may have any characters.
        "stat" => {
            let state = text.rsplit(|byte| *byte == b')').next().unwrap_or_default().trim_ascii();
            ("state", state.get(..1).unwrap_or(b"?"), ", ")
        }
        "stack" => ("in the kernel:", text, ""),
        other => (other, text, ", "),
    };
    write!(words, "{name} ")?;
    text.utf8_chunks().try_for_each(|chunk| words.write_str(chunk.valid()))?;
    words.write_str(end)
}

/// The first of a file of the system's.
fn read<'a>(path: &Words, bytes: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let count = rustix::io::read(&file, &mut *bytes).ok()?;
    Some(&bytes[..count])
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn an_engine_that_does_not_turn_is_found_once() {
        let mut watch = Watch { hang: 3 * S, apart: S, ..Watch::default() };
        assert_eq!(watch.look(5, S), Found::Turned);
        assert_eq!(watch.look(6, S), Found::Turned);
        assert_eq!(watch.look(6, S), Found::Silent);
        assert_eq!(watch.look(6, S), Found::Silent);
        assert_eq!(watch.look(6, S), Found::Hung);
        assert_eq!(watch.look(6, S), Found::Silent);
        assert_eq!(watch.look(7, S), Found::Turned);
        assert_eq!([(); 3].map(|()| watch.look(7, S))[2], Found::Hung);
    }

    /// A laptop that slept, a process that a debugger stopped: nobody looked meanwhile.
    #[test]
    fn a_time_in_which_nobody_looked_is_no_hang() {
        let mut watch = Watch { hang: 8 * S, apart: S, ..Watch::default() };
        watch.look(1, S);
        assert_eq!(watch.look(1, 3_600 * S), Found::Silent);
        assert_eq!(watch.look(2, S), Found::Turned);
    }

    #[test]
    fn one_who_does_not_care_hears_of_no_hang() {
        let mut watch = Watch { apart: S, ..Watch::default() };
        watch.look(1, S);
        assert!((0..1_000).all(|_| watch.look(1, S) == Found::Silent));
    }

    #[test]
    fn only_a_driven_engine_must_prove_that_it_turns() {
        let (outlet, _inlet) = crate::engine::channel().unwrap();
        let proof = Proof { pulse: Arc::default(), outlet };
        let mut seen = 0;
        assert!(proof.turned_since(&mut seen));
        let driven = proof.pulse.drive();
        assert!(!proof.turned_since(&mut seen));
        proof.pulse.turned(1);
        assert!(proof.turned_since(&mut seen) && !proof.turned_since(&mut seen));
        drop(driven);
        assert!(proof.turned_since(&mut seen));
    }

    #[test]
    fn where_a_thread_stands_is_told_in_a_line() {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let words = place(thread.get());
        let text = words.as_str();
        assert!(text.starts_with("state R"), "{text}");
        // Systems and their security modules may keep the others to themselves.
        for name in ["wchan", "syscall"] {
            if std::fs::read(format!("/proc/self/task/{thread}/{name}")).is_ok() {
                assert!(text.contains(&format!(", {name} ")), "{text}");
            }
        }
        assert!(!text.contains('\n'));
    }
}
