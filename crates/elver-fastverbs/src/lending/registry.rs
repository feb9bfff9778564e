//! Which queue pairs are lent, in this process's own memory: a child has a copy, as it was at the fork.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::table::LENT_MAX;
use super::verbs::{Context, Functions, Limits, Qp};

/// Places of the index: a power of two, four times as many as there are queue pairs.
const PLACES: usize = 4 * LENT_MAX;
/// A place that had one: a search goes on behind it.
const LEFT: u32 = u32::MAX;
/// Most contexts whose queue pairs are lent.
const CONTEXTS_MAX: usize = 16;

/// What this process knows of a slot by itself, whatever stands in the table that children can write.
struct Entry {
    qp: AtomicPtr<Qp>,
    /// Which of the queue pairs it is that had the slot, in turn.
    generation: AtomicU32,
    max_sges: AtomicU32,
    max_inline: AtomicU32,
    /// Whether its peer takes the WRITE of nothing.
    is_fenced: AtomicBool,
    /// Whether the owner has seen a child that has it, and has not drained it since.
    is_busy: AtomicBool,
}

static ENTRIES: [Entry; LENT_MAX] = [const {
    Entry {
        qp: AtomicPtr::new(ptr::null_mut()),
        generation: AtomicU32::new(0),
        max_sges: AtomicU32::new(0),
        max_inline: AtomicU32::new(0),
        is_fenced: AtomicBool::new(false),
        is_busy: AtomicBool::new(false),
    }
}; LENT_MAX];
/// Who lends, takes back, or finds that a child has a queue pair, or has it no more: one at a time. A child never has it: it
/// may have been held when it was forked.
static CHANGING: Mutex<()> = Mutex::new(());
/// Slots, and one more, by the address of their queue pair.
static INDEX: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

/// A context, and its provider's own functions.
struct Known {
    context: AtomicPtr<Context>,
    post_send: AtomicUsize,
    post_recv: AtomicUsize,
}

static CONTEXTS: [Known; CONTEXTS_MAX] = [const {
    Known {
        context: AtomicPtr::new(ptr::null_mut()),
        post_send: AtomicUsize::new(0),
        post_recv: AtomicUsize::new(0),
    }
}; CONTEXTS_MAX];

fn place(at: usize) -> &'static AtomicU32 {
    &INDEX[at % PLACES]
}

