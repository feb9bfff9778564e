//! The tail probe: one packet that finds out whether a silent peer is slow or packets are lost.

use elver_verbs::Memory;

use super::{ACK_REQUEST_INTERVAL, Env, Lane};
use crate::Transmit;

impl Lane {
    /// Writes the oldest unacknowledged packet once more, asks for an acknowledgement, and leaves
    /// everything as it was: the window has no part in it, and what follows is not sent again.
    pub(super) fn probe<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        if self.next_psn == self.una {
            return None;
        }
        let pool = &*env.pool;
        let slot = *self.queue.iter().find(|slot| pool.get(**slot).outcome.is_none())?;
        let (next_psn, unasked) = (self.next_psn, self.unasked);
        let (charged, reads) = (self.charged, self.reads.len());
        self.next_psn = self.una;
        self.unasked = ACK_REQUEST_INTERVAL;
        let probe = self.emit(env, slot, buf);
        self.next_psn = next_psn;
        self.unasked = unasked;
        if let Some(route) = self.path(env.core) {
            env.hw.paths.forgotten(route.path, self.charged - charged);
        }
        self.charged = charged;
        self.reads.truncate(reads);
        probe
    }
}
