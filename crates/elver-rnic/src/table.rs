use alloc::collections::VecDeque;
use alloc::vec::Vec;

use elver_verbs::{ObjectKind, VerbsError};

use elver_random::Rng;

/// Bits of an id.
const ID_BITS: u32 = 24;

/// Objects named by 24-bit ids: the low bits are a slot, the high bits a salt that is drawn anew
/// each time the slot is taken. A look-up costs one index and one comparison; an id of a removed
/// object misses, and the id of a new one cannot be told from those before it.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Option<(u32, T)>>,
    free: VecDeque<u32>,
    len: u32,
    limit: u32,
    slot_bits: u32,
    kind: ObjectKind,
    setting: &'static str,
}

impl<T> Table<T> {
    /// A table of at most `limit` objects, which is at most 2^20; `setting` names the
    /// configuration field that gave the limit.
    pub(crate) fn new(kind: ObjectKind, limit: u32, setting: &'static str) -> Table<T> {
        let slot_bits = limit.max(2).next_power_of_two().trailing_zeros();
        Table { slots: Vec::new(), free: VecDeque::new(), len: 0, limit, slot_bits, kind, setting }
    }

    /// Puts an object in and returns its id, which is never 0, 1 or all ones: those QPNs are
    /// reserved (IBTA vol. 1, 9.2.4.2), and key 0 is easily taken for none.
    pub(crate) fn insert(
        &mut self,
        rng: &mut Rng,
        value: impl FnOnce(u32) -> T,
    ) -> Result<u32, VerbsError> {
        if self.len >= self.limit {
            return Err(VerbsError::Limit {
                kind: self.kind,
                limit: u64::from(self.limit),
                setting: self.setting,
            });
        }
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        let salts = (1u32 << (ID_BITS - self.slot_bits)) - 2;
        let salt = 1 + rng.next_u32() % salts;
        let id = salt << self.slot_bits | slot;
        self.slots[slot as usize] = Some((id, value(id)));
        self.len += 1;
        Ok(id)
    }

    #[inline]
    fn slot(&self, id: u32) -> usize {
        (id & ((1 << self.slot_bits) - 1)) as usize
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        match self.slots.get(self.slot(id)) {
            Some(Some((held, value))) if *held == id => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.slot(id);
        match self.slots.get_mut(slot) {
            Some(Some((held, value))) if *held == id => Some(value),
            _ => None,
        }
    }

    /// As [`Table::get`], with the verbs' error for a handle that misses.
    pub(crate) fn require(&self, id: u32) -> Result<&T, VerbsError> {
        let kind = self.kind;
        self.get(id).ok_or(VerbsError::InvalidHandle { kind, handle: id })
    }

    /// As [`Table::get_mut`], with the verbs' error for a handle that misses.
    pub(crate) fn require_mut(&mut self, id: u32) -> Result<&mut T, VerbsError> {
        let kind = self.kind;
        self.get_mut(id).ok_or(VerbsError::InvalidHandle { kind, handle: id })
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        self.get(id)?;
        let slot = self.slot(id);
        let (_, value) = self.slots[slot].take()?;
        self.free.push_back(slot as u32);
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Ids of all objects, in the order of their slots.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().flatten().map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_id_misses_and_the_limit_names_its_setting() {
        let mut rng = Rng::new(7);
        let mut table = Table::new(ObjectKind::Qp, 2, "max_qp");
        let first = table.insert(&mut rng, |id| id).unwrap();
        let second = table.insert(&mut rng, |id| id).unwrap();
        assert_ne!(first, second);
        assert_eq!(
            table.insert(&mut rng, |id| id),
            Err(VerbsError::Limit { kind: ObjectKind::Qp, limit: 2, setting: "max_qp" })
        );
        assert_eq!(table.remove(first), Some(first));
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&second));
    }

    #[test]
    fn reserved_numbers_are_never_given() {
        let mut rng = Rng::new(1);
        let mut table = Table::new(ObjectKind::Qp, 1 << 20, "max_qp");
        for _ in 0..10_000 {
            let id = table.insert(&mut rng, |id| id).unwrap();
            assert!(id > 1 && id < 0xff_ffff, "{id:#x}");
        }
    }
}