fn first_place(qp: *const Qp) -> usize {
    (qp as usize >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

/// The places where a queue pair may stand, in turn.
fn places(qp: *const Qp) -> impl Iterator<Item = &'static AtomicU32> {
    let first = first_place(qp);
    (first..first + PLACES).map(place)
}

/// The slot of a queue pair, if it is lent.
pub(crate) fn slot_of(qp: *const Qp) -> Option<usize> {
    for place in places(qp) {
        match place.load(Acquire) {
            0 => return None,
            LEFT => {}
            slot if ptr::eq(ENTRIES[slot as usize - 1].qp.load(Relaxed), qp) => {
                return Some(slot as usize - 1);
            }
            _ => {}
        }
    }
    None
}

/// The right to change what is lent, for the lender.
pub(crate) fn change() -> MutexGuard<'static, ()> {
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue pair of a slot; null if there is none.
pub(crate) fn qp(slot: usize) -> *mut Qp {
    ENTRIES[slot].qp.load(Acquire)
}

/// Which of the slot's queue pairs this process knows.
pub(crate) fn generation(slot: usize) -> u32 {
    ENTRIES[slot].generation.load(Relaxed)
}

/// What a slot's queue pair was made with.
pub(crate) fn limits(slot: usize) -> Limits {
    let entry = &ENTRIES[slot];
    let (sges, inline_bytes) = (&entry.max_sges, &entry.max_inline);
    Limits { sges: sges.load(Relaxed), inline_bytes: inline_bytes.load(Relaxed) }
}

/// Whether the peer of a slot's queue pair takes the WRITE of nothing.
pub(crate) fn is_fenced(slot: usize) -> bool {
    ENTRIES[slot].is_fenced.load(Relaxed)
}

/// Whether a child has a slot's queue pair, or has left it undrained, as the owner knows.
pub(crate) fn is_busy(slot: usize) -> bool {
    ENTRIES[slot].is_busy.load(Relaxed)
}

/// The owner has found a child, or drained what it left. With [`change`] in hand.
pub(crate) fn set_busy(slot: usize, is_busy: bool) {
    ENTRIES[slot].is_busy.store(is_busy, Relaxed);
}

/// All that are lent, with their slots.
pub(crate) fn all() -> impl Iterator<Item = (usize, *mut Qp)> {
    let all = ENTRIES.iter().map(|entry| entry.qp.load(Acquire)).enumerate();
    all.filter(|(_, qp)| !qp.is_null())
}

/// A slot for a queue pair; none if there are too many. With [`change`] in hand.
pub(crate) fn add(qp: *mut Qp, limits: Limits, is_fenced: bool) -> Option<usize> {
    let slot = ENTRIES.iter().position(|one| one.qp.load(Relaxed).is_null())?;
    let place = places(qp).find(|place| matches!(place.load(Relaxed), 0 | LEFT))?;
    let entry = &ENTRIES[slot];
    entry.generation.fetch_add(1, Relaxed);
    entry.max_sges.store(limits.sges, Relaxed);
    entry.max_inline.store(limits.inline_bytes, Relaxed);
    entry.is_fenced.store(is_fenced, Relaxed);
    entry.qp.store(qp, Release);
    place.store(slot as u32 + 1, Release);
    Some(slot)
}

/// Forgets a queue pair. With [`change`] in hand.
pub(crate) fn remove(slot: usize) {
    let first = first_place(qp(slot));
    let its = (first..first + PLACES).find(|at| place(*at).load(Relaxed) == slot as u32 + 1);
    if let Some(its) = its {
        place(its).store(LEFT, Release);
        // No search goes on behind the last of a row: else each would be as long as there ever were queue pairs.
        if place(its + 1).load(Relaxed) == 0 {
            let back = (0..PLACES).map(|step| place(its + PLACES - step));
            for left in back.take_while(|place| place.load(Relaxed) == LEFT) {
                left.store(0, Release);
            }
        }
    }
    ENTRIES[slot].qp.store(ptr::null_mut(), Release);
}

/// Keeps a context's own functions; false if there are too many contexts.
pub(crate) fn know(context: *mut Context, functions: Functions) -> bool {
    let of = |wanted: *mut Context| {
        CONTEXTS.iter().find(move |known| ptr::eq(known.context.load(Relaxed), wanted))
    };
    let Some(known) = of(context).or_else(|| of(ptr::null_mut())) else { return false };
    known.post_send.store(functions.post_send, Relaxed);
    known.post_recv.store(functions.post_recv, Relaxed);
    known.context.store(context, Release);
    true
}

/// Forgets a context, which is closed.
pub(crate) fn forget(context: *mut Context) {
    let known = CONTEXTS.iter().find(|known| ptr::eq(known.context.load(Relaxed), context));
    if let Some(known) = known {
        known.context.store(ptr::null_mut(), Release);
    }
}

/// A context's own functions, if it is known.
pub(crate) fn functions(context: *mut Context) -> Option<Functions> {
    let known = CONTEXTS.iter().find(|known| ptr::eq(known.context.load(Acquire), context))?;
    Some(Functions {
        post_send: known.post_send.load(Relaxed),
        post_recv: known.post_recv.load(Relaxed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_found_until_they_are_removed() {
        // Addresses alone: nothing is read behind them.
        let address = |at: usize| ptr::without_provenance_mut::<Qp>(0x1000 + at * 208);
        let _alone = change();
        let limits = |at| Limits { sges: at as u32, inline_bytes: 7 };
        let add = |at| add(address(at), limits(at), at % 2 == 0);
        let slots: Vec<usize> = (0..LENT_MAX).map(|at| add(at).unwrap()).collect();
        assert!(add(LENT_MAX).is_none(), "there are as many as there may be");
        for round in 0..20 {
            for (at, slot) in slots.iter().enumerate() {
                assert_eq!(slot_of(address(at)), Some(*slot));
            }
            assert_eq!(slot_of(address(LENT_MAX + round)), None);
            let at = round * 37;
            remove(slots[at]);
            assert_eq!(slot_of(address(at)), None);
            let before = generation(slots[at]);
            assert_eq!(add(at), Some(slots[at]));
            assert_eq!(generation(slots[at]), before + 1, "it is another lending");
            assert_eq!((super::limits(slots[at]), is_fenced(slots[at])), (limits(at), at % 2 == 0));
        }
        assert_eq!(all().count(), LENT_MAX);
        for slot in slots {
            remove(slot);
        }
        assert_eq!((all().count(), slot_of(address(0))), (0, None));
    }

    #[test]
    fn a_search_is_short_however_many_there_were() {
        let address = |at: usize| ptr::without_provenance_mut::<Qp>(0x8000_0000 + at * 208);
        let _alone = change();
        let limits = Limits { sges: 1, inline_bytes: 0 };
        for at in 0..10 * PLACES {
            let slot = add(address(at), limits, true).unwrap();
            if at % 7 == 0 {
                let other = add(address(20 * PLACES + at), limits, true).unwrap();
                remove(slot);
                remove(other);
            } else {
                remove(slot);
            }
        }
        assert!(INDEX.iter().all(|place| place.load(Relaxed) == 0));
    }

    #[test]
    fn a_contexts_functions_are_its_last() {
        let context = ptr::without_provenance_mut::<Context>(0x10);
        let of = |post_send| Functions { post_send, post_recv: 2 };
        assert_eq!(functions(context), None);
        assert!(know(context, of(1)) && know(context, of(3)));
        assert_eq!(functions(context), Some(of(3)));
        forget(context);
        assert_eq!(functions(context), None);
        // As many as are open at a time, however many there were.
        for at in 1..=10 * CONTEXTS_MAX {
            let context = ptr::without_provenance_mut::<Context>(0x1000 * at);
            assert!(know(context, of(at)));
            if at > 3 {
                forget(ptr::without_provenance_mut(0x1000 * (at - 3)));
            }
        }
    }
}
