//! Between processes of one user on one host who initiates an operation moves the data himself, and it
//! is complete at once: `docs/preload.md` says when, and whom that trusts.
//!
//! The device's own code decides whether a request would have been executed, from what peers tell in
//! their tables ([`table`]). Whatever cannot be executed that way is posted, so that what a refusal does to
//! either QP is the device's alone to say.

mod atomic;
mod beside;
pub(crate) mod fuzzed;
mod hub;
mod lane;
mod mapped;
mod meeting;
mod objects;
mod peer;
mod run;
mod shunned;
mod socket;
mod stage;
mod table;
mod taking;
mod told;

pub(crate) use beside::Beside;
pub(crate) use hub::Hub;
pub(crate) use objects::{
    Change, Direct, Told, destination, open, take_back_qp, take_back_region, tell_region,
    tell_region_again,
};
pub(crate) use run::{Link, Run};
