//! Containers that were to be ended, and that the runtime has not ended: it is busy, or away, or refuses.

use std::time::Duration;

use crate::containers::Runtime;

/// How long until the runtime is asked again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// One of them.
#[derive(Debug)]
pub(super) struct Stuck {
    pub(super) owner: String,
    /// What knows it, which need not be today's.
    pub(super) runtime: Runtime,
    /// How often it was to be ended.
    pub(super) tries: u32,
    /// What the runtime said the last time.
    pub(super) why: String,
}

impl Stuck {
    /// How long until the next try: twice as long after each.
    pub(super) fn pause(&self) -> Duration {
        let doubled = 1 << self.tries.saturating_sub(1).min(16);
        (PAUSE_MIN * doubled).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_come_ever_slower_and_never_end() {
        let runtime = Runtime::new(&["crun".into()], "/nowhere".into(), true);
        let mut stuck = Stuck { owner: String::new(), runtime, tries: 0, why: String::new() };
        let pauses = [1, 2, 3, 7, 8, u32::MAX].map(|tries| {
            stuck.tries = tries;
            stuck.pause().as_secs()
        });
        assert_eq!(pauses, [1, 2, 4, 60, 60, 60]);
    }
}
