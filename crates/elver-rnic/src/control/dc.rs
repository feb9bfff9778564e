//! What only DC queue pairs have: streams, and contexts of initiators.

use alloc::vec::Vec;

use elver_verbs::{Memory, Qp, QpState, QpType, Time, VerbsError};

use crate::Rnic;
use crate::qp::QueuePair;

impl<M: Memory> Rnic<M> {
    /// Streams of a DCI that failed and were not set going again.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such QP.
    pub fn errored_streams(&self, qp: Qp) -> Result<u32, VerbsError> {
        Ok(self.qps.require(qp.0)?.errored_streams)
    }

    /// Sets an errored stream of a DCI going again.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InvalidArgument`] of what is no DCI, or is not in RTS.
    pub fn reset_dci_stream(
        &mut self,
        _now: Time,
        qp: Qp,
        stream_id: u16,
    ) -> Result<(), VerbsError> {
        let queue_pair = self.qps.require_mut(qp.0)?;
        let core = &queue_pair.core;
        if core.qp_type != QpType::Dci {
            return Err(VerbsError::InvalidArgument { what: "only a DCI has streams" });
        }
        if core.state != QpState::Rts {
            return Err(VerbsError::InvalidArgument {
                what: "the DCI is not in RTS; move it through RESET instead",
            });
        }
        let count = queue_pair.lanes.len();
        let lane = &mut queue_pair.lanes[usize::from(stream_id) % count];
        if lane.errored {
            lane.errored = false;
            queue_pair.errored_streams -= 1;
        }
        Ok(())
    }

    /// Initiators that a DCT holds a context for.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such QP.
    pub fn dct_contexts(&self, qp: Qp) -> Result<usize, VerbsError> {
        Ok(self.qps.require(qp.0)?.dct.as_ref().map_or(0, |dct| dct.len()))
    }

    /// Has all DCTs give up the contexts that they would for initiators who need room: of those that were silent
    /// for [`crate::Config::dc_context_idle_ns`]. How many.
    pub fn make_room(&mut self) -> u32 {
        let mut given_up = 0;
        let ids: Vec<u32> = self.qps.ids().collect();
        for id in ids {
            let Some(queue_pair) = self.qps.get_mut(id) else { continue };
            let QueuePair { core, dct: Some(dct), .. } = queue_pair else { continue };
            while dct.reclaim(core, &mut self.hw) {
                given_up += 1;
            }
        }
        given_up
    }
}
