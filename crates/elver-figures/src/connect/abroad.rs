//! A host with a daemon and processes, and a cluster beyond its network that they connect to: a meta
//! server and hosts that nobody has met. A host has one core: the processes share theirs with their
//! daemon, which lets them go ahead, and the rest of the cluster has the other one.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use elver::Gid;
use elver_console::Failure;
use elver_node::Status;
use elver_testbed::cluster::{Cluster, Ground, NodeSpec};
use elver_testbed::programs::Programs;
use elver_testbed::sample::Sample;
use elver_testbed::seat::Seat;
use elver_testbed::tcp;
use elver_testbed::worker::client::First;
use elver_testbed::worker::program::Done;
use elver_testbed::worker::{Known, Place, STEP, Task, Worker};

use crate::args::Stage;
use crate::report::counted::Counted;

/// Cores of the host, and of the rest of the cluster.
const HOST_CORE: usize = 0;
const FAR_CORE: usize = 1;
/// The first host of the cluster is beyond, the second one the daemon's.
const FAR: usize = 0;
const NODE: usize = 1;
/// What the daemon is made with to be awake for as long as a benchmark lasts, and to let the
/// processes on its core go ahead.
const AWAKE: [&str; 2] = ["engine.spin_us = 10000000", "engine.yield_cores = 1024"];
/// And so that its one user may have the largest crowd.
const QUOTA: &str = "quota.sessions = 2048";

/// The two of them.
pub(crate) struct Abroad {
    // In this order: processes end before their daemons.
    _far: Worker,
    cluster: Cluster,
    hosts: Vec<Known>,
}

/// What processes did, and what their node counted meanwhile.
pub(crate) type Measured = (Sample, Counted);

impl Abroad {
    /// Starts them. The daemon spins, or sleeps when it has nothing to do; the rest of the cluster
    /// never does.
    pub(crate) fn start(
        programs: &Programs,
        stage: Stage,
        awake: bool,
        hosts: u32,
    ) -> Result<Abroad, Failure> {
        let mut cluster = Cluster::empty(programs, ground(stage))?;
        let far = cluster.host()?;
        let first = cluster.many_addresses()?;
        let at = Place { socket: cluster.socket(far), seat: Seat::On(FAR_CORE) };
        let task = Task::Abroad { at, meta: cluster.address(far), first, hosts };
        let mut worker = Worker::start(&cluster, far, &task)?;
        let hosts = worker.hear(STEP)?;
        let options = AWAKE.iter().filter(|_| awake).chain([&QUOTA]).map(ToString::to_string);
        let (seat, options) = (Seat::On(HOST_CORE), options.collect());
        cluster.node(&NodeSpec { name: "the node", seat, options })?;
        cluster.lead_to_many(first)?;
        Ok(Abroad { _far: worker, cluster, hosts })
    }

    /// Fresh processes one after the other, each to a host that nobody has met, from their first
    /// call to their first READ.
    pub(crate) fn firsts(&self) -> Result<Measured> {
        self.strangers(|to, sample| {
            let task = Task::First { at: self.place(), to };
            let first: First = Worker::start(&self.cluster, NODE, &task)?.hear(STEP)?;
            sample.add(Duration::from_nanos((first.total_us * 1e3) as u64));
            Ok(())
        })
    }

    /// So many at once, to the hosts in turn.
    pub(crate) fn firsts_at_once(&self, count: u32) -> Result<Measured> {
        let before = self.counted()?;
        let begin = |to: &Known| {
            let task = Task::Storm { at: self.place(), to: *to };
            Worker::start(&self.cluster, NODE, &task)
        };
        let hosts = self.hosts.iter().cycle().take(count as usize);
        let mut workers: Vec<Worker> = hosts.map(begin).collect::<Result<_>>()?;
        for worker in &mut workers {
            worker.hear::<bool>(STEP)?;
        }
        let since = Instant::now();
        workers.iter_mut().try_for_each(Worker::go)?;
        let mut sample = Sample::new()?;
        for worker in &mut workers {
            let first: First = worker.hear(STEP)?;
            sample.record(Duration::from_nanos((first.total_us * 1e3) as u64));
        }
        sample.took(since.elapsed());
        self.met_strangers(sample, before)
    }

    /// Fresh programs one after the other, each to a host that nobody has met, from `exec` to their
    /// first READ.
    pub(crate) fn programs(&self) -> Result<Measured> {
        self.strangers(|to, sample| {
            let task = Task::Program { at: self.place(), to };
            let (mut worker, began) = Worker::start_clocked(&self.cluster, NODE, &task)?;
            let done: Done = worker.hear(STEP)?;
            sample.add(Duration::from_nanos(done.at_ns.saturating_sub(began)));
            Ok(())
        })
    }

    fn strangers(
        &self,
        mut meet: impl FnMut(Known, &mut Sample) -> Result<()>,
    ) -> Result<Measured> {
        let before = self.counted()?;
        let mut sample = Sample::new()?;
        self.hosts.iter().try_for_each(|to| meet(*to, &mut sample))?;
        self.met_strangers(sample, before)
    }

    /// Each of them had to be looked up, and what was asked and read left this host.
    fn met_strangers(&self, sample: Sample, before: Counted) -> Result<Measured> {
        let counted = self.counted()?.since(before);
        let (met, reads, packets) = (self.hosts.len() as u64, counted.reads, counted.packets);
        ensure!(reads >= met, "{met} hosts that nobody knew were looked up by {reads} READs");
        ensure!(packets > met, "{met} processes READ over the network by {packets} packets");
        Ok((sample, counted))
    }

    /// One of a crowd of processes: also one that is alone must let its daemon have the core.
    pub(crate) fn member(&self) -> Result<Worker> {
        Worker::start(&self.cluster, NODE, &Task::Member { at: self.place(), alone: false })
    }

    pub(crate) fn meta(&self) -> Gid {
        self.cluster.address(FAR).into()
    }

    pub(crate) fn host_gids(&self) -> Vec<Gid> {
        self.hosts.iter().map(Known::gid).collect()
    }

    /// What the node has counted so far.
    pub(crate) fn counted(&self) -> Result<Counted> {
        Ok(Counted::of_daemon(&Status::fetch(&self.cluster.socket(NODE))?))
    }

    fn place(&self) -> Place {
        Place { socket: self.cluster.socket(NODE), seat: Seat::On(HOST_CORE) }
    }
}

/// Fresh programs that connect over TCP, on the same path, from `exec` to the first echo. The host
/// beyond has one that listens and spins, and no node runs.
pub(crate) fn tcp_programs(
    programs: &Programs,
    stage: Stage,
    count: u32,
) -> Result<Sample, Failure> {
    let mut cluster = Cluster::empty(programs, ground(stage))?;
    let (far, near) = (cluster.host()?, cluster.host()?);
    let server = (cluster.address(far), tcp::PORT).into();
    let listener = cluster.on(far, move || tcp::listen(server))??;
    let at = Place { socket: cluster.socket(near), seat: Seat::On(HOST_CORE) };
    let task = Task::TcpProgram { at, server };
    Ok(tcp::while_serving(&listener, || {
        let mut sample = Sample::new()?;
        for _ in 0..count {
            let (mut worker, began) = Worker::start_clocked(&cluster, near, &task)?;
            let done: Done = worker.hear(STEP)?;
            sample.add(Duration::from_nanos(done.at_ns.saturating_sub(began)));
        }
        Ok(sample)
    })?)
}

fn ground(stage: Stage) -> Ground {
    if stage == Stage::Netns { Ground::Netns } else { Ground::Loopback }
}
