use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use elver_verbs::{Memory, MemoryError, Time};

use crate::Rng;

/// Memory of a simulated host. A clone is the same memory.
#[derive(Clone, Debug)]
pub struct SimMemory {
    bytes: Rc<RefCell<Vec<u8>>>,
    gone: Rc<Cell<bool>>,
    changes: Rc<Cell<u64>>,
    base: u64,
    late: Rc<RefCell<Option<Late>>>,
}

/// How often memory is not at hand, and for how long.
///
/// As a [real](../elver_soft/struct.Copier.html) copier's: errands to it are done one after the other,
/// nothing else reaches it while one is under way, and it keeps others waiting for so long in all. What
/// takes longer than that fails there; here, where each failure must be somebody's fault, it comes at
/// once.
#[derive(Debug)]
struct Late {
    percent: u32,
    rng: Rng,
    /// For how long its pages may still keep others waiting, in nanoseconds.
    patience_ns: u64,
    /// Errands under way, and when the last of them has ended.
    out: u32,
    last: Time,
}

/// Times that a page takes to come at most, in nanoseconds: there already, made by the system, slow,
/// and served by somebody who means harm.
const PAGE_NS: [u64; 4] = [0, 5_000, 200_000, 2_000_000];

impl SimMemory {
    /// Memory that holds `bytes` and stands at the virtual address `base`.
    pub fn new(bytes: Vec<u8>, base: u64) -> SimMemory {
        let bytes = Rc::new(RefCell::new(bytes));
        let (gone, changes, late) = (Rc::default(), Rc::default(), Rc::default());
        SimMemory { bytes, gone, changes, base, late }
    }

    /// From now on, so many times in a hundred, a device must have a copy to or from it made by an
    /// errand, as if it were another process's. Its pages keep others waiting for `patience_ns` in all.
    pub fn recede(&self, percent: u32, patience_ns: u64, rng: Rng) {
        let (out, last) = (0, Time::ZERO);
        *self.late.borrow_mut() = Some(Late { percent, rng, patience_ns, out, last });
    }

    fn is_late(&self) -> bool {
        let mut late = self.late.borrow_mut();
        late.as_mut().is_some_and(|late| late.out > 0 || late.rng.percent(late.percent))
    }

    /// An errand begins; when it will have ended.
    pub(crate) fn begin_errand(&self, now: Time) -> Time {
        let mut late = self.late.borrow_mut();
        let Some(Late { rng, patience_ns, out, last, .. }) = late.as_mut() else { return now };
        let most = rng.pick(&PAGE_NS);
        let waits = rng.between(0, most).min(*patience_ns);
        *patience_ns -= waits;
        *out += 1;
        *last = now.max(*last).saturating_add_ns(waits);
        *last
    }

    /// An errand has come to its end.
    pub(crate) fn end_errand(&self) {
        if let Some(late) = self.late.borrow_mut().as_mut() {
            late.out -= 1;
        }
    }

    /// Makes an errand's copy; whether it went well.
    pub(crate) fn make_copy(&self, offset: u64, bytes: &mut [u8], writes: bool) -> bool {
        let done = match writes {
            true => self.write_waiting(offset, bytes),
            false => self.read_waiting(offset, bytes),
        };
        done.is_ok()
    }

    /// The bytes, to look at.
    pub fn view(&self) -> Ref<'_, Vec<u8>> {
        self.bytes.borrow()
    }

    /// How often it was written to: who has looked at it need not look again while this is the same.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// From now on every access fails, as if the process that owns the memory had unmapped it, or
    /// does so no longer. [`SimMemory::view`] shows it in any case.
    pub fn set_gone(&self, gone: bool) {
        self.gone.set(gone);
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        MemoryError::check_range(offset, len, self.size())?;
        if self.gone.get() { Err(MemoryError::Gone { offset, len }) } else { Ok(()) }
    }

    fn word(&self, offset: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, MemoryError> {
        let mut word = [0; 8];
        if !offset.is_multiple_of(word.len() as u64) {
            return Err(MemoryError::Misaligned { offset });
        }
        self.read_waiting(offset, &mut word)?;
        let before = u64::from_ne_bytes(word);
        self.write_waiting(offset, &change(before).to_ne_bytes())?;
        Ok(before)
    }
}

