use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use elver_rnic::{Config, FlowConfig};
use elver_verbs::Mtu;

use crate::faults::FaultPlan;
use crate::host::CQ_ENTRIES;
use crate::options::{Options, Transport};
use crate::rng::Rng;

/// An ACK timeout of a smaller code than this, 4 ms, may run out by congestion alone.
const PATIENT_CODE: u8 = 10;
/// The ACK timeout of no bound (IBTA vol. 1, 9.7.6.1.3).
const TIMEOUT_UNBOUNDED: u8 = 0;
/// The RNR retry count that stands for no bound (IBTA vol. 1, 9.7.5.2.8).
const RNR_UNBOUNDED: u8 = 7;
/// Sizes of send queues; the least has room for a WR on each stream of a DCI, and one more.
const SEND_WRS: [u32; 3] = [(1 << LOG_STREAMS_MAX) + 1, 16, 64];
/// Most streams of a DCI, as a power of two.
pub(crate) const LOG_STREAMS_MAX: u8 = 2;
/// QPs, keys and the like of a host: few, so that their numbers have many bits of chance in them
/// and those of a crashed host hardly come again.
const OBJECTS_MAX: u32 = 256;
/// How long a crowded DCT must have heard nothing of an initiator to forget it.
pub(crate) const CROWDED_IDLE_NS: u64 = 20_000_000;

/// For how long a piece of memory keeps others waiting in all, where it is not at hand.
pub(crate) const LATE_NS: u64 = 2_000_000;

/// What a seed decides about a run before it begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) hosts: usize,
    pub(crate) transports: Vec<Transport>,
    pub(crate) faults: FaultPlan,
    /// Things that the harness does before faults end, and the time between them at most.
    pub(crate) actions: u64,
    pub(crate) gap_ns: u64,
    /// How many in a hundred times that a host has run its CQ is polled.
    pub(crate) poll_percent: u32,
    /// How many WRs in a hundred are wrong on purpose.
    pub(crate) bad_percent: u32,
    /// QPs are stopped, reset and drained on purpose.
    pub(crate) meddles: bool,
    /// How many in a hundred regions that peers lose stay registered, and lose their memory.
    pub(crate) vanish_percent: u32,
    /// In how many of a hundred chances somebody forges.
    pub(crate) forge_percent: u32,
    /// Entries of a host's CQ.
    pub(crate) cq_entries: u32,
    /// Memory windows are used.
    pub(crate) windows: bool,
    /// DCTs have too little room for their initiators.
    pub(crate) crowded: bool,
    /// How many in a hundred copies to or from memory a device cannot make by itself.
    pub(crate) late_memory_percent: u32,
    v6: bool,
    local_copy: bool,
    local_step_bytes: u32,
    max_packets_in_flight: u32,
    window_initial: u32,
    read_request_bytes: u32,
    tail_probe_ns: u64,
}

impl Plan {
    pub(crate) fn generate(options: &Options, rng: &mut Rng) -> Plan {
        let mut transports = options.transports.clone();
        transports.retain(|_| rng.percent(60));
        if transports.is_empty() {
            transports.push(rng.pick(&options.transports));
        }
        Plan {
            hosts: rng.pick(&[2, 2, 2, 3, 3, 4, 5]),
            faults: FaultPlan::generate(&mut rng.split("faults")),
            actions: rng.pick(&[20, 60, 120, 250]),
            gap_ns: rng.pick(&[200, 2_000, 10_000, 50_000]),
            poll_percent: rng.pick(&[100, 100, 50, 10]),
            bad_percent: rng.pick(&[0, 0, 2, 8]),
            meddles: rng.percent(40),
            vanish_percent: rng.split("vanish").pick(&[0, 0, 50, 100]),
            forge_percent: rng.split("forge").pick(&[0, 0, 0, 60]),
            cq_entries: if rng.percent(5) { rng.pick(&[4, 16, 40]) } else { CQ_ENTRIES },
            windows: rng.percent(50),
            crowded: transports.contains(&Transport::Dc) && rng.percent(10),
            late_memory_percent: rng.split("late memory").pick(&[0, 0, 0, 10, 100]),
            v6: rng.percent(25),
            local_copy: rng.percent(60),
            local_step_bytes: rng.split("local steps").pick(&[4_096, 16_384, 4 << 20]),
            max_packets_in_flight: rng.pick(&[2, 8, 64, 1_024]),
            window_initial: rng.pick(&[1, 8, 512]),
            read_request_bytes: rng.pick(&[4_096, 65_536]),
            tail_probe_ns: rng.pick(&[0, 20_000, 1_000_000]),
            transports,
        }
    }

    pub(crate) fn address(&self, host: usize) -> IpAddr {
        let number = host as u8 + 1;
        if self.v6 {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)))
        } else {
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
        }
    }

    /// The configuration of a host's device.
    pub(crate) fn config(&self, host: usize) -> Config {
        let base = Config::for_address(self.address(host));
        Config {
            name: format!("sim{host}"),
            node_guid: host as u64 + 1,
            local_copy: self.local_copy,
            local_step_bytes: self.local_step_bytes,
            max_qp: OBJECTS_MAX,
            max_packets_in_flight: self.max_packets_in_flight,
            read_request_bytes: self.read_request_bytes,
            tail_probe_ns: self.tail_probe_ns,
            max_dc_contexts: if self.crowded { 2 } else { base.max_dc_contexts },
            dc_context_idle_ns: if self.crowded {
                CROWDED_IDLE_NS
            } else {
                base.dc_context_idle_ns
            },
            flow: FlowConfig {
                window_initial: self.window_initial,
                window_min: self.window_initial.min(base.flow.window_min),
                ..base.flow
            },
            ..base
        }
    }

    /// Attributes of a new QP.
    pub(crate) fn setup(&self, rng: &mut Rng) -> Setup {
        Setup {
            timeout: rng.pick(&[TIMEOUT_UNBOUNDED, 4, 6, 8, PATIENT_CODE, PATIENT_CODE, 12]),
            retry_cnt: rng.between(0, 7) as u8,
            rnr_retry: rng.pick(&[0, 1, 3, 6, RNR_UNBOUNDED, RNR_UNBOUNDED]),
            min_rnr_timer: rng.between(1, 10) as u8,
            max_rd_atomic: rng.between(1, 4) as u8,
            max_send_wr: rng.pick(&SEND_WRS),
            max_send_sge: rng.between(1, 4) as u32,
            max_inline_data: rng.pick(&[0, 64, 256]),
            access_key: rng.next_u64(),
            qkey: rng.next_u64() as u32 >> 1,
        }
    }
}

/// A path MTU.
pub(crate) fn mtu(rng: &mut Rng) -> Mtu {
    rng.pick(&[Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096])
}

/// Attributes that stay with an endpoint when it is connected anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_send_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_inline_data: u32,
    pub(crate) access_key: u64,
    pub(crate) qkey: u32,
}

impl Setup {
    pub(crate) fn impatient(&self) -> bool {
        self.timeout != TIMEOUT_UNBOUNDED && self.timeout < PATIENT_CODE
    }

    pub(crate) fn rnr_bounded(&self) -> bool {
        self.rnr_retry != RNR_UNBOUNDED
    }
}
