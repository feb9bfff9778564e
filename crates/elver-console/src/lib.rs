//! What Elver's commands say: lines on standard output ([`say!`]), [`table`]s, a [`Progress`] that
//! goes when it is done, and the [`Failure`] that becomes an exit code.

mod exit;
mod out;
mod progress;
pub mod table;

pub use exit::Failure;
pub use out::{guarded, line, write};
pub use progress::Progress;
