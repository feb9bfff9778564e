//! The way of a WR: from `post_send` to its completion (section 4.4, algorithm 2), and back onto the
//! lane when another VQP's fault flushed it.

pub(crate) mod burst;
pub(crate) mod complete;
mod fail;
mod give_up;
mod lanes;
mod op_ended;
pub(crate) mod ops;
pub(crate) mod outage;
pub(crate) mod own_ops;
pub(crate) mod plain;
pub(crate) mod post;
pub(crate) mod qos;
pub(crate) mod recovery;
mod resume;
mod retire;
pub(crate) mod round_robin;
pub(crate) mod stalls;
pub(crate) mod wr_id;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use self::ops::Op;
use self::outage::Outage;
use self::plain::{BURST, NO_SHORT, Short};
use self::qos::Qos;
use self::stalls::Stalls;
use crate::VqpId;
use crate::config::QosConfig;
use crate::ids::{OpId, QpIx};
use crate::slots::{SLOTS_MAX, Slots};

/// What is on its way to the device, and what keeps it.
pub(crate) struct Datapath {
    /// Operations of the core's own.
    pub(crate) ops: Slots<OpId, Op>,
    /// Short messages on their way to the device.
    pub(crate) shorts: Vec<Short>,
    pub(crate) qos: Qos,
    /// VQPs that wait for send slots.
    pub(crate) slot_waiters: VecDeque<VqpId>,
    /// QPs on which room was made for lanes that wait.
    pub(crate) dirty_qps: Vec<QpIx>,
    /// Lanes that something of the core's own waits on.
    pub(crate) stalls: Stalls,
    /// DCIs that the device did not set going again.
    pub(crate) outages: Vec<Outage>,
}

impl Datapath {
    pub(crate) fn new(qos: &QosConfig) -> Datapath {
        Datapath {
            ops: Slots::new(SLOTS_MAX),
            shorts: alloc::vec![NO_SHORT; BURST as usize],
            qos: Qos::new(qos),
            slot_waiters: VecDeque::new(),
            dirty_qps: Vec::new(),
            stalls: Stalls::default(),
            outages: Vec::new(),
        }
    }
}
