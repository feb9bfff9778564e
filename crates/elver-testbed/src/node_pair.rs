//! Nodes at the two ends of a link, each driven by its end's thread.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use elver_console::Failure;
use elver_node::config::Config;
use elver_verbs::{Gid, RemoteAddr};

use crate::hosts::{HostKnown, Hosts};
use crate::node::Node;
use crate::pair::{self, Placement};

/// The longest that one end waits for the other.
const STALL: Duration = Duration::from_secs(60);
/// Rounds between two looks at whether the other end is still there.
const ROUNDS: u32 = 1024;
/// Rounds between two looks at hosts that nobody speaks with but to see that they are there.
const HOSTS_LOOK: u32 = 64;
/// Bytes that the far end offers.
pub const REGION: u64 = 2 << 20;

/// What the near end knows of the far one.
#[derive(Clone, Debug)]
pub struct Far {
    /// The meta server, which has an RC QP to it as soon as it can.
    pub meta: Gid,
    /// A node beside it that nobody has talked to.
    pub idle: Gid,
    /// Memory of the meta server's node.
    pub remote: RemoteAddr,
    /// Further hosts, as many as were asked for.
    pub hosts: Vec<HostKnown>,
}

/// Hosts beside the meta server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crowded {
    /// How many, on addresses of their own.
    pub hosts: u32,
    /// Whether connects speak with them, and not with the meta server alone: then they are looked
    /// after at every turn, which costs the meta server a system call.
    pub spoken_to: bool,
}

/// Runs `client` with a node at the near end; at the far end a meta server stands, which `serve`
/// runs beside after each round, and an idle node.
///
/// # Errors
///
/// What failed at either end; somebody who is not root, between namespaces.
pub fn run<C: Send, S: Send>(
    placement: Placement,
    config: &Config,
    prepare: impl FnOnce(&mut Node) -> Result<S> + Send,
    serve: impl Fn(&mut Node, &mut S) -> Result<()> + Send + Sync,
    client: impl FnOnce(&mut Node, &Far) -> Result<C> + Send,
) -> Result<C, Failure> {
    run_among(placement, config, Crowded::default(), prepare, serve, client)
}

/// The same, with further hosts at the far end, on its thread.
///
/// # Errors
///
/// What failed at either end; somebody who is not root, between namespaces.
pub fn run_among<C: Send, S: Send>(
    placement: Placement,
    config: &Config,
    crowded: Crowded,
    prepare: impl FnOnce(&mut Node) -> Result<S> + Send,
    serve: impl Fn(&mut Node, &mut S) -> Result<()> + Send + Sync,
    client: impl FnOnce(&mut Node, &Far) -> Result<C> + Send,
) -> Result<C, Failure> {
    let known = OnceLock::new();
    let (done, left) = (Said::default(), Said::default());
    let (_, out) = pair::run(
        placement,
        |end, peer| {
            let _leaves = left.at_end();
            let mut node = Node::open(end.own, end.own, config)?;
            let mut idle = Node::open(end.beside, end.own, config)?;
            node.register(|| {})?;
            idle.register(|| node.poll())?;
            let mut state = prepare(&mut node)?;
            let remote = node.region(REGION)?.remote();
            if crowded.hosts > 0 {
                pair::stand_for(placement, end)?;
            }
            let mut hosts = Hosts::open(end.hosts, crowded.hosts, node.core())?;
            let (meta, idle_gid) = (node.gid(), idle.gid());
            let _ = known.set(Far { meta, idle: idle_gid, remote, hosts: hosts.known() });
            peer.begin();
            let look = if crowded.spoken_to { 1 } else { HOSTS_LOOK };
            while !(peer.is_gone() || done.is()) {
                for round in 0..ROUNDS {
                    node.poll();
                    serve(&mut node, &mut state)?;
                    if round % look == 0 {
                        hosts.poll()?;
                    }
                }
                idle.poll();
            }
            Ok(())
        },
        |end| {
            let mut node = Node::open(end.own, end.peer, config)?;
            node.register(|| {})?;
            let far = known.get().ok_or_else(|| anyhow!("the far end said nothing"))?;
            let out = client(&mut node, far)?;
            // What it leaves under way must not look like a failure to who still answers it.
            done.say();
            let start = Instant::now();
            while !left.is() && start.elapsed() < STALL {
                node.poll();
            }
            Ok(out)
        },
    )?;
    Ok(out)
}

/// What one end says to the other, once.
#[derive(Debug, Default)]
struct Said(AtomicBool);

impl Said {
    fn say(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Says it when what this gives goes, in whatever way.
    fn at_end(&self) -> SayAtEnd<'_> {
        SayAtEnd(self)
    }
}

struct SayAtEnd<'a>(&'a Said);

impl Drop for SayAtEnd<'_> {
    fn drop(&mut self) {
        self.0.say();
    }
}

/// Runs `job` with a node at either end, and a meta server beside the second of them, on its thread:
/// `job` is given the node, the meta server where it is there to be driven, the other node's GID,
/// and which end it is. Results are in that order.
///
/// # Errors
///
/// What failed at either end; somebody who is not root, between namespaces.
pub fn run_both<T: Send>(
    placement: Placement,
    config: &Config,
    job: impl Fn(&mut Node, Option<&mut Node>, Gid, usize) -> Result<T> + Send + Sync,
) -> Result<[T; 2], Failure> {
    let client_gid = OnceLock::new();
    let server_gid = OnceLock::new();
    let (theirs, ours) = pair::run(
        placement,
        |end, client| {
            let mut meta = Node::open(end.own, end.own, config)?;
            meta.register(|| {})?;
            let mut node = Node::open(end.beside, end.own, config)?;
            node.register(|| meta.poll())?;
            let _ = server_gid.set(node.gid());
            client.begin();
            let start = Instant::now();
            let peer = loop {
                node.poll();
                meta.poll();
                if let Some(gid) = client_gid.get() {
                    break *gid;
                }
                if client.is_gone() || start.elapsed() > STALL {
                    bail!("the client's node did not come");
                }
            };
            job(&mut node, Some(&mut meta), peer, 1)
        },
        |end| {
            let mut node = Node::open(end.own, end.peer, config)?;
            node.register(|| {})?;
            let peer = *server_gid.get().ok_or_else(|| anyhow!("the far end said nothing"))?;
            let _ = client_gid.set(node.gid());
            job(&mut node, None, peer, 0)
        },
    )?;
    Ok([ours, theirs])
}
