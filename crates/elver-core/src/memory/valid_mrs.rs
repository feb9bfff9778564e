use elver_kv::Table;
use elver_verbs::{AccessFlags, Memory, MrInfo, VerbsError};

use crate::memory::mr_store::RemoteMr;

/// ValidMR: the table in which peers find the regions that are open to them (section 4.2).
#[derive(Debug)]
pub(crate) struct ValidMrs<M> {
    table: Table<M>,
}

impl<M: Memory> ValidMrs<M> {
    /// In an empty table with a place for each region that there may be.
    pub(crate) fn new(table: Table<M>) -> ValidMrs<M> {
        ValidMrs { table }
    }

    /// Lets peers find a region.
    pub(crate) fn open(&mut self, info: &MrInfo, access: AccessFlags) -> Result<(), VerbsError> {
        let what = "the device's memory does not hold a table";
        let value = RemoteMr::encode(info.addr, info.length, access);
        let put = self.table.put(&info.rkey.to_le_bytes(), &value);
        put.map(|_| ()).map_err(|_| VerbsError::InvalidArgument { what })
    }

    /// Nobody finds a region any longer that was open.
    pub(crate) fn close(&mut self, rkey: u32) {
        if self.table.remove(&rkey.to_le_bytes()).is_err() {
            bug!("a region that is open is not in ValidMR");
        }
    }
}
