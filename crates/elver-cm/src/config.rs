/// How the manager behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The GUID that peers are told.
    pub ca_guid: u64,
    /// Connections that there are at most, those that are ending among them.
    pub max_connections: usize,
    /// How long an answer is waited for, and how fast we answer: 4.096 µs · 2^this.
    pub response_timeout: u8,
    /// How often an unanswered message is sent again, at most 15.
    pub retries: u8,
    /// How long a request waits for the consumer, in nanoseconds.
    pub request_ns: u64,
    /// How long requests for a service go unanswered that nobody listens for any more, in nanoseconds: they come again,
    /// and somebody may listen by then.
    pub lately_ns: u64,
    /// How long an ended connection answers what is late, in nanoseconds.
    pub time_wait_ns: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            ca_guid: 0,
            max_connections: 1 << 16,
            // 537 ms, so that a peer that is not there is given up after 8.6 s.
            response_timeout: 17,
            retries: 15,
            request_ns: 60_000_000_000,
            lately_ns: 2_000_000_000,
            time_wait_ns: 1_000_000_000,
        }
    }
}

/// What happened that nobody is told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that were no message of the communication manager's.
    pub malformed: u64,
    /// Messages that came again.
    pub duplicates: u64,
    /// Messages for a connection that is not there, not the sender's, or not waiting for them.
    pub unexpected: u64,
    /// Requests that were refused because a backlog or the table was full.
    pub crowded: u64,
    /// Requests for services that nobody offers.
    pub unheard: u64,
    /// Requests that the consumer left unanswered too long.
    pub expired: u64,
    /// Messages that were sent again.
    pub resent: u64,
    /// Connections whose peer ended without a word.
    pub orphaned: u64,
    /// Connections that nobody had any longer, and that answered late messages until the table was full.
    pub displaced: u64,
}
