//! DCIs that the device does not set going again.
//!
//! A device may refuse to take a failed DCI through RESET, or to make another in its place: for want
//! of memory, or in the middle of a reset of its own. Such a DCI is down. It is tried again with
//! back-off, at least every [`RETRY_NS_MAX`]: first as it is, then destroyed and made anew.
//!
//! Meanwhile nobody's WR is lost. What was on the DCI and was not executed goes, in order, over
//! another DCI of its class that works, and so does all that comes; where there is none it waits.
//! After [`PATIENCE_NS`] without one, what waits ends with an error.

mod restart;

use elver_verbs::Time;

use crate::ids::QpIx;

/// A DCI that is down is tried again after this long, then after twice as long, and so on,
const RETRY_NS_MIN: u64 = 1_000_000;
/// but at least so often.
const RETRY_NS_MAX: u64 = 100_000_000;
/// What waits for a DCI that has been down for this long ends with an error, at the next try.
const PATIENCE_NS: u64 = 4_000_000_000;

/// A DCI that is down. Nothing is outstanding on it.
#[derive(Debug)]
pub(crate) struct Outage {
    /// Its index in the pool.
    pub(crate) qp: QpIx,
    since: Time,
    /// When it is tried again, and how long the next wait is.
    due: Time,
    wait_ns: u64,
    /// The device has destroyed it, and not made another.
    pub(crate) destroyed: bool,
}
