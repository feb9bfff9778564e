//! Connects in waves: so many at once, then all are taken down and forgotten, and so on. What is
//! measured is a wave, from the first connect's begin to the last one's end; closing is outside.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use elver_console::Failure;
use elver_core::{VqpId, VqpInit};
use elver_node::config::Config;
use elver_testbed::hosts::{HostKnown, NUMBER_AT};
use elver_testbed::node::{self, Node};
use elver_testbed::node_pair::{self, Crowded, Far};
use elver_testbed::pair::Placement;
use elver_testbed::sample::{Sample, WARM_UP};
use elver_testbed::ways::{Before, To, Way};
use elver_verbs::{Gid, Payload, SendFlags, SendOp, SendWr};

use crate::report::counted::Counted;

/// Any port: no message is sent.
const PORT: u16 = 7;
/// A connect, or a READ, that takes longer has failed.
const STALL: Duration = Duration::from_secs(60);
/// Polls between two looks at whether connects have stalled.
const POLLS_PER_LOOK: u32 = 1024;
/// RC QPs that a node of LITE's keeps beside those to the hosts.
const LITE_SPARE: u32 = 16;

/// What the waves of one row came to.
pub(crate) struct Waves {
    pub(crate) sample: Sample,
    pub(crate) counted: Counted,
    /// Nodes that were connected to.
    pub(crate) peers: u32,
}

/// How many, and where to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Connects of a wave.
    pub(crate) clients: u32,
    /// Hosts to go to; none for a single node.
    pub(crate) hosts: u32,
    pub(crate) duration: Duration,
}

/// Measures a row between two nodes of its own: QPs that one way leaves behind do not slow another.
pub(crate) fn measure(placement: Placement, way: &Way, shape: Shape) -> Result<Waves, Failure> {
    let crowded = Crowded { hosts: shape.hosts, spoken_to: way.speaks_with_peers() };
    let mut config = Config::default();
    if way.makes_shared_links() {
        config.transfer.rc_qps_max = shape.hosts + LITE_SPARE;
    }
    let run = |node: &mut Node, far: &Far| {
        if way.before == Before::AtHand {
            node.link_to(far.meta, PORT)?;
        }
        match way.before {
            Before::Nothing | Before::Addresses => once(node, far, way, shape),
            _ => again_and_again(node, far, way, shape),
        }
    };
    node_pair::run_among(placement, &config, crowded, |_| Ok(()), |_, ()| Ok(()), run)
}

/// Every host once, a wave of them after the other: nobody meets anybody twice.
fn once(node: &mut Node, far: &Far, way: &Way, shape: Shape) -> Result<Waves> {
    let gids: Vec<Gid> = far.hosts.iter().map(|host| host.gid).collect();
    ensure!(!gids.is_empty(), "{} needs hosts that were never met", way.name);
    prepare(node, &gids, way)?;
    let mut waves = Waves::new(gids.len())?;
    for (gids, hosts) in
        gids.chunks(shape.clients as usize).zip(far.hosts.chunks(shape.clients as usize))
    {
        let vqps = waves.ride(node, gids, way)?;
        see_that_they_are_there(node, &vqps, hosts)?;
        // They are not closed: that would be under way while the next are made.
    }
    let met = gids.len() as u64;
    let asked = match way.before {
        Before::Nothing => waves.counted.reads,
        _ => waves.counted.rc_made,
    };
    ensure!(asked >= met, "{}: {met} nodes were met for the first time, by {asked}", way.name);
    Ok(waves)
}

/// Waves to the same peers for as long as is asked.
fn again_and_again(node: &mut Node, far: &Far, way: &Way, shape: Shape) -> Result<Waves> {
    let clients = shape.clients as usize;
    let one = if way.to == To::Idle { far.idle } else { far.meta };
    let gids: Vec<Gid> = match far.hosts.len() {
        0 => vec![one; clients],
        _ => far.hosts.iter().map(|host| host.gid).cycle().take(clients).collect(),
    };
    let peers = far.hosts.len().clamp(1, clients);
    prepare(node, &gids[..peers], way)?;
    let mut waves = Waves::new(peers)?;
    let vqps = waves.ride(node, &gids, way)?;
    if !far.hosts.is_empty() {
        see_that_they_are_there(node, &vqps[..peers], &far.hosts[..peers])?;
    }
    close(node, &vqps)?;
    for share in [WARM_UP, 1.0] {
        waves = Waves::new(peers)?;
        let begin = Instant::now();
        while waves.counted.connects == 0 || begin.elapsed() < shape.duration.mul_f64(share) {
            let vqps = waves.ride(node, &gids, way)?;
            close(node, &vqps)?;
        }
    }
    Ok(waves)
}

impl Waves {
    fn new(peers: usize) -> Result<Waves> {
        let counted = Counted::default();
        Ok(Waves { sample: Sample::new()?, counted, peers: peers as u32 })
    }

