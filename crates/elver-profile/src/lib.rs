//! Where the set-up of a verbs connection spends its time (Swift, section 3.3): `elver verbs-profile`.
//!
//! [`calls`] makes calls of the host's own libibverbs, each timed, in a process of its own; [`cold`] starts such processes,
//! with and without the fast library, for `elver bench open` too. [`trace`] watches programs from outside, unpatched, and
//! [`profile`] tells what was seen. `unsafe` stands in `verbs`, and in `trace` for one call before exec and
//! one of ptrace.

pub mod calls;
pub mod cold;
pub mod profile;
pub mod trace;
mod verbs;

pub use profile::{ProfileArgs, run};
