use elver_wire::NakCode;

use crate::counters::Counters;
use crate::place::Refused;

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No receive is posted.
    NotReady,
    /// It does not fit what came before it, or more is asked for than was agreed.
    Invalid,
    /// It is longer or shorter than it says, or longer than the receive.
    Length,
    /// Key, range or rights.
    Access,
    /// The target's own memory does not take or give the bytes.
    Operation,
    /// The sender's memory does not give them. Only within a device can this be found so late: what
    /// comes in packets was read before it was sent. The target keeps its receive and its
    /// state; it may have been told that it was reached.
    Source,
    /// Memory is not at hand. Nothing has happened; it is executed when the bytes are there or were
    /// written: see [`crate::aside`].
    Later,
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Fault {
        match refused {
            Refused::Access => Fault::Operation,
            Refused::Source => Fault::Source,
            Refused::Later => Fault::Later,
        }
    }
}

impl Fault {
    /// The NAK of a reliable transport (IBTA vol. 1, 9.7.5.2.4); none stands for an RNR NAK.
    pub(crate) fn nak(self) -> Option<NakCode> {
        match self {
            Fault::NotReady | Fault::Later => None,
            Fault::Invalid | Fault::Length => Some(NakCode::InvalidRequest),
            Fault::Access => Some(NakCode::RemoteAccess),
            Fault::Operation | Fault::Source => Some(NakCode::RemoteOperation),
        }
    }

    /// Counts the message that an unreliable transport drops for it (IBTA vol. 1, 9.8.2.2).
    pub(crate) fn count_drop(self, counters: &mut Counters) {
        match self {
            Fault::NotReady => counters.drop_no_receive += 1,
            Fault::Length => counters.drop_length += 1,
            Fault::Invalid | Fault::Access | Fault::Operation | Fault::Later => {
                counters.drop_unreliable += 1;
            }
            Fault::Source => {}
        }
    }
}
