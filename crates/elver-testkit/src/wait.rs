//! Waiting without sleeping.

use std::time::{Duration, Instant};

/// The longest that anything in a test may take: long against a busy machine, and nothing waits for it unless
/// something is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

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
