//! What a daemon says whose engine hangs, on its standard error. Who says it waits for nobody, and needs no memory: the
//! engine may hold the lock by which there is some.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use elver_node::Words;

/// A thread that says it. It is there already when something is to be said: what keeps the engine may keep the system from
/// making one.
#[derive(Clone, Default)]
pub struct LastWords(Arc<Desk>);

#[derive(Default)]
struct Desk {
    words: Mutex<Said>,
    bell: Condvar,
}

#[derive(Default)]
struct Said {
    /// What is to be said next.
    next: Option<Words>,
    /// How often something was said.
    times: u64,
}

impl LastWords {
    /// Starts the thread, which ends with the daemon.
    pub fn start() -> std::io::Result<LastWords> {
        let words = LastWords::default();
        let says = words.clone();
        std::thread::Builder::new().name("elver-last-words".into()).spawn(move || {
            loop {
                says.speak();
            }
        })?;
        Ok(words)
    }

    /// Has something said; for as long it is waited until it was. What nobody reads the next takes the place of.
    pub fn say(&self, words: Words, wait: Duration) {
        let mut said = self.said();
        said.next = Some(words);
        let times = said.times;
        self.0.bell.notify_all();
        let is_unsaid = |said: &mut Said| said.next.is_some() || said.times == times;
        // Whether it was said changes nothing.
        let _ = self.0.bell.wait_timeout_while(said, wait, is_unsaid);
    }

    /// Waits for what is to be said next, and says it.
    fn speak(&self) {
        let next = self.next();
        // Whoever started the daemon may have closed it, or may not read it: nobody waits for that.
        let _ = writeln!(std::io::stderr(), "elverd: {next}");
        self.said().times += 1;
        self.0.bell.notify_all();
    }

    fn next(&self) -> Words {
        let mut said = self.said();
        loop {
            if let Some(next) = said.next.take() {
                return next;
            }
            said = self.0.bell.wait(said).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Held for a few instructions at either side.
    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By a channel, and in a string: who said it hung as well where the engine had the allocator's lock.
    #[test]
    fn who_says_something_and_who_speaks_need_no_memory() {
        let words = LastWords::default();
        let speaker = words.clone();
        let speaks = std::thread::spawn(move || {
            drop(std::hint::black_box(Box::new(1)));
            let before = elver_testkit::allocations();
            assert!(before > 0, "the allocator of this program does not count");
            speaker.speak();
            elver_testkit::allocations() - before
        });
        let before = elver_testkit::allocations();
        let number = 4_711;
        words.say(Words::of(format_args!("said by a test, {number}")), Duration::from_secs(20));
        assert_eq!(elver_testkit::allocations(), before);
        assert_eq!(words.said().times, 1);
        assert_eq!(speaks.join().unwrap(), 0);
    }
}
