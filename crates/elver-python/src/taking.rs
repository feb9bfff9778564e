//! Taking what the node told of a VQP.

use elver::{Error, Vqp, Wc};

use crate::memory::Piece;

/// Completions that are taken at once.
pub(crate) const TAKEN: usize = 16;

/// Takes all completions of a VQP that are there.
pub(crate) fn take_completions(vqp: &Vqp, mut came: impl FnMut(&[Wc])) -> Result<(), Error> {
    let mut wcs = [Wc::default(); TAKEN];
    loop {
        let taken = vqp.poll_cq(&mut wcs)?;
        came(&wcs[..taken]);
        if taken < TAKEN {
            return Ok(());
        }
    }
}

/// What is under way by a VQP that its bound one keeps, and nobody else: a task gave it up, and has let the VQP go. It holds no
/// session's [`crate::waits::Waits`], whose it is.
pub(crate) struct Left {
    vqp: Vqp,
    /// The memory of each operation.
    pieces: Vec<(u64, Piece)>,
}

impl Left {
    pub(crate) fn new(vqp: Vqp, pieces: Vec<(u64, Piece)>) -> Left {
        Left { vqp, pieces }
    }

    /// Takes what was told, with which memory goes; whether nothing is under way any more.
    pub(crate) fn take(&mut self) -> Result<bool, Error> {
        let pieces = &mut self.pieces;
        take_completions(&self.vqp, |wcs| {
            pieces.retain(|(id, _)| wcs.iter().all(|wc| wc.wr_id != *id));
        })?;
        // All that it had comes back before it is told why it failed.
        Ok(self.vqp.failure().is_some() || self.pieces.is_empty())
    }

    pub(crate) fn into_pieces(self) -> Vec<(u64, Piece)> {
        self.pieces
    }
}
