//! Room for bodies. Each takes its part as its bytes come, so that those that are slow keep nothing from the others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    left: Mutex<Left>,
    changed: Notify,
}

#[derive(Debug)]
struct Left {
    free: usize,
    /// The body that may take of the last bytes.
    last: Option<u64>,
    /// The next body's number.
    next: u64,
}

impl Left {
    /// Whether there were so many bytes, and so many others beside them.
    fn take(&mut self, bytes: usize, others: usize) -> bool {
        let is_there = self.free >= bytes + others;
        if is_there {
            self.free -= bytes;
        }
        is_there
    }

    /// Whether a body may take of the last bytes, and there were so many.
    fn take_last(&mut self, body: u64, bytes: usize) -> bool {
        *self.last.get_or_insert(body) == body && self.take(bytes, 0)
    }

    /// A body that has come to its end needs so many bytes no more.
    fn give(&mut self, body: u64, bytes: usize) {
        self.free += bytes;
        // Where they are all there, another one comes to its end by them, however slow who has taken of them is.
        if self.last == Some(body) || self.free >= LAST {
            self.last = None;
        }
    }
}

impl Room {
    pub(super) fn new() -> Arc<Room> {
        Room::of(BODIES_MAX)
    }

    fn of(bytes: usize) -> Arc<Room> {
        let left = Mutex::new(Left { free: bytes, last: None, next: 0 });
        Arc::new(Room { left, changed: Notify::new() })
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body's part, until it is dropped.
#[derive(Debug)]
pub(super) struct Part {
    room: Arc<Room>,
    body: u64,
    bytes: usize,
}

impl Part {
    /// Of a body of which nothing has come.
    pub(super) fn new(room: Arc<Room>) -> Part {
        let mut left = room.left();
        left.next += 1;
        let body = left.next;
        drop(left);
        Part { room, body, bytes: 0 }
    }

    /// Of one that is whole, once there is room.
    pub(super) async fn whole(room: Arc<Room>, bytes: usize) -> Part {
        let mut part = Part::new(room.clone());
        loop {
            let changed = room.changed.notified();
            if room.left().take(bytes, 0) {
                break;
            }
            changed.await;
        }
        part.bytes = bytes;
        part
    }

    /// More of it comes: so many bytes in all. Waits for room.
    pub(super) async fn grow(&mut self, to: usize) {
        if to <= self.bytes {
            return;
        }
        let (more, room) = ((to - self.bytes).max(STEP), self.room.clone());
        loop {
            let changed = room.changed.notified();
            if self.takes(more) {
                break;
            }
            changed.await;
        }
        self.bytes += more;
    }

    fn takes(&self, more: usize) -> bool {
        let mut left = self.room.left();
        left.take(more, LAST) || left.take_last(self.body, more)
    }

    /// It has come to its end, with so many bytes.
    pub(super) fn end(&mut self, bytes: usize) {
        let kept = bytes.min(self.bytes);
        self.room.left().give(self.body, self.bytes - kept);
        self.bytes = kept;
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
        room.left().free
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
        assert_eq!(room.left().last, None);
    }

    /// It kept them to its end, however slow, and all others waited for that.
    #[tokio::test(start_paused = true)]
    async fn who_is_slow_gives_the_last_bytes_back_once_there_are_others() {
        let room = Room::of(2 * LAST);
        let new = || Part::new(room.clone());
        let (mut quick, mut slow, mut other, mut next) = (new(), new(), new(), new());
        quick.grow(LAST).await;
        slow.grow(1).await;
        drop(quick);
        other.grow(LAST - STEP).await;
        let growing = next.grow(LAST);
        tokio::time::timeout(Duration::from_secs(1), growing).await.expect("the last bytes");
        drop((slow, other, next));
        assert_eq!(free(&room), 2 * LAST);
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
