//! What is known of other nodes, and how it is found out: the DCCache, look-ups by READs, meta servers
//! (section 4.2).

pub(crate) mod lookup;
pub(crate) mod meta;
pub(crate) mod peer;
pub(crate) mod servers;
pub(crate) mod strangers;
