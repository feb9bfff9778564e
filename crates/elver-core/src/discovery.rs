//! What is known of other nodes, and how it is found out: the DCCache, look-ups by READs, meta servers
//! (section 4.2).

pub(crate) mod guesses;
mod known;
pub(crate) mod lookups;
pub(crate) mod meta;
pub(crate) mod news;
mod own_table;
pub(crate) mod peer;
pub(crate) mod served;
pub(crate) mod servers;
pub(crate) mod strangers;
