use std::net::{IpAddr, Ipv4Addr};

use elver_core::{Config, Policy, QosConfig, StormConfig, TransferConfig};
use elver_sim::{FaultPlan, Rng};
use elver_verbs::Mtu;

/// The header of a message is no longer than this, so that so many bytes fewer fit a buffer.
const HEADER_BYTES_MAX: u32 = 256;

/// How they do where some nodes have no DC.
const POLICIES_WITHOUT_DC: [Policy; 3] = [Policy::Shared, Policy::Lite, Policy::RpcMeta];

/// RC QPs of a node that others reach over nothing else.
const RC_QPS_ENOUGH: u32 = 64;

/// Messages that a receiver holds at least.
pub(crate) const BACKLOG_MIN: u32 = 2;

/// Within what time VQPs must fail whose peers have gone; 0: they need not.
const KEEP_ALIVE_NS: [u64; 3] = [0, 8_000_000, 40_000_000];

/// Least timeout of QPs where memory is late, as its exponent: 4 ms.
const LATE_TIMEOUT: u8 = 10;

/// How VQPs connect in a run: mostly in all ways, each VQP in its own.
const POLICIES: [&[Policy]; 6] = [
    &[Policy::Shared],
    &[Policy::Shared, Policy::Lite],
    &[Policy::Shared, Policy::Leased],
    &[Policy::Shared, Policy::RpcMeta],
    &[Policy::Shared, Policy::Lite, Policy::RpcMeta, Policy::Leased],
    &[Policy::Shared, Policy::Lite, Policy::RpcMeta, Policy::Leased],
];

/// Which nodes have no DC, and share RC QPs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WithoutDc {
    None,
    Odd,
    All,
}

/// What a seed decides about a run before it begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    /// Meta servers that the registry keeps up.
    pub(crate) metas: usize,
    /// Clients that a node has when it boots.
    pub(crate) clients: usize,
    pub(crate) faults: FaultPlan,
    /// Things that the harness does before faults end, and the time between them at most.
    pub(crate) actions: u64,
    pub(crate) gap_ns: u64,
    /// How many in a hundred times that a node has run its clients look at their completions.
    pub(crate) poll_percent: u32,
    /// How many WRs in a hundred are wrong on purpose.
    pub(crate) bad_percent: u32,
    /// Receives are posted only now and then, so that messages wait for them.
    pub(crate) late_receives: bool,
    /// Memory vanishes beneath registrations, at all nodes.
    pub(crate) memory_vanishes: bool,
    /// Answers are lost or late on purpose while an RC QP breaks for that.
    pub(crate) acks_vanish: bool,
    /// How many packets a device takes at a look.
    pub(crate) packets_at_once: u64,
    /// How many in a hundred copies to or from clients' memory a device cannot make by itself.
    pub(crate) late_memory_percent: u32,
    /// Clients die, and others come.
    pub(crate) clients_die: bool,
    /// The registry takes up to this long to tell anything.
    pub(crate) registry_ns: u64,
    /// How long the registry waits for a silent node before it gives it up.
    pub(crate) heartbeat_ns: u64,
    /// How VQPs connect, where all have DC.
    policies: &'static [Policy],
    pub(crate) config: Config,
    /// Which nodes have no DC.
    without_dc: WithoutDc,
    pub(crate) device: elver_sim::Config,
}

