use alloc::vec::Vec;
use core::marker::PhantomData;
use core::num::NonZeroU32;

use elver_random::Rng;

use crate::ids::Id;

/// Bits of an id that name the slot; those above are the salt.
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
/// Most slots of a table.
pub(crate) const SLOTS_MAX: u32 = 1 << SLOT_BITS;
/// Salts that there are; 0 is none.
const SALTS: u16 = (1 << (u32::BITS - SLOT_BITS)) - 1;

/// A dense table whose ids miss once their entry is gone: each use of a slot has another salt, and
/// none comes again before the slot has had them all.
///
/// Finding an entry is one indexed load and one comparison, and 0 is no id.
#[derive(Debug)]
pub(crate) struct Slots<I, T> {
    slots: Vec<Slot<T>>,
    /// All salts in an order that was drawn; a slot takes them from a place of its own on.
    salts: Vec<u16>,
    free: Vec<u32>,
    limit: u32,
    len: u32,
    ids: PhantomData<fn() -> I>,
}

#[derive(Debug)]
struct Slot<T> {
    id: u32,
    /// Where in `salts` its next one is.
    next: u16,
    value: Option<T>,
}

impl<I: Id, T> Slots<I, T> {
    /// A table of at most `limit` entries, and never more than [`SLOTS_MAX`].
    pub(crate) fn new(limit: u32) -> Slots<I, T> {
        let limit = limit.min(SLOTS_MAX);
        Slots {
            slots: Vec::new(),
            salts: Vec::new(),
            free: Vec::new(),
            limit,
            len: 0,
            ids: PhantomData,
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// Puts in what `make` gives for its id; none when the table is full.
    pub(crate) fn insert(&mut self, rng: &mut Rng, make: impl FnOnce(I) -> T) -> Option<I> {
        let index = self.vacancy()?;
        if self.salts.is_empty() {
            self.salts = shuffled(rng);
        }
        let slot = &mut self.slots[index as usize];
        if slot.id == 0 {
            slot.next = (rng.next_u32() % u32::from(SALTS)) as u16;
        }
        let id = u32::from(self.salts[usize::from(slot.next)]) << SLOT_BITS | index;
        let next = (slot.next + 1) % SALTS;
        // No salt is 0.
        let named = I::of(NonZeroU32::new(id)?);
        *slot = Slot { id, next, value: Some(make(named)) };
        Some(named)
    }

    /// The same where nobody else is told the ids, so that they may be foreseen: a slot's salts come
    /// in turn.
    #[inline]
    pub(crate) fn insert_in_turn(&mut self, value: T) -> Option<I> {
        let index = self.vacancy()?;
        let slot = &mut self.slots[index as usize];
        let salt = ((slot.id >> SLOT_BITS) + 1) & (u32::MAX >> SLOT_BITS);
        slot.id = salt.max(1) << SLOT_BITS | index;
        slot.value = Some(value);
        NonZeroU32::new(slot.id).map(I::of)
    }

    /// Takes a slot for a new entry.
    fn vacancy(&mut self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        self.len += 1;
        Some(self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { id: 0, next: 0, value: None });
            self.slots.len() as u32 - 1
        }))
    }

    #[inline]
    pub(crate) fn get(&self, id: I) -> Option<&T> {
        let id = id.bits();
        let slot = self.slots.get((id & SLOT_MASK) as usize)?;
        if slot.id == id { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        let id = id.bits();
        let slot = self.slots.get_mut((id & SLOT_MASK) as usize)?;
        if slot.id == id { slot.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, id: I) -> Option<T> {
        let id = id.bits();
        let index = id & SLOT_MASK;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.id != id {
            return None;
        }
        let value = slot.value.take()?;
        self.vacated(index);
        Some(value)
    }

    /// Drops an entry where it stands: a large one is not moved out of it.
    #[inline]
    pub(crate) fn discard(&mut self, id: I) {
        let id = id.bits();
        let index = id & SLOT_MASK;
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if slot.id == id && slot.value.is_some() {
            slot.value = None;
            self.vacated(index);
        }
    }

    fn vacated(&mut self, index: u32) {
        self.free.push(index);
        self.len -= 1;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let named = |slot: &Slot<T>| NonZeroU32::new(slot.id).map(I::of);
        self.slots.iter().filter_map(move |slot| Some((named(slot)?, slot.value.as_ref()?)))
    }

    /// Bytes of the table itself.
    pub(crate) fn bytes(&self) -> u64 {
        let slots = self.slots.capacity() * size_of::<Slot<T>>() + self.free.capacity() * 4;
        (slots + self.salts.capacity() * 2) as u64
    }
}

/// All salts, in any order (Fisher and Yates).
fn shuffled(rng: &mut Rng) -> Vec<u16> {
    let mut salts: Vec<u16> = (1..=SALTS).collect();
    for last in (1..salts.len()).rev() {
        salts.swap(last, rng.next_u32() as usize % (last + 1));
    }
    salts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VqpId;

    #[test]
    fn ids_of_the_gone_miss() {
        let mut rng = Rng::new(1);
        let mut slots = Slots::<VqpId, _>::new(2);
        let a = slots.insert(&mut rng, |id| id).unwrap();
        let b = slots.insert(&mut rng, |id| id).unwrap();
        assert_ne!(a, VqpId(0));
        assert_eq!(slots.insert(&mut rng, |id| id), None);
        assert_eq!((slots.get(a), slots.get(b)), (Some(&a), Some(&b)));
        assert_eq!(slots.remove(a), Some(a));
        assert_eq!(slots.get(a), None);
        assert_eq!(slots.remove(a), None);
        let c = slots.insert(&mut rng, |id| id).unwrap();
        assert_ne!(a, c);
        assert_eq!((slots.get(a), slots.get(c), slots.len()), (None, Some(&c), 2));
        assert_eq!(slots.iter().count(), 2);
        assert_eq!(slots.get(VqpId(u32::MAX)), None);
    }

    #[test]
    fn no_id_comes_again_before_its_slot_has_had_all_salts() {
        let mut rng = Rng::new(2);
        let mut slots = Slots::<VqpId, _>::new(2);
        let stays = slots.insert(&mut rng, |_| 0).unwrap();
        let mut ids = Vec::new();
        for n in 0..SALTS {
            let id = slots.insert(&mut rng, |_| n).unwrap();
            assert!(!ids.contains(&id) && id != stays, "{id:#x} again at {n}");
            ids.push(id);
            slots.discard(id);
        }
        assert_eq!(slots.insert(&mut rng, |_| 0), Some(ids[0]));
    }

    #[test]
    fn ids_in_turn_miss_too_until_a_slot_has_had_all_its_salts() {
        let mut slots = Slots::<VqpId, _>::new(1);
        let first = slots.insert_in_turn(0).unwrap();
        assert_eq!(slots.insert_in_turn(0), None);
        for n in 1..SALTS {
            slots.discard(first);
            slots.discard(VqpId(slots.slots[0].id));
            let id = slots.insert_in_turn(n).unwrap();
            assert_eq!((slots.get(id), slots.get(first), slots.len()), (Some(&n), None, 1));
        }
        assert_eq!(slots.remove(VqpId(slots.slots[0].id)), Some(SALTS - 1));
        assert_eq!(slots.insert_in_turn(0), Some(first));
    }
}