impl Memory for SimMemory {
    fn size(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn base_addr(&self) -> u64 {
        self.base
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        if self.is_late() { Err(MemoryError::Later) } else { self.read_waiting(offset, dst) }
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        if self.is_late() { Err(MemoryError::Later) } else { self.write_waiting(offset, src) }
    }

    fn read_waiting(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        self.check(offset, dst.len() as u64)?;
        let at = offset as usize;
        dst.copy_from_slice(&self.bytes.borrow()[at..at + dst.len()]);
        Ok(())
    }

    fn write_waiting(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, src.len() as u64)?;
        let at = offset as usize;
        self.changes.set(self.changes.get() + 1);
        self.bytes.borrow_mut()[at..at + src.len()].copy_from_slice(src);
        Ok(())
    }

    fn copy_from(
        &self,
        offset: u64,
        src: &SimMemory,
        src_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        if self.is_late() || src.is_late() {
            return Err(MemoryError::Later);
        }
        self.check(offset, len)?;
        src.check(src_offset, len)?;
        self.changes.set(self.changes.get() + 1);
        let (to, from, len) = (offset as usize, src_offset as usize, len as usize);
        if Rc::ptr_eq(&self.bytes, &src.bytes) {
            self.bytes.borrow_mut().copy_within(from..from + len, to);
        } else {
            let source = src.bytes.borrow();
            self.bytes.borrow_mut()[to..to + len].copy_from_slice(&source[from..from + len]);
        }
        Ok(())
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.word(offset, |before| if before == compare { swap } else { before })
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, MemoryError> {
        self.word(offset, |before| before.wrapping_add(add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_may_overlap() {
        let memory = SimMemory::new((0..16).collect(), 0);
        memory.copy_from(2, &memory, 0, 8).unwrap();
        assert_eq!(memory.view()[..10], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn memory_that_is_gone_takes_nothing() {
        let memory = SimMemory::new(vec![7; 16], 0);
        let other = SimMemory::new(vec![1; 16], 0);
        memory.clone().set_gone(true);
        assert!(memory.write(0, &[0]).is_err() && memory.read(0, &mut [0]).is_err());
        assert!(memory.fetch_add(8, 1).is_err() && other.copy_from(0, &memory, 0, 8).is_err());
        assert_eq!((memory.view()[0], other.view()[0]), (7, 1));
        memory.set_gone(false);
        assert_eq!(memory.write(0, &[0]), Ok(()));
    }

    #[test]
    fn every_change_counts_and_no_look_does() {
        let memory = SimMemory::new(vec![0; 16], 0);
        let other = memory.clone();
        let changes: [&dyn Fn(); 4] = [
            &|| other.write(0, &[1]).unwrap(),
            &|| other.copy_from(8, &memory, 0, 8).unwrap(),
            &|| assert_eq!(other.fetch_add(8, 1), Ok(1)),
            &|| assert_eq!(other.compare_swap(8, 2, 7), Ok(2)),
        ];
        for change in changes {
            let before = memory.changes();
            change();
            assert_ne!(memory.changes(), before);
        }
        let before = memory.changes();
        memory.read(0, &mut [0; 16]).unwrap();
        assert!(memory.write(16, &[0]).is_err());
        assert_eq!((memory.view().len() as u64, memory.changes()), (memory.size(), before));
    }

    #[test]
    fn bounds_and_alignment_are_checked() {
        let memory = SimMemory::new(vec![0; 16], 0);
        assert!(memory.write(9, &[0; 8]).is_err());
        assert!(memory.copy_from(0, &memory.clone(), 12, 8).is_err());
        assert_eq!(memory.fetch_add(4, 1), Err(MemoryError::Misaligned { offset: 4 }));
        assert_eq!(memory.fetch_add(8, 5), Ok(0));
        assert_eq!(memory.compare_swap(8, 5, 9), Ok(5));
        assert_eq!(memory.compare_swap(8, 5, 1), Ok(9));
    }
}
