//! Two ends with a session each: at two nodes, which their threads drive, or, in two processes, at one on a third thread.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use elver::{EmbeddedNode, Gid, RemoteAddr, Session, SessionOptions};
use elver_console::Failure;
use elver_node::config::Config;
use elver_node::{Node, NodeThread};
use elver_portal::Listener;
use elver_testbed::apart::{self, Notice};
use elver_testbed::meet::Meet;
use elver_testbed::pair::{self, Client, End};
use elver_testbed::sample::{Clock, Sample};
use elver_testbed::scratch::Scratch;

use crate::args::Stage;

/// The longest that one end waits for the other.
pub(crate) const STALL: Option<Duration> = Some(Duration::from_secs(60));
const REGISTRY_PORT: u16 = 4_790;
/// Local ACK timeout of the nodes, as a code: 1.1 s. Tail probes find what is lost long before; an end that had no turn
/// on its core is not gone.
const TIMEOUT: u8 = 18;

/// Ports of a pair, of several at one node.
const PORTS: u16 = 16;

/// Where a measurement runs, and beside how many others.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    stage: Stage,
    shared: Option<Shared<'a>>,
}

/// One of several.
#[derive(Clone, Copy)]
struct Shared<'a> {
    /// The node of all.
    node: &'a Path,
    pair: apart::Pair<'a>,
    /// Where all meet that have connected.
    ready: &'a Meet,
}

impl From<Stage> for Ground<'_> {
    /// Alone.
    fn from(stage: Stage) -> Self {
        Ground { stage, shared: None }
    }
}

impl Ground<'_> {
    /// The port that it has for one of its own.
    pub(crate) fn port(&self, port: u16) -> u16 {
        let number = self.shared.map_or(0, |shared| shared.pair.number);
        port + PORTS * u16::try_from(number).unwrap_or(u16::MAX / PORTS)
    }

    /// The time of a measurement, which begins when all others begin too.
    pub(crate) fn clock(&self, duration: Duration) -> Result<Clock> {
        self.shared.map_or(Ok(()), |shared| shared.ready.wait())?;
        Ok(Clock::new(duration))
    }
}

/// Runs both ends; gives what `client` does. Each is given its session and the other end's node.
pub(crate) fn run<T: Send>(
    ground: Ground<'_>,
    server: impl FnOnce(&Session, Gid, &Client) -> Result<()> + Send,
    client: impl FnOnce(&Session, Gid) -> Result<T> + Send,
) -> Result<T, Failure> {
    let Ground { stage, shared } = ground;
    if let Some(Shared { node, pair, .. }) = shared {
        return beside_one_node(node, pair, server, client);
    }
    if stage == Stage::Host {
        let node = OneNode::start()?;
        return beside_one_node(&node.path(), apart::Pair::default(), server, client);
    }
    let (_, out) = pair::run(
        stage.pair(),
        |end, peer| {
            let session = node(end, end.own)?;
            server(&session, Gid::from(end.peer), peer)
        },
        |end| {
            let session = node(end, end.peer)?;
            client(&session, Gid::from(end.peer))
        },
    )?;
    Ok(out)
}

