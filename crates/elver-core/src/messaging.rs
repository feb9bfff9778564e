//! Two-sided messages: how they are sent, accepted and received (sections 4.1, 4.4 and 4.5), and what
//! two nodes tell each other of those that are still on their way.

mod at_once;
pub(crate) mod backlog;
pub(crate) mod gather;
pub(crate) mod held;
pub(crate) mod inbox;
pub(crate) mod incoming;
pub(crate) mod inquiry;
mod kept;
pub(crate) mod landing;
pub(crate) mod message;
mod named;
pub(crate) mod notes;
pub(crate) mod outgoing;
pub(crate) mod refusals;
mod refuse;
pub(crate) mod rendezvous;
mod revoke;
mod serve;
pub(crate) mod tell;
pub(crate) mod unread;

use elver_verbs::Gid;

use self::held::Held;
use self::landing::{LANDINGS_MAX, Landing};
use self::message::Header;
use self::notes::Notes;
use self::refusals::Refusals;
use self::unread::Unread;
use crate::ids::{LandingId, PeerId};
use crate::slots::Slots;
use crate::vqp::credit::CreditProbes;

/// Messages of all VQPs, as far as it is not a VQP's own matter.
pub(crate) struct Messaging {
    /// A header with what all of this node's have.
    pub(crate) blank: Header,
    /// Who sent the message that came last: its GID, and the peer.
    pub(crate) sender_last: Option<(Gid, PeerId)>,
    /// Messages that wait for receives.
    pub(crate) held: Held,
    /// Messages that are being written to receives which are not at hand.
    pub(crate) landings: Slots<LandingId, Landing>,
    /// Long messages that their receivers have not read.
    pub(crate) unread: Unread,
    /// VQPs that wait for credit.
    pub(crate) credit_probes: CreditProbes,
    /// What waits to be told to peers.
    pub(crate) notes: Notes,
    /// Senders of whose messages one was refused.
    pub(crate) refusals: Refusals,
}

impl Messaging {
    /// Of a node whose record has this tag.
    pub(crate) fn new(tag: u16) -> Messaging {
        Messaging {
            blank: Header::blank(tag),
            sender_last: None,
            held: Held::default(),
            landings: Slots::new(LANDINGS_MAX),
            unread: Unread::default(),
            credit_probes: CreditProbes::default(),
            notes: Notes::default(),
            refusals: Refusals::default(),
        }
    }
}
