//! Requests that somebody waits for, and their answers.

use elver_portal::{RefusalCode, Via, VqpInfo, VqpOptions};
use elver_verbs::QpState;

use crate::Error;
use crate::arena::Piece;
use crate::direct::Way;

pub(super) struct Awaited {
    pub(super) request: u32,
    /// The VQP that the answer connects.
    pub(super) connects: Option<u32>,
    /// What that VQP was before, if it was connected: a connect that the node refuses to begin leaves it as it was.
    pub(super) before: Option<Before>,
    /// What the VQP is made with that the answer names, where its connect is under way.
    pub(super) creates: Option<VqpOptions>,
    pub(super) outcome: Option<Outcome>,
    /// The outcome was told; it stays for whoever asks again.
    pub(super) told: bool,
    /// Nobody will ask: it goes when the answer comes, which the VQP must know, and what was made is undone.
    pub(super) abandoned: bool,
    /// What stays in use until then.
    pub(super) piece: Option<Piece>,
}

/// A VQP that is being connected anew, as it was.
pub(super) struct Before {
    pub(super) state: QpState,
    pub(super) failure: Option<(RefusalCode, String)>,
    pub(super) failure_told: bool,
    pub(super) way: Way,
}

impl Awaited {
    pub(super) fn new(request: u32) -> Awaited {
        Awaited {
            request,
            connects: None,
            before: None,
            creates: None,
            outcome: None,
            told: false,
            abandoned: false,
            piece: None,
        }
    }
}

/// An answer, as its receiver keeps it.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Done,
    Vqp(u32),
    Port(u16),
    Connected(Via),
    Warmed { ready: u32, failed: u32 },
    Mr { lkey: u32, rkey: u32, file_bytes: u64 },
    Info(VqpInfo),
    Prepared { set: u32, file_bytes: u64 },
    Refused { code: RefusalCode, text: String },
}

impl Outcome {
    pub(super) fn into_result(self) -> Result<Outcome, Error> {
        match self {
            Outcome::Refused { code, text } => Err(Error::Refused { code, text }),
            outcome => Ok(outcome),
        }
    }
}

/// The number of the next request; 0 is nobody's.
pub(super) fn next(last: &mut u32) -> u32 {
    *last = last.checked_add(1).unwrap_or(1);
    *last
}
