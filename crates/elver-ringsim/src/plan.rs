use elver_core::{Config, Policy, QosConfig, TransferConfig};
use elver_sim::{FaultPlan, Rng};
use elver_verbs::Mtu;

use crate::strange::Strange;

/// How VQPs connect in a run.
const POLICIES: [&[Policy]; 3] = [
    &[Policy::Shared],
    &[Policy::Shared, Policy::Leased],
    &[Policy::Shared, Policy::Lite, Policy::Leased],
];

/// Within what time VQPs must fail whose peers have gone; 0: they need not.
const KEEP_ALIVE_NS: [u64; 3] = [0, 8_000_000, 40_000_000];

/// Least timeout of QPs where memory is late, as its exponent: 4 ms.
const LATE_TIMEOUT: u8 = 10;

/// What a seed decides about a run before it begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    /// Pairs that there are at once at most.
    pub(crate) pairs: usize,
    pub(crate) faults: FaultPlan,
    /// How many things in a hundred are that an end's process dies, or that answers are lost or late on
    /// their way, so that a queue pair which breaks then leaves open what was executed.
    pub(crate) leave_percent: u32,
    pub(crate) answers_vanish_percent: u32,
    /// Of processes that die the memory may go before their node knows of it.
    pub(crate) memory_vanishes: bool,
    /// Things that are done before faults end, and the time between them at most.
    pub(crate) actions: u64,
    pub(crate) gap_ns: u64,
    /// How many in a hundred times that a node has run its ends look at what came.
    pub(crate) look_percent: u32,
    /// How many messages in a hundred are held while they are read.
    pub(crate) hold_percent: u32,
    /// Slots of the largest ring, as a power of two.
    pub(crate) log_slots_max: u32,
    /// How many copies in a hundred to or from slots a device cannot make by itself.
    pub(crate) late_memory_percent: u32,
    pub(crate) policies: &'static [Policy],
    pub(crate) config: Config,
    pub(crate) device: elver_sim::Config,
    pub(crate) strange: Strange,
}

impl Plan {
    pub(crate) fn generate(rng: &mut Rng, strange: Strange) -> Plan {
        let mut config = config(rng);
        let late_memory_percent = rng.pick(&[0, 0, 0, 10, 100]);
        if late_memory_percent > 0 {
            // A peer is patient for longer than memory is late.
            config.timeout = config.timeout.max(LATE_TIMEOUT);
        }
        Plan {
            nodes: rng.pick(&[1, 2, 2, 2, 3]),
            pairs: rng.pick(&[1, 3, 8]),
            leave_percent: rng.pick(&[0, 1, 4]),
            answers_vanish_percent: rng.pick(&[0, 0, 5]),
            memory_vanishes: rng.percent(50),
            faults: FaultPlan::generate(&mut rng.split("faults")),
            actions: rng.pick(&[200, 600, 2_000]),
            gap_ns: rng.pick(&[500, 5_000, 50_000]),
            look_percent: rng.pick(&[100, 50, 10]),
            hold_percent: rng.pick(&[0, 10, 60]),
            log_slots_max: rng.pick(&[3, 5, 8]),
            late_memory_percent,
            policies: rng.pick(&POLICIES),
            config,
            device: device(rng),
            strange,
        }
    }

    /// How long it takes a WR to fail that nobody answers.
    pub(crate) fn retries_ns(&self) -> u64 {
        (4_096 << self.config.timeout) * (u64::from(self.config.retry_cnt) + 2)
    }

    /// For how long an end's memory keeps others waiting in all: less than a peer waits before he sends
    /// again.
    pub(crate) fn late_memory_ns(&self) -> u64 {
        4_096 << self.config.timeout
    }

    /// How long a fault that has healed may go on ending pairs: what was under way uses up its retries, by way of leases that
    /// it was given.
    pub(crate) fn spoilt_ns(&self) -> u64 {
        2 * self.retries_ns() + self.config.mr_lease_ns
    }

    /// How long anything that is pending may take once faults are over: a look-up, a region's, WRs that
    /// nobody answers, requests for links with a second for each, and back-offs.
    pub(crate) fn patience_ns(&self) -> u64 {
        const REQUESTS_NS: u64 = 10_000_000_000;
        20 * self.retries_ns() + 2 * self.config.mr_lease_ns + REQUESTS_NS
    }
}

fn config(rng: &mut Rng) -> Config {
    let dc_qps = rng.pick(&[1, 2, 4]);
    let usual = Config::default();
    // Fewer than there are: some must be left to the low class.
    let qos = QosConfig { high_dc_qps: rng.below(dc_qps.into()) as u32, ..usual.qos.clone() };
    Config {
        dc_qps,
        log_dc_streams: rng.pick(&[0, 1, 3]),
        sq_depth: rng.pick(&[32, 48, 128]),
        max_sge: 4,
        max_inline: rng.pick(&[64, 220]),
        max_vqps: 256,
        max_vqp_wr: 128,
        max_mrs: 4_096,
        mr_lease_ns: rng.pick(&[100_000, 5_000_000, 1_000_000_000]),
        max_cached_mrs: rng.pick(&[8, 1_024]),
        recv_buffers: 64,
        timeout: rng.pick(&[6, 8, 10]),
        retry_cnt: rng.between(2, 7) as u8,
        rnr_retry: 7,
        keep_alive_ns: rng.pick(&KEEP_ALIVE_NS),
        transfer: TransferConfig {
            rc_qps_max: rng.pick(&[0, 1, 4, 32]),
            leased_wrs_max: 4_096,
            hot_ops: rng.pick(&[4, 30]),
            window_ns: rng.pick(&[100_000, 2_000_000]),
            idle_ns: rng.pick(&[200_000, 5_000_000]),
        },
        qos,
        ..usual
    }
}

fn device(rng: &mut Rng) -> elver_sim::Config {
    elver_sim::Config {
        local_copy: rng.percent(80),
        active_mtu: rng.pick(&[Mtu::Mtu1024, Mtu::Mtu4096]),
        tail_probe_ns: rng.pick(&[0, 20_000, 500_000]),
        max_packets_in_flight: rng.pick(&[8, 1_024]),
        ..elver_sim::Config::default()
    }
}
