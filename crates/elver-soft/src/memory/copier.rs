//! Copies that may never end, made by a thread that may be left behind.
//!
//! What a process maps is its own affair: a page of it may lie in a file system that the process
//! serves itself (FUSE), and whoever touches the page waits for as long as the process likes. It may
//! put such a page where there was another at any time, so that no check beforehand helps.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest that a copy may take: long enough for a machine that swaps or has too much to do.
const COPY_MAX: Duration = Duration::from_millis(250);
/// So long nothing is copied for a user of whom a copy took longer: nobody else waits for it more
/// often than this.
const BAN: Duration = Duration::from_secs(60);
/// Threads at once, with those that were left behind.
const THREADS_MAX: usize = 16;

/// What is copied, by a thread: gives back the bytes if that went well.
type Job = Box<dyn FnOnce() -> Option<Vec<u8>> + Send>;

/// Copies for users that are not trusted to let a copy end.
///
/// A copy by it costs two changes of threads, some 10 µs. One that took too long and was given up
/// may still reach the memory of that user's process.
pub struct Copier {
    worker: Mutex<Option<Worker>>,
    /// Each thread has a clone.
    threads: Arc<()>,
    banned: Mutex<BTreeMap<u32, Instant>>,
    copy_max: Duration,
}

struct Worker {
    jobs: SyncSender<Job>,
    done: Receiver<Option<Vec<u8>>>,
}

impl Default for Copier {
    fn default() -> Copier {
        Copier::new(COPY_MAX)
    }
}

impl Copier {
    fn new(copy_max: Duration) -> Copier {
        Copier {
            worker: Mutex::default(),
            threads: Arc::default(),
            banned: Mutex::default(),
            copy_max,
        }
    }

    /// Whether a copy of this user's took too long not long ago.
    pub fn refuses(&self, uid: u32) -> bool {
        let banned = self.banned.lock().unwrap_or_else(PoisonError::into_inner);
        banned.get(&uid).is_some_and(|until| Instant::now() < *until)
    }

    /// Does a job of a user's; none if it fails or takes too long.
    pub(super) fn run(
        &self,
        uid: u32,
        job: impl FnOnce() -> Option<Vec<u8>> + Send + 'static,
    ) -> Option<Vec<u8>> {
        if self.refuses(uid) {
            return None;
        }
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let able = match worker.take() {
            Some(able) => able,
            None => self.start()?,
        };
        able.jobs.send(Box::new(job)).ok()?;
        if let Ok(done) = able.done.recv_timeout(self.copy_max) {
            *worker = Some(able);
            return done;
        }
        // Its thread ends with the job, if ever.
        self.ban(uid);
        None
    }

    fn start(&self) -> Option<Worker> {
        if Arc::strong_count(&self.threads) > THREADS_MAX {
            return None;
        }
        let (jobs, inbox) = sync_channel::<Job>(1);
        let (outbox, done) = sync_channel(1);
        let thread = self.threads.clone();
        let body = move || {
            while let Ok(job) = inbox.recv() {
                if outbox.send(job()).is_err() {
                    break;
                }
            }
            drop(thread);
        };
        std::thread::Builder::new().name("elver-copier".into()).spawn(body).ok()?;
        Some(Worker { jobs, done })
    }

    fn ban(&self, uid: u32) {
        let now = Instant::now();
        let mut banned = self.banned.lock().unwrap_or_else(PoisonError::into_inner);
        banned.retain(|_, until| now < *until);
        banned.insert(uid, now + BAN);
    }
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copier").field("copy_max", &self.copy_max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_does_not_end_holds_nobody_up_but_its_user() {
        let copier = Copier::new(Duration::from_millis(1));
        let patient = Copier::new(Duration::from_secs(60));
        let (go_on, stuck) = sync_channel::<()>(0);
        assert_eq!(copier.run(1, move || stuck.recv().ok().map(|()| vec![1])), None);
        assert!(copier.refuses(1) && !copier.refuses(2));
        assert_eq!(copier.run(1, || unreachable!("it is banned")), None);
        // Another thread serves the others.
        assert_eq!(copier.run(2, || None), None);
        assert_eq!(patient.run(2, || Some(vec![2])), Some(vec![2]));
        drop(go_on);
    }

    #[test]
    fn threads_that_are_left_behind_are_not_without_number() {
        let copier = Copier::new(Duration::ZERO);
        let stuck: Vec<_> = (0..THREADS_MAX as u32 + 3)
            .map(|uid| {
                let (go_on, stuck) = sync_channel::<()>(0);
                assert_eq!(copier.run(uid, move || stuck.recv().ok().map(|()| vec![1])), None);
                go_on
            })
            .collect();
        assert_eq!(Arc::strong_count(&copier.threads), THREADS_MAX + 1);
        drop(stuck);
    }
}
