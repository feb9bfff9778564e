//! What a process tells its peers of itself, in a file that they map read-only: its regions, its
//! connected QPs, and whether it is reaching into somebody's memory just now.
//!
//! Each word has one writer, the process whose table it is. Who reads copies an entry and looks whether
//! it was being written meanwhile; a writer that was killed leaves an entry that nobody reads. Nothing
//! in it is believed beyond what the kernel checks when memory is reached.

mod entry;
#[cfg(test)]
mod model;
mod presence;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use elver_soft::allow_file;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use self::entry::{Entry, WORDS};
pub(crate) use self::presence::Inside;
use self::presence::{Epoch, Sleeps};
use super::mapped::{Mapped, Shared};

/// Entries of each kind. Those beyond are not told, and are reached by packets.
const QPS: usize = 1 << 12;
const REGIONS: usize = 1 << 14;
/// What a table begins with: it changes whenever what follows does.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"ELVERd02");

#[repr(C)]
pub(crate) struct Layout {
    magic: AtomicU64,
    epoch: Epoch,
    sleeps: Sleeps,
    qps: [Entry; QPS],
    regions: [Entry; REGIONS],
}

/// Which entry: by the number of a QP, or by a key. Numbers of a device share their low bits with no other as
/// long as there are few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Qp(u32),
    Region(u32),
}

impl Layout {
    fn entry(&self, name: Name) -> &Entry {
        match name {
            Name::Qp(qpn) => &self.qps[qpn as usize % QPS],
            Name::Region(rkey) => &self.regions[(rkey >> 8) as usize % REGIONS],
        }
    }
}

/// The first word of what is told of something: its number, and that it is there.
fn there(name: Name) -> u64 {
    let (Name::Qp(number) | Name::Region(number)) = name;
    1 << 32 | u64::from(number)
}

// SAFETY: it consists of atomic integers.
unsafe impl Shared for Layout {}

/// This process's table.
pub(crate) struct Table {
    mapped: Mapped<Layout>,
    pub(crate) file: OwnedFd,
    writing: Mutex<()>,
}

impl Table {
    pub(crate) fn new() -> Result<Table, Errno> {
        let file = memfd_create("elver-direct", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        allow_file(size_of::<Layout>() as u64)?;
        rustix::fs::ftruncate(&file, size_of::<Layout>() as u64)?;
        let mapped = Mapped::<Layout>::of(&file, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        mapped.get().magic.store(MAGIC, Ordering::Release);
        Ok(Table { mapped, file, writing: Mutex::new(()) })
    }

    /// Where it begins, with [`MAGIC`].
    pub(crate) fn address(&self) -> u64 {
        self.mapped.address()
    }

    /// Tells peers of something. What has no place they do not learn of.
    pub(crate) fn tell(&self, name: Name, rest: [u64; WORDS - 1]) -> bool {
        let mut words = [0; WORDS];
        words[0] = there(name);
        words[1..].copy_from_slice(&rest);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.mapped.get().entry(name);
        let taken = entry.words[0].load(Ordering::Relaxed);
        if taken != 0 && taken != words[0] {
            return false;
        }
        entry.write(&words);
        true
    }

    /// Takes back what was told; returns it. Peers that are reaching for it just now are not waited for.
    pub(crate) fn take_back(&self, name: Name) -> Option<[u64; WORDS - 1]> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.mapped.get().entry(name);
        let words = entry.own();
        if words[0] != there(name) {
            return None;
        }
        entry.write(&[0; WORDS]);
        Epoch::<AtomicU64>::taken_back();
        Some(std::array::from_fn(|at| words[at + 1]))
    }

    /// Says whether this process is to be woken; who does so before he sleeps looks once more at what was
    /// sent. One thread at a time.
    pub(crate) fn sleep(&self, sleeps: bool) {
        self.mapped.get().sleeps.say(sleeps);
    }

    /// Goes in: until the value goes this process may be reaching into a peer's memory. One thread at a
    /// time.
    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.mapped.get().epoch.enter()
    }
}

/// For who has sent something, before he asks [`View::sleeps`].
#[inline]
pub(crate) fn before_looking_whether_he_sleeps() {
    Sleeps::<AtomicU64>::sent();
}

