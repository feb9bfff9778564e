//! Measuring beside threads that want the cores too, and never wait: as compilers do.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use elver_testbed::seat::pin;

/// What else runs on the two cores of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// Nothing of the benchmark's.
    Quiet,
    /// A thread on each end's core, which spins.
    Busy,
}

impl Load {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Load::Quiet => "quiet",
            Load::Busy => "busy",
        }
    }

    /// Runs it so.
    pub(crate) fn beside<T>(self, measured: impl FnOnce() -> T) -> T {
        match self {
            Load::Quiet => measured(),
            Load::Busy => beside(&[Some(0), Some(1)], measured),
        }
    }
}

/// Runs it beside threads that spin, each on its core, or on any.
pub(crate) fn beside<T>(cores: &[Option<usize>], measured: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for core in cores {
            scope.spawn(|| {
                core.iter().for_each(|core| pin(*core));
                while !ended.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        // Also if it panics: the threads would be waited for.
        let _ends = EndsWhenDropped(&ended);
        measured()
    })
}

struct EndsWhenDropped<'a>(&'a AtomicBool);

impl Drop for EndsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
