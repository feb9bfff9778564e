//! Waiting without sleeping.

use std::collections::BTreeMap;
use std::ffi::OsString;
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

/// How long who is connected to a peer that dies may take to hear of it, beside what its threads waited for a core.
const HEARD: Duration = Duration::from_secs(1);
/// Deaths, of which one at least must be heard of in that time: on a busy machine others take longer.
const DEATHS: u32 = 5;

/// Has peers die until one is heard of within a second, as is promised. `die` says how long it took.
///
/// # Panics
/// If none was, of five.
pub fn hears_within_a_second(mut die: impl FnMut() -> Duration) {
    let heard = (0..DEATHS).map(|_| {
        let before = waits_for_cores();
        let took = die();
        (took, waited_for_cores(&before))
    });
    let late: Vec<_> = heard.take_while(|(took, waited)| *took >= HEARD + *waited).collect();
    assert!(
        late.len() < DEATHS as usize,
        "heard after these times, and waited for cores: {late:?}"
    );
}

/// How long each thread of this process was ready to run and had no core; nothing where the system does not tell.
fn waits_for_cores() -> BTreeMap<OsString, Duration> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let wait = |thread: std::fs::DirEntry| {
        let told = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let waited = told.split(' ').nth(1)?.parse().ok()?;
        Some((thread.file_name(), Duration::from_nanos(waited)))
    };
    threads.filter_map(wait).collect()
}

/// How long all threads together have waited since, of those that are still there.
fn waited_for_cores(before: &BTreeMap<OsString, Duration>) -> Duration {
    let now = waits_for_cores();
    let waited = |(thread, now): (&OsString, &Duration)| {
        now.saturating_sub(before.get(thread).copied().unwrap_or_default())
    };
    now.iter().map(waited).sum()
}
