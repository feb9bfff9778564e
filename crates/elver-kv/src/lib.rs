//! A hash table in registered memory that peers read with one-sided READs alone, in the manner of
//! DrTM-KV (Wei et al., SOSP 2015), the table that KRCORE's meta servers keep DCT metadata and
//! ValidMR in (USENIX ATC 2022, sections 3.1 and 4.2). From there are the clusters of eight, their
//! chains and the shared indirect clusters. DrTM-KV keeps values apart, which costs a READ more, and
//! has hardware transactions abort a writer that a READ meets; here values are small and stand in
//! the clusters, and a reader finds out by itself that it met the writer.
//!
//! One writer owns the memory: [`Table`] inserts, updates and removes. Any number of peers hold a
//! [`Descriptor`], which reaches them out of band, and look keys up with [`Lookup`], a state machine
//! that does no IO: it says which READ to post and takes the bytes that came. A key costs one READ
//! in about 99 of 100 cases at the recommended load, and two in nearly all others.
//!
//! # Layout
//!
//! Keys are hashed to buckets. A bucket is a chain of clusters of eight entries each: first the one
//! at the bucket's own place, then, if that overflowed, indirect ones from a free list.
//!
//! ```text
//!   table    ┌───────────┬───────────┬─────┬───────────────┬───────────────┬─────┐
//!            │ cluster 0 │ cluster 1 │ ... │ cluster B     │ cluster B + 1 │ ... │
//!            └───────────┴─────┬─────┴─────┴───────▲───────┴───────────────┴─────┘
//!             B buckets        └── next ───────────┘  I indirect clusters
//!
//!   cluster  bytes
//!            0  ┌────────────────────────────────────────┐
//!               │ checksum                             8 │  of all below and of the cluster's index
//!            8  ├────────────────────────────────────────┤
//!               │ incarnation of the table             4 │
//!            12 │ generation: how often it was linked  4 │
//!            16 │ next: index of the next cluster      4 │  0 for none
//!            20 │ generation of the next cluster       4 │
//!            24 │ lengths, one an entry                8 │  0 for an empty entry, else 1 + length
//!            32 ├────────────────────────────────────────┤
//!               │ 8 entries: key (K), value (up to V)    │  8 (K + V)
//!               └────────────────────────────────────────┘  and zeros up to a multiple of 8
//! ```
//!
//! Where all is 0 nothing was ever stored: it reads as a cluster without entries at the end of its
//! chain, so that what a table does not use yet takes no memory ([`Table::create_in_zeros`]).
//!
//! Integers are little-endian. All keys of a table have one length; values have a common upper
//! bound. Short values make fast READs: with a GID as the key (16 bytes) and a DCT's number and
//! access key as the value (12 bytes) a cluster is 256 bytes, and with a core's record of a node (22
//! bytes) 336. No layout needs more than 800, so that a READ's answer is one packet at a
//! path MTU of 1024.
//!
//! # Reading while the writer writes
//!
//! A READ is no snapshot: it may meet any byte before or after any step of the writer, and a
//! retransmitted one may mix bytes that are milliseconds apart. So a reader trusts no order, only
//! the checksum: 64 bits over the whole cluster, of rapidhash (V3 micro, in its protected form),
//! keyed by the table's seed, its incarnation and the cluster's index. A mixture passes by chance
//! alone, with a probability of 2^-64 whatever its granularity; a reader that gets one reads the
//! cluster again. All zeros pass too: the first change of a cluster leaves none of the words that it
//! writes 0, so that each of them was read before it was written, and the READ began before the
//! change was complete.
//!
//! That is a guard against accidents. Who knows the seed can find bytes with a wanted checksum, as
//! with any hash that peers are told the key of: but it is the writer that seals clusters, and
//! whoever else could write them could seal them too. A cryptographic hash would take five times as
//! long, which is a good part of a look-up.
//!
//! A cluster that passes was as it is read at the moment at which the checksum's word was read: the
//! writer changes that word last. Three rules make whole chains consistent, so that a miss is a miss:
//!
//! - an entry never moves to another cluster;
//! - a cluster joins a chain right behind its head, complete before the link to it is written, and
//!   leaves it only when it is empty;
//! - a link names the generation of its target, which changes each time the cluster is taken from
//!   the free list. A reader that finds another one starts again at the head.
//!
//! A look-up therefore gives what the table held at one moment between its first READ and its last.
//! This takes stores that peers see in the order in which the writer makes them; a memory whose
//! stores of aligned 8-byte words release gives that, and the writer stores nothing else.
//!
//! This is for one writer at a time. Its own copy of the free list lives outside of the memory: a
//! writer that starts anew creates the table anew, under another incarnation, and readers of the old
//! one learn that it is gone.
//!
//! # What a peer may send
//!
//! Every READ of a look-up lies inside the table that the descriptor names, whatever the bytes say,
//! and there are at most [`READS_MAX`] of them. Bytes that no table holds end it with an error.
//!
//! # Example
//!
//! ```
//! use elver_kv::{Descriptor, Layout, Lookup, Step, Table, TableId};
//! use elver_soft::SoftMemory;
//! use elver_verbs::Memory;
//!
//! // The writer: room for 1000 DCTs, named by their GIDs.
//! let layout = Layout::for_capacity(1000, 16, 12)?;
//! let memory = SoftMemory::alloc(layout.table_bytes())?;
//! let id = TableId { seed: 0x1234, incarnation: 1 }; // from the OS's random generator
//! let mut table = Table::create_in_zeros(memory.clone(), layout, id)?;
//! table.insert(&[1; 16], &[2; 12])?;
//! let (addr, rkey) = (memory.base_addr(), 7); // of the registered region
//! let out_of_band = table.descriptor(addr, rkey)?.encode();
//!
//! // The reader.
//! let descriptor = Descriptor::decode(&out_of_band)?;
//! let mut lookup = Lookup::new(&descriptor, &[1; 16])?;
//! let value = loop {
//!     let read = lookup.read();
//!     let mut bytes = vec![0; read.len as usize];
//!     memory.read(read.offset, &mut bytes)?; // in place of a READ of `read.remote`
//!     if let Step::Done(value) = lookup.feed(&bytes)? {
//!         break value;
//!     }
//! };
//! assert_eq!(value.as_deref(), Some(&[2; 12][..]));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bytes;
mod cluster;
mod descriptor;
mod id;
mod layout;
mod lookup;
mod table;

pub use bytes::{Key, ShortBytes, Value};
pub use descriptor::{DESCRIPTOR_BYTES, Descriptor, DescriptorError};
pub use id::TableId;
pub use layout::{KEY_LEN_MAX, Layout, LayoutError, SLOTS, VALUE_LEN_MAX};
pub use lookup::{Lookup, LookupError, READS_MAX, Read, Step};
pub use table::{CHAIN_MAX, Entries, Entry, Table, TableError};
