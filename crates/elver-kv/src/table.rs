use alloc::vec::Vec;

use elver_verbs::{Memory, MemoryError};
use thiserror::Error;

use crate::cluster::{Cluster, Link, View};
use crate::layout::CLUSTER_BYTES_MAX;
use crate::{Descriptor, DescriptorError, Key, Layout, SLOTS, TableId, Value};

/// Most clusters of a bucket.
pub const CHAIN_MAX: u32 = 8;

/// The writer of a table: the only one that changes its memory.
///
/// Peers may read at any moment. What a call changed they see when it has returned; while it runs,
/// they see the state before or after it.
#[derive(Debug)]
pub struct Table<M> {
    memory: M,
    layout: Layout,
    id: TableId,
    /// Indirect clusters that are in no chain. They are empty.
    free: Vec<u32>,
    len: u64,
}

/// An entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// Its value.
    pub value: Value,
}

impl<M: Memory> Table<M> {
    /// Creates an empty table at the start of `memory`, whatever that holds. Readers of a table that
    /// was there before learn that it is gone, if `id` has another incarnation.
    ///
    /// # Errors
    ///
    /// [`TableError::MemoryTooSmall`], or [`TableError::Memory`] if it cannot be written.
    pub fn create(memory: M, layout: Layout, id: TableId) -> Result<Table<M>, TableError> {
        let mut table = Table::create_in_zeros(memory, layout, id)?;
        for index in 0..layout.clusters() {
            table.store(index, &mut Cluster::blank(layout, &id, 0))?;
        }
        Ok(table)
    }

    /// Creates an empty table in memory that is all zeros, and touches none of it: a page takes
    /// memory once an entry stands there, so that a table may be made for many more entries than it
    /// has.
    ///
    /// # Errors
    ///
    /// [`TableError::MemoryTooSmall`].
    pub fn create_in_zeros(memory: M, layout: Layout, id: TableId) -> Result<Table<M>, TableError> {
        let (needed, given) = (layout.table_bytes(), memory.size());
        if given < needed {
            return Err(TableError::MemoryTooSmall { needed, given });
        }
        // The last is taken first.
        let free = (layout.buckets()..layout.clusters()).rev().collect();
        Ok(Table { memory, layout, id, free, len: 0 })
    }

    /// The descriptor for peers that reach the memory's first byte as `addr` with `rkey`.
    ///
    /// # Errors
    ///
    /// [`DescriptorError::Address`] if the table would end behind the last address.
    pub fn descriptor(&self, addr: u64, rkey: u32) -> Result<Descriptor, DescriptorError> {
        Descriptor::new(addr, rkey, self.layout, self.id)
    }

