//! A hash table in a region, which peers read by themselves (feature `kv`): [`elver_kv`]'s, in the manner of DrTM-KV,
//! over a session's memory and a VQP.
//!
//! The owner keeps a [`Store`]: it inserts, updates and removes, and answers nobody. A client gets the store's
//! [`Descriptor`] by whatever way it likes, 40 bytes, and looks keys up with a [`Reader`]: one READ for nearly every
//! key. A READ that meets the owner's writing is found out and made again; whatever lies in the owner's memory, a
//! look-up ends, reads nothing but the table, and gives a value that the owner has put under that key, or an error.
//!
//! ```no_run
//! use elver::kv::{Layout, Reader, Store};
//! use elver::Session;
//! # fn main() -> Result<(), elver::Error> {
//! // The owner: keys of 16 bytes, values of up to 40.
//! let session = Session::connect_default()?;
//! let mut store = Store::alloc(&session, Layout::for_capacity(1000, 16, 40)?)?;
//! store.put(&[1; 16], b"a value")?;
//! let (gid, descriptor) = (session.gid(), store.descriptor()?);
//!
//! // A client, which knows these two.
//! let session = Session::connect_default()?;
//! let mut reader = Reader::connect(&session, gid, descriptor)?;
//! assert_eq!(reader.get(&[1; 16])?.as_deref(), Some(&b"a value"[..]));
//! # Ok(())
//! # }
//! ```

mod reader;
mod region;
mod store;

pub use elver_kv::{
    DESCRIPTOR_BYTES, Descriptor, DescriptorError, Entry, Key, Layout, LayoutError, LookupError,
    Table, TableError, TableId, Value,
};
pub use reader::{Reader, ReaderCounters};
pub use region::Region;
pub use store::Store;
