use alloc::vec;
use alloc::vec::Vec;

use elver_random::Rng;
use elver_verbs::{MaybeSlot, ObjectKind, VerbsError};

/// Bits of an id.
const ID_BITS: u32 = 24;
/// Cells of a table that holds nothing yet.
const CELLS_MIN: usize = 64;

/// Objects named by 24-bit ids, each drawn anew: QPNs, and the upper bits of keys. Peers are told
/// some of them, and learn nothing of the rest.
///
/// The low bits of an id are its cell, and no two ids share one: an id whose cell is taken is drawn
/// again, and a table that doubles only parts ids, so that it never grows into a clash. A look-up
/// costs two loads and one comparison, whatever the id; that of a removed object misses.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Where in `slots` the object of a cell is. Half of them are empty at least, and their number is
    /// a power of two.
    cells: Vec<MaybeSlot>,
    slots: Vec<Option<(u32, T)>>,
    free: Vec<u32>,
    len: u32,
    limit: u32,
    kind: ObjectKind,
    setting: &'static str,
}

impl<T> Table<T> {
    /// A table of at most `limit` objects, which is at most 2^20; `setting` names the
    /// configuration field that gave the limit.
    pub(crate) fn new(kind: ObjectKind, limit: u32, setting: &'static str) -> Table<T> {
        let cells = vec![MaybeSlot::NONE; CELLS_MIN];
        Table { cells, slots: Vec::new(), free: Vec::new(), len: 0, limit, kind, setting }
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
        if 2 * self.slots.len() >= self.cells.len() && self.free.is_empty() {
            self.grow();
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        let id = self.draw(rng);
        let cell = self.cell(id);
        self.cells[cell] = slot.into();
        self.slots[slot as usize] = Some((id, value(id)));
        self.len += 1;
        Ok(id)
    }

    /// An id whose cell is empty. At least every second one is.
    fn draw(&self, rng: &mut Rng) -> u32 {
        loop {
            let id = rng.next_u32() >> (u32::BITS - ID_BITS);
            let reserved = id <= 1 || id == (1 << ID_BITS) - 1;
            if !reserved && self.cells[self.cell(id)].get().is_none() {
                return id;
            }
        }
    }

    /// Doubles the cells.
    fn grow(&mut self) {
        self.cells = vec![MaybeSlot::NONE; 2 * self.cells.len()];
        for (slot, held) in self.slots.iter().enumerate() {
            if let Some((id, _)) = held {
                let cell = self.cell(*id);
                self.cells[cell] = MaybeSlot::from(slot as u32);
            }
        }
    }

    #[inline]
    fn cell(&self, id: u32) -> usize {
        id as usize & (self.cells.len() - 1)
    }

    /// An index for a look-up, which misses where there is no object.
    #[inline]
    fn slot(&self, id: u32) -> Option<usize> {
        self.cells.get(self.cell(id)).map(|slot| slot.index())
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        match self.slots.get(self.slot(id)?) {
            Some(Some((held, value))) if *held == id => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.slot(id)?;
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
        let slot = self.slot(id)?;
        let (_, value) = self.slots[slot].take()?;
        let cell = self.cell(id);
        self.cells[cell] = MaybeSlot::NONE;
        self.free.push(slot as u32);
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

    /// Slots that are given in turn, under a salt, left 8 bits of a key's 24 to be guessed.
    #[test]
    fn no_bit_of_an_id_can_be_foreseen() {
        let mut rng = Rng::new(3);
        let mut table = Table::new(ObjectKind::Mr, 1 << 16, "max_mr");
        let ids: Vec<u32> = (0..1_000).map(|_| table.insert(&mut rng, |_| ()).unwrap()).collect();
        for bit in 0..ID_BITS {
            let set = ids.iter().filter(|id| **id >> bit & 1 == 1).count();
            assert!((400..600).contains(&set), "bit {bit} is set in {set} of 1000");
            let follows = |pair: &&[u32]| (pair[0] ^ pair[1]) >> bit & 1 == 1;
            let changes = ids.windows(2).filter(follows).count();
            assert!((400..600).contains(&changes), "bit {bit} changes {changes} times in 999");
        }
    }

    #[test]
    fn ids_live_through_growth_and_misses_miss() {
        let mut rng = Rng::new(5);
        let mut table = Table::new(ObjectKind::Mr, 1 << 16, "max_mr");
        let mut held = Vec::new();
        for round in 0..20_000u32 {
            if round % 3 == 2 {
                let id = held.swap_remove(rng.next_u32() as usize % held.len());
                assert_eq!((table.remove(id), table.get(id)), (Some(id), None));
            } else {
                held.push(table.insert(&mut rng, |id| id).unwrap());
            }
        }
        assert_eq!(table.len() as usize, held.len());
        assert!(held.iter().all(|id| table.get(*id) == Some(id)));
        let found = (0..1 << ID_BITS).filter(|id| table.get(*id).is_some()).count();
        assert_eq!(found, held.len());
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
