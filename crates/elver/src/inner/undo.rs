//! What the node made for requests that nobody waits for any more is undone, and it is told what was dropped, once there is
//! room.

use super::awaited::next;
use super::late::Late;
use super::{Inner, Outcome};
use crate::Error;
use crate::arena::Piece;

#[cfg(test)]
mod tests;

impl Inner {
    /// Undoes what the node made for a request, which came too late for who had asked.
    #[cold]
    pub(super) fn undo(
        &mut self,
        request: u32,
        outcome: &Outcome,
        piece: Option<Piece>,
    ) -> Result<(), Error> {
        match *outcome {
            Outcome::Vqp(vqp) => self.late.push_back(Late::Vqp(vqp)),
            Outcome::Mr { lkey, file_bytes, .. } => {
                self.late.push_back(Late::Region { lkey, piece });
                if file_bytes > 0 {
                    self.link.drop_file(request)?;
                }
            }
            Outcome::Prepared { set, .. } => {
                self.late.push_back(Late::Set(set));
                self.link.drop_file(request)?;
            }
            Outcome::Refused { .. } => {
                if let Some(piece) = piece {
                    self.arena.give_back(piece);
                }
            }
            Outcome::Done
            | Outcome::Port(_)
            | Outcome::Connected(_)
            | Outcome::Warmed { .. }
            | Outcome::Info(_) => {}
        }
        Ok(())
    }

    /// Tells what there is room for.
    #[cold]
    pub(super) fn tell_late(&mut self) -> Result<(), Error> {
        while let Some(late) = self.late.front() {
            // No number is used up while there is no room.
            let mut request = self.last_request;
            if !self.link.command(next(&mut request), &late.command())? {
                break;
            }
            self.last_request = request;
            if let Some(Late::Region { piece: Some(piece), .. }) = self.late.pop_front() {
                self.leaving.push((request, piece));
            }
        }
        self.ring()
    }
}