/// Takes a measurement by so many pairs at once, each a thread of this process and a process of its own.
pub(crate) fn at_once(
    stage: Stage,
    threads: u32,
    measure: impl Fn(Ground<'_>) -> Result<Sample, Failure> + Sync,
) -> Result<Sample, Failure> {
    if threads == 1 {
        return measure(stage.into());
    }
    if stage != Stage::Host {
        return Err(Failure::unusable(
            "several threads share one node: take `--placement host`. Elsewhere each end drives a node of its own",
        ));
    }
    let node = OneNode::start()?;
    let path = node.path();
    let meets: [Meet; 3] = std::array::from_fn(|_| Meet::of(threads));
    let [before, behind, ready] = &meets;
    let (node, measure, meets) = (&*path, &measure, &meets);
    // What the others say then is that this one failed.
    let first = Mutex::new(None);
    let first_failed = &first;
    let samples = std::thread::scope(|scope| {
        let lanes = (0..threads as usize).map(|number| {
            let pair = apart::Pair { number, forks: Some([before, behind]) };
            let shared = Some(Shared { node, pair, ready });
            scope.spawn(move || {
                let measured = measure(Ground { stage, shared });
                measured.map_err(|failure| {
                    let mut first = first_failed.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(failure);
                    meets.iter().for_each(Meet::fail);
                })
            })
        });
        let lanes: Vec<_> = lanes.collect();
        let ended = lanes.into_iter().map(|lane| lane.join().unwrap_or(Err(())));
        ended.collect::<Vec<_>>()
    });
    if let Some(failure) = first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(failure);
    }
    let samples = samples.into_iter().collect::<Result<Vec<_>, _>>();
    let samples = samples.map_err(|()| anyhow!("a thread panicked"))?;
    Ok(Sample::at_once(samples).ok_or_else(|| anyhow!("no thread measured anything"))?)
}

/// A node of this process, at which processes open sessions.
struct OneNode {
    _thread: NodeThread,
    scratch: Scratch,
}

impl OneNode {
    fn start() -> Result<OneNode> {
        let scratch = Scratch::new()?;
        let listener = Listener::bind(&scratch.path().join(SOCKET))?;
        let node = Node::open(config(IpAddr::V4(Ipv4Addr::LOCALHOST)), Some(listener))?;
        Ok(OneNode { _thread: node.spawn()?, scratch })
    }

    fn path(&self) -> PathBuf {
        self.scratch.path().join(SOCKET)
    }
}

const SOCKET: &str = "node.sock";

/// Both at one node, in two processes, through its portals.
fn beside_one_node<T: Send>(
    node: &Path,
    pair: apart::Pair<'_>,
    server: impl FnOnce(&Session, Gid, &Client) -> Result<()> + Send,
    client: impl FnOnce(&Session, Gid) -> Result<T> + Send,
) -> Result<T, Failure> {
    apart::run(
        pair,
        |peer| {
            let session = Session::connect(node)?;
            server(&session, session.gid(), peer)
        },
        || {
            let session = Session::connect(node)?;
            client(&session, session.gid())
        },
    )
}

fn config(address: IpAddr) -> Config {
    let mut config = Config::default();
    config.node.address = address;
    config.metrics.listen = String::new();
    config.pool.timeout = TIMEOUT;
    config
}

/// A session at a node that this thread drives, in the cluster of the meta server at `meta`.
fn node(end: End, meta: IpAddr) -> Result<Session> {
    let mut config = config(end.own);
    let listen = format!("{meta}:{REGISTRY_PORT}");
    if end.own == meta {
        config.meta.serve = true;
        config.meta.listen = listen.clone();
    }
    config.meta.servers = vec![listen];
    let node = EmbeddedNode::new(Node::embedded(config)?);
    let began = Instant::now();
    while node.with(Node::status).registered == 0 {
        node.poll();
        std::thread::yield_now();
        if Some(began.elapsed()) > STALL {
            bail!("the meta server did not register this node");
        }
    }
    Ok(node.session(SessionOptions::default())?)
}

/// Waits for what the other end does, while the node of this one goes on.
pub(crate) fn wait<T>(session: &Session, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        session.poll()?;
        std::thread::yield_now();
        ensure!(Some(began.elapsed()) < STALL, "the other end does nothing");
    }
}

/// A place in memory, for a notice.
pub(crate) fn words(place: RemoteAddr) -> [u64; 2] {
    [place.addr, place.rkey.into()]
}

/// The place that a notice tells, if it tells one by now.
pub(crate) fn told(notice: &Notice) -> Result<Option<RemoteAddr>> {
    let place = |[addr, rkey]: [u64; 2]| -> Result<RemoteAddr> {
        Ok(RemoteAddr { addr, rkey: u32::try_from(rkey)? })
    };
    notice.told()?.map(place).transpose()
}