impl Plan {
    pub(crate) fn generate(rng: &mut Rng) -> Plan {
        let nodes = rng.pick(&[2, 2, 3, 3, 4, 5]);
        let faults = FaultPlan::generate(&mut rng.split("faults"));
        let without_dc = match rng.below(100) {
            0..80 => WithoutDc::None,
            80..90 => WithoutDc::Odd,
            _ => WithoutDc::All,
        };
        let mut config = config(rng);
        if without_dc != WithoutDc::None {
            // What reaches nobody over DC needs room for a link to everybody, for each class.
            config.transfer.rc_qps_max = RC_QPS_ENOUGH;
        }
        config.keep_alive_ns = rng.split("keep-alive").pick(&KEEP_ALIVE_NS);
        let late_memory_percent = rng.split("late memory").pick(&[0, 0, 0, 10, 100]);
        if late_memory_percent > 0 {
            // A peer is patient for longer than memory is late.
            config.timeout = config.timeout.max(LATE_TIMEOUT);
        }
        Plan {
            nodes,
            metas: rng.pick(&[1, 1, 2]),
            clients: rng.pick(&[1, 2, 3]),
            faults,
            actions: rng.pick(&[40, 80, 160, 250]),
            gap_ns: rng.pick(&[500, 5_000, 50_000, 400_000]),
            poll_percent: rng.pick(&[100, 100, 50, 10]),
            bad_percent: rng.pick(&[0, 0, 4, 12]),
            late_receives: rng.percent(30),
            late_memory_percent,
            clients_die: rng.percent(50),
            memory_vanishes: rng.split("vanishing").percent(50),
            acks_vanish: rng.split("acks").percent(40),
            packets_at_once: rng.split("intake").pick(&[u64::MAX, u64::MAX, 64, 8, 1]),
            registry_ns: rng.pick(&[10_000, 200_000, 2_000_000]),
            heartbeat_ns: rng.pick(&[500_000, 5_000_000]),
            policies: rng.pick(&POLICIES),
            config,
            without_dc,
            device: device(rng),
        }
    }

    /// Nothing that happens to packets or nodes in this run is a fault.
    pub(crate) fn calm(&self) -> bool {
        let FaultPlan { partition_percent, slow_percent, crash_percent, .. } = self.faults;
        partition_percent + slow_percent + crash_percent == 0
    }

    /// For how long a client's memory keeps others waiting in all: less than a peer waits before he
    /// sends again, so that nobody's retries are used up by it. A node's configuration sees to that
    /// (`memory.patience_ms`).
    pub(crate) fn late_memory_ns(&self) -> u64 {
        4_096 << self.config.timeout
    }

    /// DC targets forget who was silent for longer than anybody repeats what he asked. Few streams send to
    /// them, which change their targets, and so begin sessions, again and again.
    pub(crate) fn forget_soon(&mut self) {
        self.config.dc_qps = self.config.dc_qps.min(2);
        self.config.log_dc_streams = 0;
        self.config.qos.high_dc_qps = self.config.qos.high_dc_qps.min(self.config.dc_qps - 1);
        self.device.dc_context_idle_ns = 8 * self.retries_ns() + IDLE_LEAST_NS;
    }

    /// What a node is made with.
    pub(crate) fn config_of(&self, node: usize) -> Config {
        let dc_qps = if self.has_dc(node) { self.config.dc_qps } else { 0 };
        Config { dc_qps, ..self.config.clone() }
    }

    /// Whether the connects of one client may be too many to wait at once.
    pub(crate) fn few_may_wait(&self) -> bool {
        self.config.storm.connects_waiting_max < 2 * self.nodes as u32 * self.nodes as u32
    }

    /// How VQPs connect.
    pub(crate) fn policies(&self) -> &'static [Policy] {
        match self.without_dc {
            WithoutDc::None => self.policies,
            // The other end of a leased QP sends nothing, and without DC and a shared RC QP who has it
            // can neither read a long message nor tell that it did.
            WithoutDc::Odd | WithoutDc::All => &POLICIES_WITHOUT_DC,
        }
    }

    /// Whether VQPs may connect as if nothing was known: where LITE's does, it leases its RC QP.
    pub(crate) fn may_connect_uncached(&self, policy: Policy) -> bool {
        self.without_dc == WithoutDc::None || policy != Policy::Lite
    }

    /// Whether a node has DC; a node that does not exist might.
    pub(crate) fn has_dc(&self, node: usize) -> bool {
        match self.without_dc {
            WithoutDc::None => true,
            WithoutDc::Odd => node.is_multiple_of(2),
            WithoutDc::All => false,
        }
    }

    pub(crate) fn address(node: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, node as u8 + 1))
    }

    /// How long it takes a WR to fail that nobody answers.
    pub(crate) fn retries_ns(&self) -> u64 {
        (4_096 << self.config.timeout) * (u64::from(self.config.retry_cnt) + 2)
    }

    /// How long anything that is pending may take once faults are over. So many `requests` to other
    /// cores may be pending at one node.
    pub(crate) fn patience_ns(&self, requests: u32) -> u64 {
        let retries = self.retries_ns();
        // A look-up at each meta server, the READ of a region's entry, the WR itself, an answer.
        let attempts = self.metas as u64 + 3;
        4 * attempts * retries
            + 2 * (self.registry_ns + self.heartbeat_ns)
            + 2 * self.config.mr_lease_ns
            + u64::from(requests + 2) * REQUEST_NS
            + SILENCE_NS
            + SLACK_NS
    }
}

