//! Measurements through one daemon that spins: this process is the client, another one offers the
//! memory.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use elver::{
    AccessFlags, ConnectOptions, Connecting, Gid, Mr, Payload, SendFlags, SendOp, SendWr, Session,
    SessionOptions, Via, Vqp, VqpOptions, Wc, WcStatus,
};

use crate::bench::sample::{Clock, Sample};
use crate::cluster::{Cluster, Ground, NodeSpec};
use crate::exit::Failure;
use crate::pair::pin;
use crate::worker::client::First;
use crate::worker::{Known, Place, STEP, Task, Worker};

/// Numbers of the nodes: the one whose clients are measured, a meta server; and one that is known
/// and sleeps.
const NODE: usize = 0;
const IDLE: usize = 1;
/// Cores of the client and of the daemon.
const CLIENT_CORE: usize = 0;
const DAEMON_CORE: usize = 1;
/// What the daemon is made with to spin for as long as a benchmark lasts.
const SPINS: [&str; 2] = ["engine.spin_us = 10000000", "engine.yield_cores = 0"];

/// The longest that a storm may take.
const STORM: Duration = Duration::from_secs(30);

/// A host: a daemon, a process that offers memory, and nothing else.
pub(crate) struct Host {
    // In this order: processes end before their daemons.
    _target: Worker,
    cluster: Cluster,
    pub(crate) client: Client,
}

/// What a client on the host must know.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    at: Place,
    pub(crate) to: Known,
    pub(crate) idle: Gid,
}

impl Host {
    /// Starts it. The engine spins, on a core of its own, or goes to sleep as it usually does.
    pub(crate) fn start(spins: bool) -> Result<Host, Failure> {
        let options = SPINS.iter().filter(|_| spins).map(ToString::to_string).collect();
        let specs = [
            NodeSpec { name: "the node", core: spins.then_some(DAEMON_CORE), options },
            NodeSpec { name: "the idle node", core: None, options: Vec::new() },
        ];
        let cluster = Cluster::start(Ground::Loopback, &specs)?;
        let at = Place { socket: cluster.socket(NODE), core: None };
        let mut target = Worker::start(&cluster, NODE, &Task::Target { at: at.clone() })?;
        let at = Place { core: spins.then_some(CLIENT_CORE), ..at };
        let client = Client { at, to: target.hear(STEP)?, idle: cluster.address(IDLE).into() };
        Ok(Host { _target: target, cluster, client })
    }

    /// Fresh processes, one after the other, from their first call to their first READ. Each begins
    /// at a word, when this process has nothing left to do: it may stand on the same core.
    pub(crate) fn firsts(&self, count: u32) -> Result<Sample> {
        let mut sample = Sample::new()?;
        let task = Task::Storm { at: self.client.at.clone(), to: self.client.to };
        for _ in 0..count {
            let mut worker = Worker::start(&self.cluster, NODE, &task)?;
            worker.hear::<bool>(STEP)?;
            worker.go()?;
            let first: First = worker.hear(STEP)?;
            sample.add(Duration::from_nanos((first.total_us * 1e3) as u64));
        }
        Ok(sample)
    }

    /// Processes that begin at one word, and the time until the last of them has read.
    pub(crate) fn firsts_at_once(&self, count: u32) -> Result<(Sample, Duration)> {
        let task = Task::Storm { at: self.client.at.clone(), to: self.client.to };
        let start = || Worker::start(&self.cluster, NODE, &task);
        let mut workers: Vec<Worker> = (0..count).map(|_| start()).collect::<Result<_>>()?;
        for worker in &mut workers {
            worker.hear::<bool>(STORM)?;
        }
        let since = Instant::now();
        workers.iter_mut().try_for_each(Worker::go)?;
        let mut sample = Sample::new()?;
        for worker in &mut workers {
            let first: First = worker.hear(STORM)?;
            sample.record(Duration::from_nanos((first.total_us * 1e3) as u64));
        }
        Ok((sample, since.elapsed()))
    }
}

