//! What a server's end counts.

/// What a server's end did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CalleeCounters {
    /// Requests that came.
    pub requests: u64,
    /// Those that were handed on.
    pub handed_on: u64,
    /// Those that were answered with success.
    pub succeeded: u64,
    /// Those that were answered with a status.
    pub failed: u64,
    /// Of these, those whose deadline had passed, before they were handed on or after.
    pub expired: u64,
    /// Of these, those that the client cancelled.
    pub cancelled: u64,
    /// Of these, those beyond a limit of bytes.
    pub exhausted: u64,
    /// Answers to calls that had been answered: cancelled, or too late.
    pub answers_dropped: u64,
    /// Frames of calls that had been answered, passed over.
    pub late: u64,
    /// Frames of later versions, passed over.
    pub passed_over: u64,
    /// What the client sent that cannot be.
    pub faults: u64,
}

impl CalleeCounters {
    /// Adds another's.
    pub fn add(&mut self, other: &CalleeCounters) {
        let CalleeCounters { requests, handed_on, succeeded, failed, expired, .. } = *other;
        let CalleeCounters { cancelled, exhausted, answers_dropped, .. } = *other;
        self.requests += requests;
        self.handed_on += handed_on;
        self.succeeded += succeeded;
        self.failed += failed;
        self.expired += expired;
        self.cancelled += cancelled;
        self.exhausted += exhausted;
        self.answers_dropped += answers_dropped;
        self.late += other.late;
        self.passed_over += other.passed_over;
        self.faults += other.faults;
    }
}
