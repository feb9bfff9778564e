//! What a long measurement has come to, on a terminal while it goes on.

use std::time::{Duration, Instant};

use elver_console::Progress;

use crate::perf::load::Load;

/// A shorter one is over before anybody has read it.
const SHORT: f64 = 2.0;
/// How often it is told.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) struct Live(Option<Told>);

struct Told {
    progress: Progress,
    what: String,
    start: Instant,
    next: Instant,
}

impl Live {
    pub(super) fn begin(load: &Load, start: Instant) -> Live {
        let told = || Told {
            progress: Progress::begin(),
            what: format!("{:?} for {} s", load.op, load.duration),
            start,
            next: start + PAUSE,
        };
        Live((load.is_told && load.duration > SHORT).then(told))
    }

    /// So many operations have completed. It costs a comparison, but for twice a second.
    #[inline]
    pub(super) fn completed(&mut self, now: Instant, operations: usize) {
        if let Some(told) = self.0.as_mut().filter(|told| told.next <= now) {
            told.next = now + PAUSE;
            let seconds = (now - told.start).as_secs_f64();
            let (what, rate) = (&told.what, operations as f64 / seconds);
            told.progress
                .doing(&format!("{what}: {operations} operations in {seconds:.1} s, {rate:.0}/s"));
        }
    }
}
