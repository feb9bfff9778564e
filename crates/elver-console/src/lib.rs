//! What Elver's commands say: lines on standard output ([`say!`]), [`table`]s, a [`Progress`] that
//! goes when it is done, the [`Failure`] that becomes an exit code, and [`plain`] for what others have named.

mod exit;
mod out;
mod plain;
mod progress;
pub mod table;

pub use exit::Failure;
pub use out::{guarded, line, write};
pub use plain::plain;
pub use progress::Progress;
