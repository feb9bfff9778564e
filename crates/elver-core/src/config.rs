/// What a core is made with. Every limit is here, with a default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// DC QPs of the pool (KRCORE: 8).
    pub dc_qps: u32,
    /// Streams of each DC QP, as a power of two.
    pub log_dc_streams: u8,
    /// WRs of VQPs that each shared QP holds; one lane of a DC QP holds half of that. The send queue is
    /// longer by what is kept for the core's own operations.
    pub sq_depth: u32,
    /// Most SGEs in a WR.
    pub max_sge: u32,
    /// Most inline bytes in a WR.
    pub max_inline: u32,
    /// Most VQPs.
    pub max_vqps: u32,
    /// Most VQPs that messages make all clients hold, together; see [`Config::accepts`].
    pub max_accepted: u32,
    /// Most WRs outstanding on a VQP, in each direction.
    pub max_vqp_wr: u32,
    /// Most memory regions of all clients.
    pub max_mrs: u32,
    /// How long a region of this node's that a peer has checked may be taken for valid there, in
    /// nanoseconds (KRCORE: 1 s). Peers know it from the node's record, see [`crate::Terms`].
    pub mr_lease_ns: u64,
    /// Most remote regions remembered.
    pub max_cached_mrs: u32,
    /// Most peers remembered.
    pub max_peers: u32,
    /// Receive buffers for messages of all VQPs.
    pub recv_buffers: u32,
    /// Bytes of each, header included. A page of a buffer takes memory once a message has reached it.
    pub recv_buffer_bytes: u32,
    /// Messages longer than this are read by the receiver instead of copied (section 4.5).
    ///
    /// What the READ saves is a copy, and what it costs is another round trip and a message that
    /// says that it is done. On the software device a copy is the cheaper one up to 130 KB or more
    /// (`elver bench zero-copy`): at 16 KB an echo takes half the time. KRCORE, whose round trips
    /// are faster, reads from 16 KB on. The default is that: more would need larger receive
    /// buffers, whose bytes a hardware device has pinned from the start.
    pub eager_bytes_max: u32,
    /// Most messages that a VQP without posted receives holds. Senders wait from an eighth of that on.
    pub backlog: u32,
    /// Most bytes of these, each with [`Config::HELD_MESSAGE_BYTES`].
    pub backlog_bytes: u64,
    /// Local ACK timeout of shared QPs, as a code of 4.096 µs · 2^code.
    pub timeout: u8,
    /// Transport retries of shared QPs.
    pub retry_cnt: u8,
    /// RNR retries of shared QPs.
    pub rnr_retry: u8,
    /// A VQP whose peer has gone fails within so many nanoseconds, also one that only waits; 0: not before
    /// it sends something.
    pub keep_alive_ns: u64,
    /// Transfer between DC and RC.
    pub transfer: TransferConfig,
    /// Admission.
    pub storm: StormConfig,
    /// Priorities.
    pub qos: QosConfig,
}

/// When RC QPs are made and reclaimed (section 4.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferConfig {
    /// Most RC QPs of the pool; 0 for none.
    pub rc_qps_max: u32,
    /// Most send WRs that RC QPs of single VQPs ([`crate::Policy::Leased`]) hold, all together.
    pub leased_wrs_max: u32,
    /// Operations to one peer within a window that make it hot.
    pub hot_ops: u64,
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
    /// An RC QP that was not used for this long may be reclaimed, in nanoseconds.
    pub idle_ns: u64,
}

/// Admission of connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormConfig {
    /// Most look-ups at meta servers at once.
    pub lookups_max: u32,
    /// Most connects that wait for one.
    pub connects_waiting_max: u32,
    /// Most RC handshakes at once, in each direction.
    pub handshakes_max: u32,
}

/// Priority classes (the arXiv version, section 4.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosConfig {
    /// DC QPs, of [`Config::dc_qps`], that the high class has for itself.
    pub high_dc_qps: u32,
    /// The windows in which the load of the high class is measured, in nanoseconds.
    pub load_window_ns: u64,
    /// It is loaded if it has WRs on their way for this much of a window, in per cent.
    pub load_percent: u8,
    /// Bytes a second of the low class while the high class is loaded.
    pub low_bytes_per_s: u64,
}