    /// The geometry.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Entries in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Indirect clusters that are still free.
    pub fn free_clusters(&self) -> u32 {
        self.free.len() as u32
    }

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// [`TableError::KeyLength`], or [`TableError::Memory`] if the memory cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, TableError> {
        // As a reader does: what nobody changes is not copied.
        let (mut index, mut buffer) = (self.head(key)?, [0; CLUSTER_BYTES_MAX]);
        for _ in 0..CHAIN_MAX {
            let view = self.read(index, &mut buffer)?;
            if let Some((_, value)) = view.find(key) {
                return Ok(Value::copy_from(value));
            }
            let Some(next) = view.next() else { return Ok(None) };
            index = next.index;
        }
        Err(TableError::Corrupt { cluster: index })
    }

    /// Adds an entry; its key must be new.
    ///
    /// # Errors
    ///
    /// [`TableError::KeyLength`], [`TableError::ValueTooLong`], [`TableError::KeyExists`], [`TableError::Full`], or
    /// [`TableError::Memory`] if the memory cannot be had.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        self.check_value(value)?;
        let walk = self.walk(key)?;
        if walk.hit.is_some() {
            return Err(TableError::KeyExists);
        }
        self.add(walk, key, value)
    }

    /// Replaces the value of a key that is there.
    ///
    /// # Errors
    ///
    /// [`TableError::KeyLength`], [`TableError::ValueTooLong`], [`TableError::NoSuchKey`], or [`TableError::Memory`] if
    /// the memory cannot be had.
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        self.check_value(value)?;
        let place = self.walk(key)?.hit.ok_or(TableError::NoSuchKey)?;
        self.fill(place, key, value)
    }

    /// Inserts or updates; returns whether the key is new.
    ///
    /// # Errors
    ///
    /// [`TableError::KeyLength`], [`TableError::ValueTooLong`], [`TableError::Full`], or [`TableError::Memory`] if the
    /// memory cannot be had.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TableError> {
        self.check_value(value)?;
        let mut walk = self.walk(key)?;
        match walk.hit.take() {
            Some(place) => self.fill(place, key, value).map(|()| false),
            None => self.add(walk, key, value).map(|()| true),
        }
    }

    /// Removes an entry.
    ///
    /// # Errors
    ///
    /// [`TableError::KeyLength`], [`TableError::NoSuchKey`], or [`TableError::Memory`] if the memory cannot be had.
    pub fn remove(&mut self, key: &[u8]) -> Result<(), TableError> {
        let mut place = self.walk(key)?.hit.ok_or(TableError::NoSuchKey)?;
        place.cluster.clear(place.slot);
        self.store(place.index, &mut place.cluster)?;
        self.len -= 1;
        match place.previous {
            Some(previous) if place.cluster.view().is_empty() => self.unlink(previous, &place),
            _ => Ok(()),
        }
    }

    /// All entries, in no order that means anything.
    pub fn entries(&self) -> Entries<'_, M> {
        Entries { table: self, cluster: None, next_index: 0, slot: 0 }
    }

    /// Puts a new entry where a walk found room, or in a new cluster behind the head of the chain.
    fn add(&mut self, walk: Walk, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        match walk.room {
            Some(place) => self.fill(place, key, value)?,
            None => self.extend(&walk, key, value)?,
        }
        self.len += 1;
        Ok(())
    }

    fn fill(&mut self, place: Place, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        let Place { index, mut cluster, slot, .. } = place;
        cluster.set(slot, key, value);
        self.store(index, &mut cluster)
    }

    fn extend(&mut self, walk: &Walk, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        let len = self.len;
        if walk.clusters >= CHAIN_MAX {
            return Err(TableError::ChainFull { len });
        }
        let (capacity, indirect) = (self.layout.capacity(), self.layout.indirect());
        let full = TableError::Full { len, capacity, indirect };
        let index = *self.free.last().ok_or(full)?;
        let generation = self.load(index)?.view().generation().wrapping_add(1);
        let mut head = self.load(walk.head)?;
        let mut added = Cluster::blank(self.layout, &self.id, generation);
        added.set_next(head.view().next());
        added.set(0, key, value);
        head.set_next(Some(Link { index, generation }));
        // The other way round, a reader that finds the link would find no cluster, and begin anew.
        self.store(index, &mut added)?;
        self.store(walk.head, &mut head)?;
        self.free.pop();
        Ok(())
    }

    /// Takes an empty cluster out of its chain. It keeps its link, so that a reader that stands on
    /// it finds the rest.
    fn unlink(&mut self, previous: u32, place: &Place) -> Result<(), TableError> {
        let mut before = self.load(previous)?;
        before.set_next(place.cluster.view().next());
        self.store(previous, &mut before)?;
        self.free.push(place.index);
        Ok(())
    }

    /// Goes through the chain of a key's bucket.
    fn walk(&self, key: &[u8]) -> Result<Walk, TableError> {
        let head = self.head(key)?;
        let mut walk = Walk { head, clusters: 0, hit: None, room: None };
        let (mut index, mut previous) = (head, None);
        while walk.clusters < CHAIN_MAX {
            walk.clusters += 1;
            let cluster = self.load(index)?;
            let view = cluster.view();
            let (found, room, next) = (view.find(key), view.room(), view.next());
            if let Some((slot, _)) = found {
                walk.hit = Some(Place { index, previous, cluster, slot });
                return Ok(walk);
            }
            if let (Some(slot), None) = (room, &walk.room) {
                walk.room = Some(Place { index, previous, cluster, slot });
            }
            let Some(next) = next else { return Ok(walk) };
            (previous, index) = (Some(index), next.index);
        }
        Err(TableError::Corrupt { cluster: index })
    }

    /// The first cluster of a key's chain.
    fn head(&self, key: &[u8]) -> Result<u32, TableError> {
        let (given, expected) = (key.len(), self.layout.key_len());
        if given != expected {
            return Err(TableError::KeyLength { given, expected });
        }
        Ok(self.id.bucket(key, self.layout.buckets()))
    }

    fn check_value(&self, value: &[u8]) -> Result<(), TableError> {
        let (given, max) = (value.len(), self.layout.value_len_max());
        if given > max { Err(TableError::ValueTooLong { given, max }) } else { Ok(()) }
    }

    /// Reads a cluster, and checks it.
    fn read<'a>(
        &'a self,
        index: u32,
        buffer: &'a mut [u8; CLUSTER_BYTES_MAX],
    ) -> Result<View<'a>, TableError> {
        let bytes = &mut buffer[..self.layout.cluster_bytes()];
        self.memory.read(self.layout.offset(index), bytes)?;
        let view = View::open(bytes, &self.layout, &self.id, index);
        view.map_err(|_| TableError::Corrupt { cluster: index })
    }

    fn load(&self, index: u32) -> Result<Cluster, TableError> {
        let mut buffer = [0; CLUSTER_BYTES_MAX];
        let view = self.read(index, &mut buffer)?;
        let blank = || Cluster::blank(self.layout, &self.id, 0);
        Ok(if view.is_unwritten() { blank() } else { Cluster::copy_of(&view) })
    }

    /// Writes what differs, in words, and the checksum after all else: the moment at which the new
    /// cluster becomes readable is then that of one store.
    fn store(&mut self, index: u32, cluster: &mut Cluster) -> Result<(), TableError> {
        let mut buffer = [0; CLUSTER_BYTES_MAX];
        let held = &mut buffer[..self.layout.cluster_bytes()];
        let start = self.layout.offset(index);
        self.memory.read(start, held)?;
        let words = cluster.seal(&self.id, index).chunks_exact(8).zip(held.chunks_exact(8));
        let mut changed = words.enumerate().filter(|(_, (new, old))| new != old);
        // It stands first, and changes whenever anything does.
        let checksum = changed.next();
        for (at, (word, _)) in changed.chain(checksum) {
            self.memory.write(start + 8 * at as u64, word)?;
        }
        Ok(())
    }
}