impl Client {
    /// Runs `job` with a session, on a thread that is pinned beside the daemon's.
    pub(crate) fn run<T: Send>(
        &self,
        job: impl FnOnce(&Session, &Client) -> Result<T> + Send,
    ) -> Result<T> {
        let ran = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                if let Some(core) = self.at.core {
                    pin(core);
                }
                let options = SessionOptions { spin: STEP, ..SessionOptions::default() };
                job(&Session::connect_with(Some(&self.at.socket), options)?, self)
            });
            running.join()
        });
        ran.map_err(|_| anyhow!("the client's thread panicked"))?
    }
}

/// Connects of new VQPs, `clients` of them under way at any time.
pub(crate) fn connects(
    session: &Session,
    gid: Gid,
    port: u16,
    options: ConnectOptions,
    clients: u32,
    duration: Duration,
    check: impl Fn(elver_core::Via) -> Result<()>,
) -> Result<Sample> {
    let mut sample = Sample::new()?;
    let mut under_way: Vec<(Vqp, Connecting, Instant)> = Vec::new();
    let mut clock = Clock::new(duration);
    while clock.goes_on(&mut sample) {
        while under_way.len() < clients as usize {
            let vqp = session.create_vqp(VqpOptions::default())?;
            let since = Instant::now();
            let connecting = vqp.qconnect_start(gid, port, options)?;
            under_way.push((vqp, connecting, since));
        }
        let mut index = 0;
        while index < under_way.len() {
            let (_, connecting, since) = &under_way[index];
            match connecting.poll()? {
                Some(via) => {
                    sample.record(since.elapsed());
                    check(core_via(via))?;
                    under_way.swap_remove(index);
                }
                None => {
                    ensure!(since.elapsed() < STEP, "a connect did not end within {STEP:?}");
                    index += 1;
                }
            }
        }
    }
    clock.finish(&mut sample);
    Ok(sample)
}

/// A VQP with memory, connected to the target.
pub(crate) fn ready(
    session: &Session,
    to: &Known,
    size: u32,
    depth: u32,
) -> Result<(Vqp, Mr, Via)> {
    let options = VqpOptions { max_send_wr: depth.max(16), ..VqpOptions::default() };
    let vqp = session.create_vqp(options)?;
    let via = vqp.qconnect(to.gid(), to.port)?;
    Ok((vqp, session.alloc(u64::from(size.max(8)), AccessFlags::LOCAL_WRITE)?, via))
}

/// Operations through a VQP; see [`crate::bench::vqp_load`] for the same between two nodes.
pub(crate) fn post_and_poll(
    vqp: &Vqp,
    near: &Mr,
    op: SendOp,
    size: u32,
    (depth, batch): (u32, u32),
    duration: Duration,
) -> Result<Sample> {
    let sges = [near.sge(0, size)];
    let batch = batch as usize;
    let wr = |signaled| SendWr {
        wr_id: 0,
        op,
        flags: if signaled { SendFlags::SIGNALED } else { SendFlags::empty() },
        payload: Payload::Sges(&sges),
        dest: None,
    };
    let wrs: Vec<SendWr<'_>> = (0..batch).map(|index| wr(index + 1 == batch)).collect();
    let window = (depth as usize / batch).max(1);
    let mut sample = Sample::of_batches(batch)?;
    let mut posted_at = vec![Instant::now(); window];
    let (mut posted, mut completed) = (0usize, 0usize);
    let mut wcs = [Wc::default(); 32];
    let mut clock = Clock::new(duration);
    let mut last = Instant::now();
    while clock.goes_on(&mut sample) {
        while posted - completed < window {
            posted_at[posted % window] = last;
            vqp.post_send(&wrs).map_err(|(_, error)| error)?;
            posted += 1;
        }
        let found = vqp.wait_cq(&mut wcs, Some(STEP))?;
        last = Instant::now();
        for wc in &wcs[..found] {
            ensure!(wc.status == WcStatus::Success, "a WR through a VQP failed: {}", wc.status);
            sample.record(last - posted_at[completed % window]);
            completed += 1;
        }
    }
    clock.finish(&mut sample);
    Ok(sample)
}

/// What backs a VQP, in the core's words.
pub(crate) fn core_via(via: Via) -> elver_core::Via {
    match via {
        Via::Rc => elver_core::Via::Rc,
        Via::DcCached => elver_core::Via::DcCached,
        Via::DcLookup => elver_core::Via::DcLookup,
        Via::Leased => elver_core::Via::Leased,
    }
}
