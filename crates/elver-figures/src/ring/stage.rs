//! Two ends with a session each: at two nodes, which their threads drive, or, in two processes, at one on a third thread.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use elver::{EmbeddedNode, Gid, RemoteAddr, Session, SessionOptions};
use elver_console::Failure;
use elver_node::Node;
use elver_node::config::Config;
use elver_portal::Listener;
use elver_testbed::apart::{self, Notice};
use elver_testbed::pair::{self, Client, End};
use elver_testbed::scratch::Scratch;

use crate::args::Stage;

/// The longest that one end waits for the other.
pub(crate) const STALL: Option<Duration> = Some(Duration::from_secs(10));
const REGISTRY_PORT: u16 = 4_790;

/// Runs both ends; gives what `client` does. Each is given its session and the other end's node.
pub(crate) fn run<T: Send>(
    stage: Stage,
    server: impl FnOnce(&Session, Gid, &Client) -> Result<()> + Send,
    client: impl FnOnce(&Session, Gid) -> Result<T> + Send,
) -> Result<T, Failure> {
    if stage == Stage::Host {
        return beside_one_node(server, client);
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

/// Both at one node, in two processes, through its portals.
fn beside_one_node<T: Send>(
    server: impl FnOnce(&Session, Gid, &Client) -> Result<()> + Send,
    client: impl FnOnce(&Session, Gid) -> Result<T> + Send,
) -> Result<T, Failure> {
    let scratch = Scratch::new()?;
    let path = scratch.path().join("node.sock");
    let listener = Listener::bind(&path).map_err(anyhow::Error::from)?;
    let node = Node::open(config(IpAddr::V4(Ipv4Addr::LOCALHOST)), Some(listener));
    let _thread = node.and_then(Node::spawn).map_err(anyhow::Error::from)?;
    apart::run(
        |peer| {
            let session = Session::connect(&path)?;
            server(&session, session.gid(), peer)
        },
        || {
            let session = Session::connect(&path)?;
            client(&session, session.gid())
        },
    )
}

fn config(address: IpAddr) -> Config {
    let mut config = Config::default();
    config.node.address = address;
    config.metrics.listen = String::new();
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
