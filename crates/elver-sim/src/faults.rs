use std::fmt;

use crate::rng::Rng;

/// What goes wrong in a run, besides bad WRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A packet is lost.
    Loss,
    /// A packet arrives twice.
    Duplicate,
    /// A packet is held back, so that later ones overtake it.
    Reorder,
    /// Up to three bits of a packet flip: as many as a CRC-32 is sure to catch at these lengths.
    Corrupt,
    /// A packet is cut short.
    Truncate,
    /// A packet that was delivered long ago comes again.
    Replay,
    /// A datagram of random bytes.
    Garbage,
    /// The time on the way varies from packet to packet.
    Jitter,
    /// A sender's queue is full and its packet is dropped.
    QueueDrop,
    /// A packet is marked as having met congestion.
    EcnMark,
    /// All packets from one host to another are lost for a while.
    Partition,
    /// A host does nothing for a while; its packets wait.
    SlowEngine,
    /// A host loses its device and its memory, and comes back with new ones at the old address.
    Crash,
    /// A region is deregistered while peers use it.
    Deregister,
    /// Memory goes under a region while peers use it.
    Vanish,
    /// A DCT is destroyed while initiators use it.
    DestroyDct,
    /// A CQ that is polled too seldom overflows.
    CqOverflow,
    /// A host's clock goes forward by up to minutes, as after a suspend.
    ClockJump,
    /// Somebody off the path sends what is made up, or in another's name.
    Forge,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Fault; 19] = [
        Fault::Loss,
        Fault::Duplicate,
        Fault::Reorder,
        Fault::Corrupt,
        Fault::Truncate,
        Fault::Replay,
        Fault::Garbage,
        Fault::Jitter,
        Fault::QueueDrop,
        Fault::EcnMark,
        Fault::Partition,
        Fault::SlowEngine,
        Fault::Crash,
        Fault::Deregister,
        Fault::Vanish,
        Fault::DestroyDct,
        Fault::CqOverflow,
        Fault::ClockJump,
        Fault::Forge,
    ];

    /// Its name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Loss => "loss",
            Fault::Duplicate => "duplicate",
            Fault::Reorder => "reorder",
            Fault::Corrupt => "corrupt",
            Fault::Truncate => "truncate",
            Fault::Replay => "replay",
            Fault::Garbage => "garbage",
            Fault::Jitter => "jitter",
            Fault::QueueDrop => "queue-drop",
            Fault::EcnMark => "ecn-mark",
            Fault::Partition => "partition",
            Fault::SlowEngine => "slow-engine",
            Fault::Crash => "crash",
            Fault::Deregister => "deregister",
            Fault::Vanish => "vanish",
            Fault::DestroyDct => "destroy-dct",
            Fault::CqOverflow => "cq-overflow",
            Fault::ClockJump => "clock-jump",
            Fault::Forge => "forge",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Rates of the faults of one direction between two hosts, in parts per million of its packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Packets lost.
    pub loss: u32,
    /// Packets that come twice.
    pub duplicate: u32,
    /// Packets held back.
    pub reorder: u32,
    /// Packets with bits flipped.
    pub corrupt: u32,
    /// Packets cut short.
    pub truncate: u32,
    /// Packets after which an old one comes again.
    pub replay: u32,
    /// Packets that random bytes accompany.
    pub garbage: u32,
    /// Packets marked as having met congestion.
    pub ecn_mark: u32,
    /// Most that jitter adds to the time on the way, in nanoseconds.
    pub jitter_ns: u64,
}

/// Which faults a run has, and how many.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// Upper bounds of the rates; each direction draws its own below them.
    pub rates: Rates,
    /// How much a sender's queue holds, in nanoseconds of the line rate.
    pub queue_ns: u64,
    /// How many of the harness's actions in a hundred are partitions.
    pub partition_percent: u32,
    /// How many of them make an engine slow.
    pub slow_percent: u32,
    /// How many of them are jumps of a host's clock.
    pub jump_percent: u32,
    /// How many of them are crashes of a host.
    pub crash_percent: u32,
}

/// A queue that never fills in a run: a second at the line rate.
const ROOMY_NS: u64 = 1_000_000_000;

impl Default for FaultPlan {
    /// No faults.
    fn default() -> FaultPlan {
        FaultPlan {
            rates: Rates::default(),
            queue_ns: ROOMY_NS,
            partition_percent: 0,
            slow_percent: 0,
            jump_percent: 0,
            crash_percent: 0,
        }
    }
}

impl FaultPlan {
    /// One run in four has no fault at all: whatever goes wrong there is the device's.
    pub fn generate(rng: &mut Rng) -> FaultPlan {
        let mut plan = FaultPlan::default();
        if rng.percent(25) {
            return plan;
        }
        let severity = rng.pick(&[1_000, 10_000, 50_000, 150_000]);
        let rates = &mut plan.rates;
        for rate in [
            &mut rates.loss,
            &mut rates.duplicate,
            &mut rates.reorder,
            &mut rates.corrupt,
            &mut rates.truncate,
            &mut rates.replay,
            &mut rates.garbage,
            &mut rates.ecn_mark,
        ] {
            if rng.percent(35) {
                *rate = severity;
            }
        }
        if rng.percent(20) {
            rates.jitter_ns = rng.pick(&[500, 5_000, 30_000]);
        }
        if rng.percent(15) {
            plan.queue_ns = rng.pick(&[1_000, 4_000, 20_000]);
        }
        let sometimes =
            [&mut plan.partition_percent, &mut plan.slow_percent, &mut plan.jump_percent];
        for percent in sometimes {
            if rng.percent(25) {
                *percent = 4;
            }
        }
        if rng.percent(20) {
            plan.crash_percent = 2;
        }
        plan
    }

    /// The rates of one direction.
    pub(crate) fn direction(&self, rng: &mut Rng) -> Rates {
        let mut draw = |most: u32| {
            if most > 0 && rng.percent(70) { rng.between(1, u64::from(most)) as u32 } else { 0 }
        };
        Rates {
            loss: draw(self.rates.loss),
            duplicate: draw(self.rates.duplicate),
            reorder: draw(self.rates.reorder),
            corrupt: draw(self.rates.corrupt),
            truncate: draw(self.rates.truncate),
            replay: draw(self.rates.replay),
            garbage: draw(self.rates.garbage),
            ecn_mark: draw(self.rates.ecn_mark),
            jitter_ns: self.rates.jitter_ns,
        }
    }
}
