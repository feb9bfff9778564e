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
