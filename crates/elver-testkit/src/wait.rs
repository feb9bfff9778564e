//! Waiting without sleeping.

use std::time::{Duration, Instant};

/// The longest that anything in a test may take: long against a busy machine, and nothing waits for it unless
/// something is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// [`PATIENCE`], as calls take it that can wait for ever.
pub const WAIT: Option<Duration> = Some(PATIENCE);

/// Waits until `done` gives something.
///
/// # Panics
/// After [`PATIENCE`], with `what` it waited for.
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// How long who is connected to a peer that dies may take to hear of it.
const HEARD: Duration = Duration::from_secs(1);
/// Deaths, of which one at least must be heard of in that time: on a busy machine others take longer.
const DEATHS: u32 = 5;

/// Has peers die until one is heard of within a second, as is promised. `die` says how long it took.
///
/// # Panics
/// If none was, of five.
pub fn hears_within_a_second(mut die: impl FnMut() -> Duration) {
    let took: Vec<Duration> =
        (0..DEATHS).map(|_| die()).take_while(|took| *took >= HEARD).collect();
    assert!(took.len() < DEATHS as usize, "heard after {took:?}");
}
