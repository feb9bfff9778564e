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

use self::guesses::Guesses;
use self::lookups::Lookups;
use self::served::ServedTable;

/// What this node finds out of others, and tells others of all nodes.
pub(crate) struct Discovery<M> {
    pub(crate) lookups: Lookups,
    /// Who presents keys of peers' regions that are none.
    pub(crate) guesses: Guesses,
    /// The table of all nodes, if this is a meta server.
    pub(crate) served: Option<ServedTable<M>>,
}

impl<M> Discovery<M> {
    pub(crate) fn new(lookups: Lookups) -> Discovery<M> {
        Discovery { lookups, guesses: Guesses::default(), served: None }
    }
}
