//! The hot path allocates nothing: neither sending, full or not, nor receiving, empty or not.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use common::{TestNode, WAIT, config, pair};
use elver_ring::{Error, Options};

/// The system's allocator, counting for each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does all of it; the counter is a plain word, which needs no allocation and no
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(start, layout) }
    }
}

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// What is counted, and since when.
struct Count {
    since: Instant,
    allocations: u64,
}

impl Count {
    fn begin() -> Count {
        Count { since: Instant::now(), allocations: allocations() }
    }

    /// No more than what the session needs by itself: it looks at its socket every 50 ms, with room for a
    /// message and a file. That does not grow with messages.
    fn end(self, who: &str) {
        let looks = self.since.elapsed().as_millis() as u64 / 50 + 2;
        let counted = allocations() - self.allocations;
        assert!(counted <= 8 * looks, "{who}: {counted} in {looks} looks at the socket");
    }
}

/// Of so many messages the first half is not counted: queues grow to what they need.
const MESSAGES: u32 = 40_000;

#[test]
fn nothing_is_allocated_for_a_message() {
    let node = TestNode::start(config(40, 1));
    pair(
        (&node, &node),
        Options::default(),
        |_listener, mut ends| {
            let (mut read, mut count) = (0, None);
            while read < MESSAGES {
                let Some(message) = ends.receiver.try_recv().unwrap() else {
                    std::thread::yield_now();
                    continue;
                };
                let mut number = [0; 4];
                message.read(0, &mut number);
                assert_eq!(u32::from_le_bytes(number), read);
                read += 1;
                if read == MESSAGES / 2 {
                    count = Some(Count::begin());
                }
            }
            count.unwrap().end("the receiver");
            assert!(ends.receiver.recv(WAIT).unwrap().is_none());
        },
        |_session, mut ends| {
            let mut count = None;
            for number in 0..MESSAGES {
                if number == MESSAGES / 2 {
                    count = Some(Count::begin());
                }
                while let Err(error) = ends.sender.try_send(&number.to_le_bytes()) {
                    assert!(matches!(error, Error::Full), "{error}");
                    std::thread::yield_now();
                }
                // Some alone, and most in batches.
                if number % 100 == 0 {
                    ends.sender.flush().unwrap();
                }
            }
            count.unwrap().end("the sender");
            ends.sender.finish(WAIT).unwrap();
        },
    );
}
