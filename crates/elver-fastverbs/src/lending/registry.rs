//! Which queue pairs are lent, in this process's own memory: a child has a copy, as it was at the fork.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use super::table::LENT_MAX;
use super::verbs::{Context, Functions, Qp};

/// Places of the index: a power of two, four times as many as there are queue pairs.
const PLACES: usize = 4 * LENT_MAX;
/// A place that had one: a search goes on behind it.
const LEFT: u32 = u32::MAX;
/// Most contexts whose queue pairs are lent.
const CONTEXTS_MAX: usize = 16;

/// Queue pairs by slot.
static QPS: [AtomicPtr<Qp>; LENT_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; LENT_MAX];
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

/// The places where a queue pair may stand, in turn.
fn places(qp: *const Qp) -> impl Iterator<Item = &'static AtomicU32> {
    let first = (qp as usize >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..PLACES).map(move |step| &INDEX[(first + step) % PLACES])
}

/// The slot of a queue pair, if it is lent.
pub(crate) fn slot_of(qp: *const Qp) -> Option<usize> {
    for place in places(qp) {
        match place.load(Acquire) {
            0 => return None,
            LEFT => {}
            slot if ptr::eq(QPS[slot as usize - 1].load(Relaxed), qp) => {
                return Some(slot as usize - 1);
            }
            _ => {}
        }
    }
    None
}

/// The queue pair of a slot; null if there is none.
pub(crate) fn qp(slot: usize) -> *mut Qp {
    QPS[slot].load(Acquire)
}

/// All that are lent.
pub(crate) fn all() -> impl Iterator<Item = *mut Qp> {
    QPS.iter().map(|qp| qp.load(Acquire)).filter(|qp| !qp.is_null())
}

/// A slot for a queue pair; none if there are too many. One thread at a time adds and removes.
pub(crate) fn add(qp: *mut Qp) -> Option<usize> {
    let slot = QPS.iter().position(|one| one.load(Relaxed).is_null())?;
    let place = places(qp).find(|place| matches!(place.load(Relaxed), 0 | LEFT))?;
    QPS[slot].store(qp, Release);
    place.store(slot as u32 + 1, Release);
    Some(slot)
}

/// Forgets a queue pair.
pub(crate) fn remove(slot: usize) {
    let mut places = places(qp(slot));
    if let Some(place) = places.find(|place| place.load(Relaxed) == slot as u32 + 1) {
        place.store(LEFT, Release);
    }
    QPS[slot].store(ptr::null_mut(), Release);
}

/// Keeps a context's own functions; false if there are too many contexts.
pub(crate) fn know(context: *mut Context, functions: Functions) -> bool {
    let is_its = |known: &&Known| {
        let its = known.context.load(Relaxed);
        its.is_null() || ptr::eq(its, context)
    };
    let Some(known) = CONTEXTS.iter().find(is_its) else { return false };
    known.post_send.store(functions.post_send, Relaxed);
    known.post_recv.store(functions.post_recv, Relaxed);
    known.context.store(context, Release);
    true
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
        let slots: Vec<usize> = (0..LENT_MAX).map(|at| add(address(at)).unwrap()).collect();
        assert!(add(address(LENT_MAX)).is_none(), "there are as many as there may be");
        for round in 0..20 {
            for (at, slot) in slots.iter().enumerate() {
                assert_eq!(slot_of(address(at)), Some(*slot));
            }
            assert_eq!(slot_of(address(LENT_MAX + round)), None);
            let at = round * 37;
            remove(slots[at]);
            assert_eq!(slot_of(address(at)), None);
            assert_eq!(add(address(at)), Some(slots[at]));
        }
        assert_eq!(all().count(), LENT_MAX);
        for slot in slots {
            remove(slot);
        }
        assert_eq!((all().count(), slot_of(address(0))), (0, None));
    }

    #[test]
    fn a_contexts_functions_are_its_last() {
        let context = ptr::without_provenance_mut::<Context>(0x10);
        let of = |post_send| Functions { post_send, post_recv: 2 };
        assert_eq!(functions(context), None);
        assert!(know(context, of(1)) && know(context, of(3)));
        assert_eq!(functions(context), Some(of(3)));
    }
}