/// What one client may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// VQPs, accepted ones included. Of these at most half are accepted ones, and accepted ones that
    /// were never used, or failed, give way: the oldest to a new one of either kind.
    pub vqps: u32,
    /// Accepted VQPs that one peer may make the client hold, all its processes together, and never
    /// more than three quarters of those that may be accepted at all: so that no peer uses up what
    /// another needs. One that was never used, or failed, gives way to a new one of its peer.
    pub accepts_per_peer: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Completions that were not taken; WRs are refused beyond.
    pub completions: u32,
    /// Who answers for the client: clients of one account are held together to a bound of guesses at keys of peers'
    /// regions, and of long messages that are open to their receivers.
    pub account: u64,
}

impl Config {
    /// What a message that waits for a receive counts for beside its bytes: its entry, in a queue that doubles, and
    /// what its bytes are allocated with. One of no bytes would else cost nothing.
    pub const HELD_MESSAGE_BYTES: u64 = 128;

    /// Accepted VQPs that the node may hold: what peers can make it hold, by sending messages, and
    /// whoever they claim to be. Never more than three quarters of all VQPs, so that clients always
    /// have some of their own. Each may be of another peer: as long as there are fewer of them than
    /// [`Config::max_peers`], nobody fills that table from outside either.
    ///
    /// When there are as many, one that was never used, or failed, gives way: the oldest.
    pub fn accepts(&self) -> u32 {
        self.max_accepted.min(most_of(self.max_vqps))
    }

    /// How long after its post a WR may still arrive, in nanoseconds, once it is at the head of its
    /// queue: all of its retries.
    pub(crate) fn flight_ns(&self) -> u64 {
        let timeout = 4_096u64 << self.timeout.min(31);
        timeout.saturating_mul(u64::from(self.retry_cnt) + 1)
    }

    /// Of these, the ones of one peer.
    pub(crate) fn accepts_of_peer(&self) -> u32 {
        most_of(self.accepts())
    }
}

/// What others, or one of them, may have of so many: the rest is left for who else needs some.
fn most_of(all: u32) -> u32 {
    (all - all / 4).max(1)
}

impl ClientLimits {
    /// Accepted VQPs that the client may hold.
    pub(crate) fn accepts(&self) -> u32 {
        (self.vqps / 2).max(1)
    }

    /// Of these, the ones of one peer.
    pub(crate) fn accepts_of_peer(&self) -> u32 {
        self.accepts_per_peer.min(most_of(self.accepts()))
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dc_qps: 8,
            log_dc_streams: 6,
            sq_depth: 1_024,
            max_sge: 4,
            max_inline: 220,
            max_vqps: 65_536,
            max_accepted: 12_288,
            max_vqp_wr: 4_096,
            max_mrs: 65_536,
            mr_lease_ns: 1_000_000_000,
            max_cached_mrs: 65_536,
            max_peers: 131_072,
            recv_buffers: 512,
            recv_buffer_bytes: 16_640,
            eager_bytes_max: 16_384,
            backlog: 4_096,
            backlog_bytes: 4 << 20,
            timeout: 14,
            retry_cnt: 5,
            rnr_retry: 7,
            keep_alive_ns: 500_000_000,
            transfer: TransferConfig {
                rc_qps_max: 32,
                leased_wrs_max: 1 << 17,
                hot_ops: 10_000,
                window_ns: 100_000_000,
                idle_ns: 1_000_000_000,
            },
            storm: StormConfig {
                lookups_max: 64,
                connects_waiting_max: 65_536,
                handshakes_max: 32,
            },
            qos: QosConfig {
                high_dc_qps: 2,
                load_window_ns: 1_000_000,
                load_percent: 25,
                low_bytes_per_s: 500_000_000,
            },
        }
    }
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            vqps: 4_096,
            accepts_per_peer: 1_024,
            mrs: 1_024,
            completions: 65_536,
            account: 0,
        }
    }
}
