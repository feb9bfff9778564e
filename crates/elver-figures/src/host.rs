//! Measurements through one daemon that spins: this process is the client, another one offers the
//! memory.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use elver::{
    AccessFlags, ConnectOptions, Gid, Mr, Policy, SendOp, Session, SessionOptions, Vqp, VqpOptions,
    Wc, WcStatus,
};
use elver_console::Failure;
use elver_core::Via;
use elver_node::Status;
use elver_testbed::cluster::{Cluster, Ground, NodeSpec};
use elver_testbed::programs::Programs;
use elver_testbed::sample::Sample;
use elver_testbed::seat::{Seat, pin};
use elver_testbed::ways::core_via;
use elver_testbed::worker::client::First;
use elver_testbed::worker::{Known, Place, STEP, Task, Worker};

use crate::report::counted::Counted;
use crate::window::{Step, Window};

/// Numbers of the nodes: the one whose clients are measured, a meta server; and one that is known
/// and sleeps.
const NODE: usize = 0;
const IDLE: usize = 1;
/// Cores of the client and of the daemon.
const CLIENT_CORE: usize = 0;
const DAEMON_CORE: usize = 1;
/// What the daemon is made with to spin for as long as a benchmark lasts.
const SPINS: [&str; 2] = ["engine.spin_us = 10000000", "engine.yield_cores = 0"];
/// And so that its one user may have the largest crowd.
const QUOTA: &str = "quota.sessions = 2048";

/// What is not sent to needs no port that is bound.
const PORT: u16 = 1;
/// The longest that a storm may take.
const STORM: Duration = Duration::from_secs(60);

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
    pub(crate) fn start(programs: &Programs, spins: bool) -> Result<Host, Failure> {
        let options = SPINS.iter().filter(|_| spins).chain([&QUOTA]);
        let options = options.map(ToString::to_string).collect();
        // A daemon that spins has its core for itself.
        let (own, seat) = match spins {
            true => (Seat::On(DAEMON_CORE), Seat::Off(DAEMON_CORE)),
            false => (Seat::Anywhere, Seat::Anywhere),
        };
        let specs = [
            NodeSpec { name: "the node", seat: own, options },
            NodeSpec { name: "the idle node", seat, options: Vec::new() },
        ];
        let cluster = Cluster::start(programs, Ground::Loopback, &specs)?;
        let at = Place { socket: cluster.socket(NODE), seat };
        let mut target = Worker::start(&cluster, NODE, &Task::Target { at: at.clone() })?;
        let client = Client { at, to: target.hear(STEP)?, idle: cluster.address(IDLE).into() };
        Ok(Host { _target: target, cluster, client })
    }

    /// One of a crowd, off the core that is the daemon's, or that of another server.
    pub(crate) fn member(&self, alone: bool) -> Result<Worker> {
        let seat = if alone { Seat::On(CLIENT_CORE) } else { Seat::Off(DAEMON_CORE) };
        let at = Place { seat, ..self.client.at.clone() };
        Worker::start(&self.cluster, NODE, &Task::Member { at, alone })
    }

    /// What the node has counted so far.
    pub(crate) fn counted(&self) -> Result<Counted> {
        Ok(Counted::of_daemon(&Status::fetch(&self.cluster.socket(NODE))?))
    }

    /// A process that takes messages, for as long as it is kept; and what to know of it.
    pub(crate) fn sink(&self) -> Result<(Worker, Known)> {
        let mut sink =
            Worker::start(&self.cluster, NODE, &Task::Sink { at: self.client.place(false) })?;
        let known = sink.hear(STEP)?;
        Ok((sink, known))
    }

    /// Fresh processes, one after the other, from their first call to their first READ.
    pub(crate) fn firsts(&self, count: u32) -> Result<Sample> {
        let mut sample = Sample::new()?;
        let task = Task::First { at: self.client.place(true), to: self.client.to };
        let cluster = &self.cluster;
        self.client.beside(|| {
            for _ in 0..count {
                let first: First = Worker::start(cluster, NODE, &task)?.hear(STEP)?;
                sample.add(Duration::from_nanos((first.total_us * 1e3) as u64));
            }
            Ok(sample)
        })
    }

    /// Processes that begin at one word, and the time until the last of them has read.
    pub(crate) fn firsts_at_once(&self, count: u32) -> Result<(Sample, Duration)> {
        let task = Task::Storm { at: self.client.place(false), to: self.client.to };
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
        let total = since.elapsed();
        sample.took(total);
        Ok((sample, total))
    }
}

