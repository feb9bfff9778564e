//! All that a process with verbs makes before its first operation: a context, a PD, a CQ, an MR, and
//! an RC QP that is connected (KRCORE, figure 3b).

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::Result;
use elver_console::Failure;
use elver_core::{Via, VqpInit};
use elver_node::config::Config;
use elver_soft::{SoftConfig, SoftDevice};
use elver_testbed::node::Node;
use elver_testbed::node_pair::{self, Far};
use elver_testbed::pair::Placement;
use elver_testbed::sample::Sample;
use elver_testbed::ways::Way;
use elver_verbs::{AccessFlags, CqInit, Device};
use serde_json::{Value, json};

use crate::connect::waves::{Waves, close};
use crate::report::contract;
use crate::report::counted::Counted;
use crate::report::rows::Figure;

/// Address of the context: no packet of its own goes anywhere.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 5, 1));
const PORT: u16 = 7;
/// Depth of the CQ, as LITE's.
const CQE: u32 = 257;
/// Bytes of the MR.
const MR: u64 = 4_096;

/// The times of the parts, in the order of [`PARTS`].
#[derive(Default)]
pub(crate) struct Parts([Figure; 4]);

/// Opening the device, PD and CQ, an MR with its memory, and creating and connecting the QP.
const PARTS: [&str; 4] = ["context", "pd_cq", "mr", "qp"];

impl Parts {
    /// Medians by their names, in microseconds; nothing if nothing was measured.
    pub(crate) fn as_json(&self) -> Value {
        if self.0[0].median().is_nan() {
            return Value::Null;
        }
        let parts = PARTS.iter().zip(&self.0);
        parts
            .map(|(name, figure)| (name.to_string(), json!(contract::us(figure.median()))))
            .collect()
    }
}

/// Measures one after the other; what was made is closed before the next.
pub(crate) fn measure(
    placement: Placement,
    way: &Way,
    duration: Duration,
    parts: &mut Parts,
) -> Result<Waves, Failure> {
    let (waves, medians) = node_pair::run(
        placement,
        &Config::default(),
        |_| Ok(()),
        |_, ()| Ok(()),
        |node, far| one_after_the_other(node, far, way, duration),
    )?;
    parts.0.iter_mut().zip(medians).for_each(|(part, median)| part.push(median));
    Ok(waves)
}

fn one_after_the_other(
    node: &mut Node,
    far: &Far,
    way: &Way,
    duration: Duration,
) -> Result<(Waves, [f64; 4])> {
    node.learn(&[far.meta], || {})?;
    let mut parts = [Sample::new()?, Sample::new()?, Sample::new()?, Sample::new()?];
    let mut waves = Waves { sample: Sample::new()?, counted: Counted::default(), peers: 1 };
    let begin = Instant::now();
    while waves.counted.connects == 0 || begin.elapsed() < duration {
        let before = Counted::of(node);
        let start = Instant::now();
        let soft = SoftConfig { publish: false, ..SoftConfig::for_address(ADDRESS) };
        let mut device = SoftDevice::open(soft)?;
        let context = start.elapsed();
        let pd = device.alloc_pd()?;
        device.create_cq(CqInit { cqe: CQE })?;
        let cq = start.elapsed();
        let memory = device.alloc_memory(MR)?;
        device.reg_mr(pd, memory, None, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
        let mr = start.elapsed();
        // The QP is one of the node's own device, which has the handshake: the same, at the same price.
        let vqp = node.vqp(VqpInit::default())?;
        let via: Via = node.connect(vqp, far.meta, PORT, way.options)?;
        let all = start.elapsed();
        way.check(via)?;
        let times = [context, cq - context, mr - cq, all - mr];
        parts.iter_mut().zip(times).for_each(|(part, time)| part.record(time));
        waves.sample.add(all);
        waves.counted = waves.counted.and(Counted::of(node).since(before));
        drop(device);
        close(node, &[vqp])?;
    }
    Ok((waves, parts.each_ref().map(|part| part.us(50.0))))
}
