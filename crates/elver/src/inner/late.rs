//! What the node is told once there is room: of what it made for requests that nobody waits for any more, and of what was
//! dropped while it stood still.

use elver_portal::Command;

use super::asking::next;
use super::{Inner, Outcome};
use crate::Error;
use crate::arena::Piece;

#[cfg(test)]
mod tests;

/// What is to go.
#[derive(Debug)]
pub(crate) enum Late {
    Vqp(u32),
    Region { lkey: u32, piece: Option<Piece> },
    Set(u32),
}

impl Late {
    fn command(&self) -> Command<'static> {
        match *self {
            Late::Vqp(vqp) => Command::DestroyVqp { vqp },
            Late::Region { lkey, .. } => Command::DeregisterMr { lkey },
            Late::Set(set) => Command::Disown { set },
        }
    }
}

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

    /// Tells the node that something was dropped: at once, or when it takes what it is told. If it is gone, so is what was
    /// dropped.
    pub(crate) fn let_go(&mut self, gone: Late) {
        if let Late::Region { lkey, .. } = gone {
            self.regions.remove(lkey);
        }
        if !self.is_own() {
            return;
        }
        self.late.push_back(gone);
        // Who drops much waits for a node that stands still but once.
        let mut wait = self.link.patient();
        while self.tell_late().is_ok() && !self.late.is_empty() && !self.is_unheard {
            if self.make_room(&mut wait).is_err() {
                self.is_unheard = true;
            }
        }
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
