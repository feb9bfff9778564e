//! The hot path allocates nothing: neither writing, full or not, nor reading, empty or not, whole or in parts.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::time::Instant;

use common::{TestNode, WAIT, byte, config, pair};
use elver_stream::{Options, Shutdown};

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

/// Of so many bytes the first half is not counted: queues grow to what they need.
const BYTES: u64 = 8_000_000;

#[test]
fn nothing_is_allocated_for_a_write_or_a_read() {
    let node = TestNode::start(config(60, 1));
    pair(
        (&node, &node),
        Options::default(),
        |_listener, mut stream| {
            stream.set_nonblocking(true);
            let (mut at, mut count) = (0, None);
            let mut bytes = [0; 3_001];
            while at < BYTES {
                match stream.read(&mut bytes) {
                    Ok(read) => {
                        assert_eq!(bytes[0], byte(1, at));
                        at += read as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        std::thread::yield_now();
                    }
                    Err(error) => panic!("{error}"),
                }
                if at >= BYTES / 2 && count.is_none() {
                    count = Some(Count::begin());
                }
            }
            count.unwrap().end("the reader");
            stream.set_nonblocking(false);
            assert_eq!(stream.read(&mut bytes).unwrap(), 0);
        },
        |_session, mut stream| {
            stream.set_nonblocking(true);
            let (mut at, mut count) = (0, None);
            let mut bytes = [0; 50_000];
            while at < BYTES {
                // Short ones, and such as are longer than what goes out at once.
                let len = if at % 3 == 0 { 64 } else { 50_000 }.min(BYTES - at) as usize;
                (0..len as u64).for_each(|add| bytes[add as usize] = byte(1, at + add));
                let (first, second) = bytes[..len].split_at(len / 3);
                match stream.write_vectored(&[first, second].map(IoSlice::new)) {
                    Ok(written) => at += written as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        std::thread::yield_now();
                    }
                    Err(error) => panic!("{error}"),
                }
                if at >= BYTES / 2 && count.is_none() {
                    count = Some(Count::begin());
                }
            }
            count.unwrap().end("the writer");
            stream.shutdown(Shutdown::Write).unwrap();
            stream.finish(WAIT).unwrap();
        },
    );
}