/// What a walk through a chain found.
struct Walk {
    head: u32,
    clusters: u32,
    hit: Option<Place>,
    /// The first empty entry.
    room: Option<Place>,
}

/// An entry, in a copy of its cluster.
struct Place {
    index: u32,
    /// The cluster before it in the chain; none for the head.
    previous: Option<u32>,
    cluster: Cluster,
    slot: usize,
}

/// The entries of a table; see [`Table::entries`].
#[derive(Debug)]
pub struct Entries<'a, M> {
    table: &'a Table<M>,
    cluster: Option<Cluster>,
    next_index: u32,
    slot: usize,
}

impl<M: Memory> Iterator for Entries<'_, M> {
    type Item = Result<Entry, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(cluster) = &self.cluster {
                while self.slot < SLOTS {
                    let entry = cluster.view().entry(self.slot);
                    self.slot += 1;
                    if let Some(entry) = entry.and_then(copy_of_entry) {
                        return Some(Ok(entry));
                    }
                }
            }
            // Free clusters are empty, so that every cluster may be looked at.
            if self.next_index >= self.table.layout.clusters() {
                return None;
            }
            let cluster = self.table.load(self.next_index);
            (self.next_index, self.slot) = (self.next_index + 1, 0);
            match cluster {
                Ok(cluster) => self.cluster = Some(cluster),
                Err(error) => {
                    self.cluster = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

fn copy_of_entry((key, value): (&[u8], &[u8])) -> Option<Entry> {
    Some(Entry { key: Key::copy_from(key)?, value: Value::copy_from(value)? })
}

/// Why a call on a table was refused. Nothing changed, unless the memory itself failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// The layout needs more.
    #[error("the table needs {needed} bytes of memory, and has {given}")]
    MemoryTooSmall {
        /// Bytes of the layout.
        needed: u64,
        /// Bytes of the memory.
        given: u64,
    },
    /// The table's keys have another length.
    #[error("key of {given} bytes in a table of keys of {expected} bytes")]
    KeyLength {
        /// Bytes of the key.
        given: usize,
        /// Bytes of the table's keys.
        expected: usize,
    },
    /// The value is longer than the layout allows.
    #[error("value of {given} bytes in a table of values of at most {max} bytes")]
    ValueTooLong {
        /// Bytes of the value.
        given: usize,
        /// Most that an entry takes.
        max: usize,
    },
    /// There is an entry of this key.
    #[error("the key is in the table already; update it")]
    KeyExists,
    /// There is no entry of this key.
    #[error("the key is not in the table; insert it")]
    NoSuchKey,
    /// The key's bucket is full, and no indirect cluster is left.
    #[error(
        "no room for the key: the table holds {len} entries, is meant for {capacity}, and all its \
         {indirect} indirect clusters are in use; create a larger one"
    )]
    Full {
        /// Entries in the table.
        len: u64,
        /// Entries at the recommended load.
        capacity: u64,
        /// Indirect clusters of the layout.
        indirect: u32,
    },
    /// The key's bucket has as many clusters as a reader follows.
    #[error(
        "no room for the key: its bucket has {CHAIN_MAX} full clusters, and the table holds {len} \
         entries; create a larger one, or one of another seed"
    )]
    ChainFull {
        /// Entries in the table.
        len: u64,
    },
    /// Somebody else changed the table's memory.
    #[error("cluster {cluster} was overwritten by another than the table; create the table anew")]
    Corrupt {
        /// Index of the cluster.
        cluster: u32,
    },
    /// The memory refused an access.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
