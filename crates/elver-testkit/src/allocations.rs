//! Allocations, counted for each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting. A test program makes it its own:
///
/// ```
/// # use elver_testkit::Counting;
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting;
///
/// let before = elver_testkit::allocations();
/// let _word = Box::new(1);
/// assert!(elver_testkit::allocations() > before);
/// ```
#[derive(Debug)]
pub struct Counting;

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

/// What this thread has allocated by now, in a program whose allocator is [`Counting`]; in others 0.
pub fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// What this thread allocates from a moment on.
#[derive(Debug)]
pub struct Count {
    since: Instant,
    allocations: u64,
}

impl Count {
    /// From now on.
    pub fn begin() -> Count {
        Count { since: Instant::now(), allocations: allocations() }
    }

    /// It was no more than what a session needs by itself: it looks at its socket every 50 ms, with room for a
    /// message and a file. That does not grow with messages.
    ///
    /// # Panics
    /// If it was more, or if nothing is counted.
    pub fn end(self, who: &str) {
        let looks = self.since.elapsed().as_millis() as u64 / 50 + 2;
        let counted = allocations() - self.allocations;
        assert!(allocations() > 0, "the allocator of this program does not count");
        assert!(counted <= 8 * looks, "{who}: {counted} in {looks} looks at the socket");
    }
}