    /// One connect of a new VQP to each of these, all of them at once.
    fn ride(&mut self, node: &mut Node, gids: &[Gid], way: &Way) -> Result<Vec<VqpId>> {
        let vqps: Vec<VqpId> =
            gids.iter().map(|_| node.vqp(VqpInit::default())).collect::<Result<_>>()?;
        let mut under_way: HashMap<VqpId, Instant> = HashMap::with_capacity(vqps.len());
        let before = Counted::of(node);
        let begin = Instant::now();
        let mut last = begin;
        for (vqp, gid) in vqps.iter().zip(gids) {
            let since = Instant::now();
            match node.begin_connect(*vqp, *gid, PORT, way.options)? {
                None => drop(under_way.insert(*vqp, since)),
                Some(via) => {
                    last = Instant::now();
                    self.sample.record(last - since);
                    way.check(via)?;
                }
            }
        }
        let mut polls = 0u32;
        while !under_way.is_empty() {
            node.poll();
            while let Some((vqp, result)) = node.next_connected() {
                // First of all, as a READ's end is: the book-keeping is the benchmark's.
                let ended = Instant::now();
                let Some(since) = under_way.remove(&vqp) else { continue };
                let via = match result {
                    Ok(via) => via,
                    // Whoever had to answer had no turn in all the time: what is lost counts.
                    Err(_) if begin.elapsed() < STALL => {
                        let gid = vqps.iter().position(|other| *other == vqp).map(|at| gids[at]);
                        let gid = gid.ok_or_else(|| anyhow!("a connect of no client's"))?;
                        match node.begin_connect(vqp, gid, PORT, way.options)? {
                            None => {
                                under_way.insert(vqp, since);
                                continue;
                            }
                            Some(via) => via,
                        }
                    }
                    Err(error) => return Err(error),
                };
                last = ended;
                self.sample.record(ended - since);
                way.check(via)?;
            }
            // Not each time: the clock is a good part of a poll that finds nothing.
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_PER_LOOK) && last.elapsed() > STALL {
                bail!("{}: no connect ended within {} s", way.name, STALL.as_secs());
            }
        }
        self.sample.took_more(last - begin);
        self.counted = self.counted.and(Counted::of(node).since(before));
        Ok(vqps)
    }
}

/// What the way supposes.
fn prepare(node: &mut Node, gids: &[Gid], way: &Way) -> Result<()> {
    let met = |node: &mut Node| node.peers().iter().any(|peer| gids.contains(&peer.gid));
    match way.before {
        Before::Nothing => ensure!(!met(node), "{}: a peer is known already", way.name),
        Before::Addresses | Before::Records => node.learn(gids, || {})?,
        Before::AtHand => at_hand(node, gids[0], way)?,
        Before::Ignored => {}
    }
    Ok(())
}

/// Connects until it is by what it should be.
fn at_hand(node: &mut Node, gid: Gid, way: &Way) -> Result<()> {
    let start = Instant::now();
    loop {
        let vqp = node.vqp(VqpInit::default())?;
        let via = node.connect(vqp, gid, PORT, way.options)?;
        node.destroy(vqp)?;
        if way.via.contains(&via) {
            return Ok(());
        }
        ensure!(start.elapsed() < STALL, "{}: connects come by {via:?}", way.name);
        node.poll();
    }
}

/// Takes VQPs down, and waits until nothing is left of the RC QPs that went with them.
pub(crate) fn close(node: &mut Node, vqps: &[VqpId]) -> Result<()> {
    vqps.iter().try_for_each(|vqp| node.destroy(*vqp))?;
    let start = Instant::now();
    while node.leases() > 0 {
        node.poll();
        ensure!(start.elapsed() < STALL, "{} RC QPs were not closed", node.leases());
    }
    Ok(())
}

/// READs each host's number over the VQP that is connected to it.
fn see_that_they_are_there(node: &mut Node, vqps: &[VqpId], hosts: &[HostKnown]) -> Result<()> {
    let near = node.region(8)?;
    let sges = [near.sge(8)];
    let mut seen = Vec::with_capacity(hosts.len());
    for (vqp, host) in vqps.iter().zip(hosts) {
        let mut from = host.remote;
        from.addr += NUMBER_AT;
        let (op, flags) = (SendOp::Read(from), SendFlags::SIGNALED);
        node.post(
            *vqp,
            &[SendWr { wr_id: 1, op, flags, payload: Payload::Sges(&sges), dest: None }],
        )?;
        let start = Instant::now();
        let mut completions = node::blank::<1>();
        while node.take(&mut completions) == 0 {
            ensure!(start.elapsed() < STALL, "a host did not answer a READ");
        }
        node::succeeded(&completions[0])?;
        seen.push(near.word()?);
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    ensure!(seen.len() == count, "{count} connects led to {} hosts", seen.len());
    Ok(())
}
