//! A node that has gone.

use super::World;
use crate::conn::{Conn, Phase};

impl World {
    /// Lets go of a node that has gone, once nothing is left that it carried: the next offer looks for another one. Whoever
    /// waited would be woken without end by its socket.
    pub(super) fn leave_dead_node(&mut self) {
        let is_carried = |conn: &Conn| {
            matches!(
                conn.phase,
                Phase::Offered { .. } | Phase::Connecting { .. } | Phase::Carried(_)
            )
        };
        if self.link.as_ref().is_some_and(|link| link.is_orphan() && !link.has_pending())
            && self.closing.is_empty()
            && !self.conns.values().any(is_carried)
        {
            self.link = None;
        }
    }
}