/// A request to a core that is gone is given up after a second without an answer, at the next time
/// at which it would have been sent again; and with a single one at once all wait for each other.
const REQUEST_NS: u64 = 1_100_000_000;
/// The end of an RC QP whose other end was given up is closed after this long.
const SILENCE_NS: u64 = 4_100_000_000;
/// DC targets remember initiators for this long at least.
const IDLE_LEAST_NS: u64 = 100_000_000;
/// What back-offs and rate limits may add to what retries and leases take.
const SLACK_NS: u64 = 2_000_000_000;

fn config(rng: &mut Rng) -> Config {
    let recv_buffer_bytes = rng.pick(&[1_024, 4_096]);
    let eager_bytes_max = rng
        .pick(&[64, 512, recv_buffer_bytes - HEADER_BYTES_MAX])
        .min(recv_buffer_bytes - HEADER_BYTES_MAX);
    let dc_qps = rng.pick(&[1, 2, 4, 8]);
    Config {
        dc_qps,
        log_dc_streams: rng.pick(&[0, 1, 3]),
        sq_depth: rng.pick(&[32, 48, 128]),
        max_sge: 4,
        max_inline: rng.pick(&[64, 220]),
        max_vqps: 512,
        max_accepted: 256,
        max_vqp_wr: 128,
        max_mrs: 256,
        mr_lease_ns: rng.pick(&[100_000, 5_000_000, 1_000_000_000]),
        max_cached_mrs: rng.pick(&[2, 8, 1_024]),
        max_peers: rng.pick(&[8, 64]),
        recv_buffers: rng.pick(&[16, 64]),
        recv_buffer_bytes,
        eager_bytes_max,
        backlog: rng.pick(&[BACKLOG_MIN, 16, 256]),
        backlog_bytes: rng.pick(&[4_096, 1 << 20]),
        timeout: rng.pick(&[6, 8, 10]),
        retry_cnt: rng.between(2, 7) as u8,
        rnr_retry: 7,
        keep_alive_ns: 0,
        transfer: TransferConfig {
            rc_qps_max: rng.pick(&[0, 1, 4, 32]),
            leased_wrs_max: rng.pick(&[64, 256, 4_096]),
            hot_ops: rng.pick(&[4, 30]),
            window_ns: rng.pick(&[100_000, 2_000_000]),
            idle_ns: rng.pick(&[200_000, 5_000_000]),
        },
        storm: StormConfig {
            lookups_max: rng.pick(&[1, 4, 64]),
            connects_waiting_max: rng.pick(&[2, 1_024, 1_024, 1_024]),
            handshakes_max: rng.pick(&[1, 4, 32]),
        },
        qos: QosConfig {
            high_dc_qps: rng.below(u64::from(dc_qps)) as u32,
            load_window_ns: rng.pick(&[10_000, 1_000_000]),
            load_percent: 25,
            low_bytes_per_s: rng.pick(&[1_000_000, 100_000_000, 2_000_000_000]),
        },
    }
}

fn device(rng: &mut Rng) -> elver_sim::Config {
    elver_sim::Config {
        local_copy: rng.percent(80),
        active_mtu: rng.pick(&[Mtu::Mtu1024, Mtu::Mtu4096]),
        max_qp: 1_024,
        max_mr: 2_048,
        tail_probe_ns: rng.pick(&[0, 20_000, 500_000]),
        max_packets_in_flight: rng.pick(&[8, 1_024]),
        ..elver_sim::Config::default()
    }
}