/// A peer's table.
pub(crate) struct View(Mapped<Layout>);

impl View {
    /// Maps a peer's table, if it is one that cannot become shorter.
    pub(crate) fn new(file: OwnedFd) -> Result<View, Errno> {
        let sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        let size = rustix::fs::fstat(&file)?.st_size;
        if !sealed || size as u64 != size_of::<Layout>() as u64 {
            return Err(Errno::INVAL);
        }
        let view = View(Mapped::of(&file, ProtFlags::READ)?);
        match view.0.get().magic.load(Ordering::Acquire) {
            MAGIC => Ok(view),
            _ => Err(Errno::INVAL),
        }
    }

    /// What the peer tells of something, from within [`Table::enter`].
    #[inline]
    pub(crate) fn look_up(&self, name: Name) -> Option<[u64; WORDS - 1]> {
        let words = self.0.get().entry(name).read()?;
        (words[0] == there(name)).then(|| std::array::from_fn(|at| words[at + 1]))
    }

    /// Whether the peer is to be woken.
    #[inline]
    pub(crate) fn sleeps(&self) -> bool {
        self.0.get().sleeps.are_said()
    }

    /// Odd while the peer may be reaching into the memory of others, and another number each time.
    pub(crate) fn epoch(&self) -> u64 {
        self.0.get().epoch.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(table: &Table) -> View {
        View::new(table.file.try_clone().unwrap()).unwrap()
    }

    #[test]
    fn a_peer_sees_what_was_told_and_not_what_was_taken_back() {
        let table = Table::new().unwrap();
        let view = view(&table);
        let (mine, other) = (Name::Region(0x1234_5607), Name::Region(0x1234_5608));
        assert!(table.tell(mine, [1, 2, 3, 4, 5, 6]));
        assert_eq!(view.look_up(mine), Some([1, 2, 3, 4, 5, 6]));
        // Another generation of the key.
        assert_eq!(view.look_up(other), None);
        // Another key in the same place.
        assert!(!table.tell(Name::Region(0x1234_5607 ^ 0x8000_0000), [0; 6]));
        assert_eq!(table.take_back(other), None);
        assert_eq!(table.take_back(mine), Some([1, 2, 3, 4, 5, 6]));
        assert_eq!((view.look_up(mine), table.take_back(mine)), (None, None));
    }

    #[test]
    fn an_entry_whose_writer_died_is_not_read() {
        let table = Table::new().unwrap();
        let view = view(&table);
        let name = Name::Qp(77);
        assert!(table.tell(name, [7; 6]));
        let entry = table.mapped.get().entry(name);
        entry.lap.fetch_add(1, Ordering::Relaxed);
        entry.words[2].store(8, Ordering::Relaxed);
        assert_eq!(view.look_up(name), None);
    }

    #[test]
    fn epochs_are_odd_inside() {
        let table = Table::new().unwrap();
        let view = view(&table);
        for _ in 0..3 {
            let before = view.epoch();
            assert_eq!(before % 2, 0);
            let inside = table.enter();
            assert_eq!(view.epoch(), before + 1);
            drop(inside);
            assert_eq!(view.epoch(), before + 2);
        }
    }

    #[test]
    fn who_maps_a_table_cannot_write_it_and_files_that_shrink_are_refused() {
        let table = Table::new().unwrap();
        let writable = Mapped::<Layout>::of(&table.file, ProtFlags::READ | ProtFlags::WRITE);
        assert_eq!(writable.err(), Some(Errno::PERM));
        let file = memfd_create("shrinks", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, size_of::<Layout>() as u64).unwrap();
        assert_eq!(View::new(file).err(), Some(Errno::INVAL));
    }

    /// What is read was written in one piece.
    #[test]
    fn entries_are_not_torn() {
        let table = Table::new().unwrap();
        let view = view(&table);
        let name = Name::Qp(5);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..100_000 {
                    assert!(table.tell(name, [round; 6]));
                }
            });
            let mut seen = 0;
            while !writer.is_finished() || seen == 0 {
                if let Some(words) = view.look_up(name) {
                    assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                    seen += 1;
                }
            }
        });
    }
}