impl Client {
    fn spins(&self) -> bool {
        matches!(self.at.seat, Seat::Off(_))
    }

    /// Where a process runs: beside a daemon that spins, one that is alone keeps its core.
    fn place(&self, alone: bool) -> Place {
        let seat = if alone && self.spins() { Seat::On(CLIENT_CORE) } else { self.at.seat };
        Place { seat, ..self.at.clone() }
    }

    /// Runs `job` with a session, on a thread that is pinned beside the daemon's.
    pub(crate) fn run<T: Send>(
        &self,
        job: impl FnOnce(&Session, &Client) -> Result<T> + Send,
    ) -> Result<T> {
        self.beside(|| job(&self.session()?, self))
    }

    /// Where the daemon listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.at.socket
    }

    /// A session of the calling thread's.
    pub(crate) fn session(&self) -> Result<Session> {
        let options = SessionOptions { spin: STEP, ..SessionOptions::default() };
        Ok(Session::connect_with(Some(&self.at.socket), options)?)
    }

    /// Makes the RC QP that all VQPs of the node to `gid` share.
    pub(crate) fn link_to(&self, gid: Gid) -> Result<()> {
        self.run(|session, _| {
            let shared = ConnectOptions { policy: Policy::Lite, uncached: false };
            session.create_vqp(VqpOptions::default())?.qconnect_with(gid, PORT, shared)?;
            Ok(())
        })
    }

    /// Runs `job` on a thread that leaves a daemon that spins its core.
    fn beside<T: Send>(&self, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let ran = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                if self.spins() {
                    pin(CLIENT_CORE);
                }
                job()
            });
            running.join()
        });
        ran.map_err(|_| anyhow!("the client's thread panicked"))?
    }
}

/// A VQP with memory, connected to where messages go and memory is offered.
pub(crate) fn ready(
    session: &Session,
    to: &Known,
    size: u32,
    depth: u32,
    policy: Policy,
) -> Result<(Vqp, Mr, Via)> {
    let options = VqpOptions { max_send_wr: depth.max(16), ..VqpOptions::default() };
    let vqp = session.create_vqp(options)?;
    let via = vqp.qconnect_with(to.gid(), to.port, ConnectOptions { policy, uncached: false })?;
    Ok((vqp, session.alloc(u64::from(size.max(8)), AccessFlags::LOCAL_WRITE)?, core_via(via)))
}

/// Operations through a VQP; see [`crate::bench::vqp_load`] for the same between two nodes.
pub(crate) fn post_and_poll(
    vqp: &Vqp,
    near: &Mr,
    op: SendOp,
    size: u32,
    window: Window,
) -> Result<Sample> {
    let sges = [near.sge(0, size)];
    let wrs = window.batch(op, &sges);
    let mut wcs = [Wc::default(); 32];
    window.run(|step| match step {
        Step::Post => {
            vqp.post_send(&wrs).map_err(|failed| broken(vqp, failed.error))?;
            Ok(0)
        }
        Step::Take => {
            let found = vqp.wait_cq(&mut wcs, Some(STEP)).context("nothing completed")?;
            for wc in &wcs[..found] {
                ensure!(wc.status == WcStatus::Success, "a WR through a VQP failed: {}", wc.status);
            }
            Ok(found)
        }
    })
}

/// Why a VQP takes no WR: an earlier one that failed, if there is one.
fn broken(vqp: &Vqp, error: elver::Error) -> anyhow::Error {
    let mut wcs = [Wc::default(); 32];
    let failed = |wc: &&Wc| wc.status != WcStatus::Success;
    while let Ok(found @ 1..) = vqp.poll_cq(&mut wcs) {
        if let Some(wc) = wcs[..found].iter().find(failed) {
            return anyhow!("a WR through a VQP failed: {}", wc.status);
        }
    }
    vqp.failure().unwrap_or(error).into()
}
