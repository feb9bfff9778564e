//! Room for bodies. Each takes its part as its bytes come, so that those that are slow keep nothing from the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The largest request of a function, in bytes: Lambda's own limit.
pub(super) const REQUEST_MAX: usize = 6 << 20;

/// The largest response, in bytes: Lambda's own limit.
pub(super) const RESPONSE_MAX: usize = REQUEST_MAX + 100;

/// Most bytes of bodies at once of one container, and of one caller; what comes beyond waits.
const BODIES_MAX: usize = 64 << 20;

/// Least bytes that a body takes at a time.
const STEP: usize = 64 << 10;

/// Bytes that one body alone may take, which comes to its end by them. All could have a part else, and wait for one another's.
const LAST: usize = RESPONSE_MAX + STEP;

/// What there is for the bodies of one container, or caller.
#[derive(Debug)]
pub(super) struct Room {
    free: AtomicUsize,
    /// A body may take of the last bytes.
    has_last: AtomicBool,
    changed: Notify,
}

impl Room {
    pub(super) fn new() -> Arc<Room> {
        Room::of(BODIES_MAX)
    }

    fn of(bytes: usize) -> Arc<Room> {
        let (free, has_last) = (AtomicUsize::new(bytes), AtomicBool::new(false));
        Arc::new(Room { free, has_last, changed: Notify::new() })
    }

    /// Whether there were so many bytes, and so many others beside them.
    fn take(&self, bytes: usize, others: usize) -> bool {
        let taken = |free: usize| (free >= bytes + others).then(|| free - bytes);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

/// A body's part, until it is dropped.
#[derive(Debug)]
pub(super) struct Part {
    room: Arc<Room>,
    bytes: usize,
    is_last: bool,
}

impl Part {
    /// Of a body of which nothing has come.
    pub(super) fn new(room: Arc<Room>) -> Part {
        Part { room, bytes: 0, is_last: false }
    }

    /// Of one that is whole, once there is room.
    pub(super) async fn whole(room: Arc<Room>, bytes: usize) -> Part {
        loop {
            let changed = room.changed.notified();
            if room.take(bytes, 0) {
                break;
            }
            changed.await;
        }
        Part { room, bytes, is_last: false }
    }

    /// More of it comes: so many bytes in all. Waits for room.
    pub(super) async fn grow(&mut self, to: usize) {
        if to <= self.bytes {
            return;
        }
        let (more, room) = ((to - self.bytes).max(STEP), self.room.clone());
        loop {
            let changed = room.changed.notified();
            if room.take(more, LAST) || (self.becomes_last() && room.take(more, 0)) {
                break;
            }
            changed.await;
        }
        self.bytes += more;
    }

    fn becomes_last(&mut self) -> bool {
        self.is_last = self.is_last || !self.room.has_last.swap(true, Ordering::Relaxed);
        self.is_last
    }

    /// It has come to its end, with so many bytes.
    pub(super) fn end(&mut self, bytes: usize) {
        let kept = bytes.min(self.bytes);
        self.room.free.fetch_add(self.bytes - kept, Ordering::Relaxed);
        self.bytes = kept;
        if std::mem::take(&mut self.is_last) {
            self.room.has_last.store(false, Ordering::Relaxed);
        }
        self.room.changed.notify_waiters();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.end(0);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    /// Room for so many bytes.
    pub(in super::super) fn room(bytes: usize) -> Arc<Room> {
        Room::of(bytes)
    }

    /// How many bytes are free.
    pub(in super::super) fn free(room: &Room) -> usize {
        room.free.load(Ordering::Relaxed)
    }

    /// Ten of them took all that there was when they began.
    #[tokio::test(start_paused = true)]
    async fn bodies_that_do_not_come_keep_nothing_from_others() {
        let room = Room::new();
        let mut slow: Vec<Part> = (0..200).map(|_| Part::new(room.clone())).collect();
        for part in &mut slow {
            part.grow(1).await;
        }
        for _ in 0..100 {
            let mut quick = Part::new(room.clone());
            let growing = quick.grow(RESPONSE_MAX);
            tokio::time::timeout(Duration::from_secs(1), growing).await.expect("room");
        }
        drop(slow);
        assert_eq!(free(&room), BODIES_MAX);
    }

    /// Each would have its part of what there is, and wait for the others'.
    #[tokio::test(start_paused = true)]
    async fn bodies_that_grow_together_come_to_their_ends() {
        let room = Room::new();
        let mut growing = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let mut part = Part::new(room.clone());
            growing.spawn(async move {
                for to in (0..=RESPONSE_MAX).step_by(10_000) {
                    part.grow(to).await;
                    tokio::task::yield_now().await;
                }
                part.end(RESPONSE_MAX);
                // An answer is kept until its caller has room.
                tokio::time::sleep(Duration::from_secs(1)).await;
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(100), growing.join_all()).await;
        all.expect("all of them");
        assert_eq!(free(&room), BODIES_MAX);
        assert!(!room.has_last.load(Ordering::Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_leaves_the_last_bytes_to_others() {
        let room = Room::of(LAST);
        let (mut first, mut second) = (Part::new(room.clone()), Part::new(room.clone()));
        first.grow(LAST).await;
        let waiting = tokio::time::timeout(Duration::from_secs(1), second.grow(1)).await;
        assert!(waiting.is_err());
        drop(first);
        second.grow(LAST).await;
        second.end(10);
        assert_eq!(free(&room), LAST - 10);
    }
}
