//! Pages of shared memory that cannot be had, when one is touched (SIGBUS).
//!
//! Who maps a file in memory together with this process may give its pages back. They come again when
//! they are touched, unless there are none: huge pages that another has taken by then, or memory that
//! the system does not promise any more. The system then ends whoever touches it, which is this
//! process, for what another did.
//!
//! So mappings of such files are known here, and a handler puts private zero pages in the place of one
//! in which that happens. The access goes on, and the mapping is marked as lost: whoever shares it is
//! to be dealt with. A fault anywhere else ends the process, as it would have done.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// Mappings in a chunk of the table, and chunks.
const CHUNK: usize = 1_024;
const CHUNKS_MAX: usize = 1_024;

/// Mappings that others share. It is read by a signal's handler, so that it has no lock; chunks are
/// never freed.
static TABLE: [AtomicPtr<[Place; CHUNK]>; CHUNKS_MAX] =
    [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS_MAX];
/// Places that are free, and how many there are in all.
static FREE: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));
/// Mappings that were lost so far.
static LOST: AtomicU64 = AtomicU64::new(0);
/// The signal is taken. Until then nobody reads the table, which would cost a process that serves nobody
/// six pages of its own when it opens its first session.
static SURVIVES: AtomicBool = AtomicBool::new(false);

/// A place of the table. Who reads it holds nobody up who writes it, and may be stopped between two words for as
/// long as you like: it counts its changes, so that a range of two mappings is never taken for one.
struct Place {
    changes: AtomicU64,
    start: AtomicUsize,
    /// 0 while nothing is there.
    end: AtomicUsize,
    lost: AtomicBool,
}

impl Place {
    const fn new() -> Place {
        Place {
            changes: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// Puts a range here. One thread at a time does: whose place it is.
    fn set(&self, range: Range<usize>) {
        let changes = self.changes.load(Ordering::Relaxed);
        // Odd as long as the words belong to two ranges.
        self.changes.store(changes + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
        self.changes.store(changes + 2, Ordering::Release);
    }

    /// The range that is here. None where it is changed meanwhile: it is nobody's then who uses it.
    fn range(&self) -> Option<Range<usize>> {
        let changes = self.changes.load(Ordering::Acquire);
        let range = self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = changes.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == changes;
        is_whole.then_some(range)
    }
}

/// A mapping that is known. It must be dropped before the mapping goes.
#[derive(Debug)]
pub struct Shared {
    place: u32,
}

/// Makes SIGBUS in memory that is known an affair of those who share it. To be called once, by a
/// process that serves others, before it maps what it shares: it takes the signal.
///
/// # Errors
///
/// What the system said if it does not give the signal away.
pub fn survive_faults() -> io::Result<()> {
    // SAFETY: all zeros are a valid `sigaction`; the handler calls nothing but `mmap` and `sigaction`,
    // and touches atomics alone.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    SURVIVES.store(true, Ordering::Relaxed);
    Ok(())
}

/// Mappings that were lost so far.
#[inline]
pub fn faults() -> u64 {
    LOST.load(Ordering::Relaxed)
}

impl Shared {
    /// Makes a mapping known. None where the signal is not taken ([`survive_faults`]), or if there are too
    /// many: then it is as if nobody had.
    ///
    /// # Safety
    /// The range must be a whole mapping, which this process may replace by zeros at any time, and
    /// must stay mapped until the value is dropped.
    pub unsafe fn new(start: usize, len: usize) -> Option<Shared> {
        if !SURVIVES.load(Ordering::Relaxed) {
            return None;
        }
        let number = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            if free.0.is_empty() {
                grow(&mut free)?;
            }
            free.0.pop()?
        };
        let shared = Shared { place: number };
        let place = shared.place();
        place.lost.store(false, Ordering::Relaxed);
        place.set(start..start + len);
        Some(shared)
    }

    /// Whether a page of it could not be had: it has zeros since, and nobody shares them.
    pub fn is_lost(&self) -> bool {
        self.place().lost.load(Ordering::Acquire)
    }

    fn place(&self) -> &'static Place {
        let (chunk, at) = (self.place as usize / CHUNK, self.place as usize % CHUNK);
        let chunk = TABLE[chunk].load(Ordering::Acquire);
        // SAFETY: the place was given out, so that its chunk is there; it is never freed.
        unsafe { &(&*chunk)[at] }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.place().set(0..0);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).0.push(self.place);
    }
}

/// One more chunk of places.
fn grow((free, count): &mut (Vec<u32>, u32)) -> Option<()> {
    let chunk = TABLE.get(*count as usize / CHUNK)?;
    let places = [const { Place::new() }; CHUNK];
    chunk.store(Box::into_raw(Box::new(places)), Ordering::Release);
    free.extend(*count..*count + CHUNK as u32);
    *count += CHUNK as u32;
    Some(())
}

/// Puts zeros in the place of the known mapping that an address lies in, if it lies in one.
fn mend(address: usize) -> bool {
    for chunk in &TABLE {
        let chunk = chunk.load(Ordering::Acquire);
        if chunk.is_null() {
            return false;
        }
        // SAFETY: a chunk that is in the table is never freed.
        for place in unsafe { &*chunk } {
            let Some(range) = place.range().filter(|range| range.contains(&address)) else {
                continue;
            };
            let (protection, flags) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            );
            // SAFETY: the range is a mapping that its owner lets us replace, and that stays while its
            // place is taken: the thread that we interrupted is using it.
            let mapped = unsafe {
                libc::mmap(
                    ptr::with_exposed_provenance_mut(range.start),
                    range.len(),
                    protection,
                    flags,
                    -1,
                    0,
                )
            };
            if mapped == libc::MAP_FAILED {
                return false;
            }
            place.lost.store(true, Ordering::Release);
            LOST.fetch_add(1, Ordering::Relaxed);
            return true;
        }
    }
    false
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `info` for this signal, whose address stands where its code says
    // that a fault caused it; the place of `errno` is this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        // Otherwise somebody sent it.
        let is_fault = (*info).si_code > 0;
        if is_fault && mend((*info).si_addr() as usize) {
            *libc::__errno_location() = errno;
            return;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
        // A fault comes again when this returns; what was sent does not.
        if !is_fault {
            libc::raise(signal);
        }
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that is stopped between two words of a place that is given out again.
    #[test]
    fn no_range_is_made_of_two() {
        const RANGES: [Range<usize>; 2] = [1_000..2_000, 8_000..9_000];
        const ROUNDS: u32 = 300_000;
        let place = Place::new();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    place.set(RANGES[round as usize % 2].clone());
                    place.set(0..0);
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                if let Some(range) = place.range() {
                    assert!(range == (0..0) || RANGES.contains(&range), "{range:?}");
                }
            }
        });
        assert_eq!(place.range(), Some(0..0));
    }
}
