//! What the node is told once there is room: of what it made for requests that nobody waits for any more, and of what was
//! dropped while it stood still.

use elver_portal::Command;

use crate::arena::Piece;

/// What is to go.
#[derive(Debug)]
pub(crate) enum Late {
    Vqp(u32),
    Region { lkey: u32, piece: Option<Piece> },
    Set(u32),
}

impl Late {
    pub(super) fn command(&self) -> Command<'static> {
        match *self {
            Late::Vqp(vqp) => Command::DestroyVqp { vqp },
            Late::Region { lkey, .. } => Command::DeregisterMr { lkey },
            Late::Set(set) => Command::Disown { set },
        }
    }
}
