use std::ops::{Deref, DerefMut};

use elver_kv::{Descriptor, Layout, Table, TableId};
use elver_verbs::AccessFlags;

use super::Region;
use crate::Error;
use crate::{Mr, Session};

/// What peers may do with a store: the owner alone writes it.
const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ);

/// A table in a region of a session's: a [`Table`], whose calls it has, and the region that it stands in. Dropped, it is
/// deregistered: look-ups fail then, once what peers know of the region has run out.
#[derive(Debug)]
pub struct Store {
    table: Table<Region>,
    region: Region,
}

impl Store {
    /// An empty store in memory that the node makes. What is not used of it yet takes none.
    ///
    /// # Errors
    /// As [`Session::alloc`].
    pub fn alloc(session: &Session, layout: Layout) -> Result<Store, Error> {
        let region = Region::new(session.alloc(layout.table_bytes(), ACCESS)?);
        let table = Table::create_in_zeros(region.clone(), layout, id()?)?;
        Ok(Store { table, region })
    }

    /// An empty store at the beginning of a region of any kind, whatever that holds. It must be open to REMOTE_READ, and
    /// to no REMOTE_WRITE unless peers may break it. Readers of a store that was there before learn that it is gone.
    ///
    /// # Errors
    /// [`super::TableError::MemoryTooSmall`]; [`Error::Invalid`] if words of the region are
    /// not aligned to 8 bytes, so that readers would meet halves of them.
    pub fn in_region(mr: Mr, layout: Layout) -> Result<Store, Error> {
        if !mr.addr().is_multiple_of(8) {
            let what = "a table's region begins at a multiple of 8 bytes; allocate it so";
            return Err(Error::Invalid { what });
        }
        let region = Region::new(mr);
        let table = Table::create(region.clone(), layout, id()?)?;
        Ok(Store { table, region })
    }

    /// All that a reader must know. It is the same for as long as the store is there.
    ///
    /// # Errors
    /// [`Error::Descriptor`]; none that a region of this process's causes.
    pub fn descriptor(&self) -> Result<Descriptor, Error> {
        let mr = self.region.mr();
        Ok(self.table.descriptor(mr.addr(), mr.rkey())?)
    }

    /// The region that it stands in.
    pub fn mr(&self) -> &Mr {
        self.region.mr()
    }

    /// Deregisters the store, and returns when no reader can reach the memory any more.
    ///
    /// # Errors
    /// As [`Mr::deregister`].
    pub fn close(self) -> Result<(), Error> {
        let Store { table, region } = self;
        drop(table);
        // There is no other clone: the table had the other one.
        region.into_mr().map_or(Ok(()), Mr::deregister)
    }
}

impl Deref for Store {
    type Target = Table<Region>;

    fn deref(&self) -> &Table<Region> {
        &self.table
    }
}

impl DerefMut for Store {
    fn deref_mut(&mut self) -> &mut Table<Region> {
        &mut self.table
    }
}

/// Another than all before: nobody aims keys at one bucket, and readers of older tables learn that they are gone.
fn id() -> Result<TableId, Error> {
    let mut bytes = [0; 12];
    // So few are never given in part.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::System { call: "getrandom", reason: error.into() })?;
    let [seed @ .., a, b, c, d] = bytes;
    Ok(TableId { seed: u64::from_ne_bytes(seed), incarnation: u32::from_ne_bytes([a, b, c, d]) })
}
