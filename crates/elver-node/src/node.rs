use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use elver_core::{Core, Event, MetaServer, Seed};
use elver_portal::{Listener, Socket, Turns};
use elver_soft::{SoftConfig, SoftDevice};

use crate::clock::now;
use crate::config::{COMPLETIONS_MAX, Config};
use crate::engine::{Driver, Engine, Notice, Outlet, channel};
use crate::observer::Observer;
use crate::pulse::{Proof, Pulse, Watchdog};
use crate::registry::Secret;
use crate::slow::{MetaRole, Slow};
use crate::status::Status;
use crate::worker::Worker;
use crate::{NodeError, registry};

/// The longest sleep of a node's thread: a bound on how late a stop is noticed that nobody
/// announced. Shorter than what an RNIC takes for one who stands still, an eighth of
/// [`elver_rnic::Config::dc_context_idle_ns`]: an idle node forgets initiators that fell silent.
const SLEEP_MAX: Duration = Duration::from_millis(400);

/// A node: a device, the core on it, the sessions of the processes that use it, and its place in
/// the cluster.
///
/// Its owner drives it by [`Node::poll`] and [`Node::rest`], or gives it to a thread of its own by
/// [`Node::spawn`]. It ends when it is dropped: it leaves the cluster, and its processes see their
/// sockets end.
pub struct Node {
    // First, so that what serves others is gone before the engine is.
    observer: Option<Worker>,
    watchdog: Option<Worker>,
    slow: Slow,
    engine: Engine,
    outlet: Outlet,
    pulse: Arc<Pulse>,
    idle: IdlePolicy,
}

/// A node on a thread of its own.
pub struct NodeThread {
    outlet: Outlet,
    stop: Arc<AtomicBool>,
    registry: Option<SocketAddr>,
    thread: Option<JoinHandle<Result<(), NodeError>>>,
}

/// What a node's thread does while there is nothing to do.
#[derive(Clone, Copy, Debug)]
struct IdlePolicy {
    spin_ns: u64,
    yields: bool,
}

impl Node {
    /// A node in this process alone: no socket, no metrics. Processes of this one get a session by
    /// [`Node::connect`].
    ///
    /// # Errors
    ///
    /// As [`Node::open`].
    pub fn embedded(config: Config) -> Result<Node, NodeError> {
        Node::open(config, None)
    }

    /// A node that also serves the processes that come to `listener`.
    ///
    /// # Errors
    ///
    /// [`NodeError::Config`], also if the secret's file is refused; [`NodeError::Device`] if the device cannot
    /// be opened; [`NodeError::Core`] if the core cannot be made on it; [`NodeError::Listen`] if a meta
    /// server's port is not to be had; [`NodeError::System`] if there is no thread or descriptor left.
    pub fn open(config: Config, listener: Option<Listener>) -> Result<Node, NodeError> {
        config.check()?;
        let mut soft = SoftConfig::for_address(config.node.address);
        soft.rnic.udp_port = config.node.udp_port;
        soft.rnic.name.clone_from(&config.node.device);
        soft.rnic.max_cqe = COMPLETIONS_MAX as u32 + elver_core::LANDINGS_MAX;
        let device = SoftDevice::open(soft)?;
        let mut core = Core::new(device, config.core(), seed()?, now())?;
        // Until a thread drives it ([`Node::run`]), which may be never.
        core.turns_by_itself(false);
        let (outlet, inlet) =
            channel().map_err(|reason| NodeError::System { call: "eventfd", reason })?;
        let secret = config.secret()?;
        let role = meta_role(&mut core, &config, secret.clone())?;
        let pulse = Arc::<Pulse>::default();
        let proof = Proof { pulse: pulse.clone(), outlet: outlet.clone() };
        let slow = Slow::start(&config, core.gid(), core.record(), secret, role, proof)?;
        let idle = IdlePolicy::of(&config);
        let mut engine = Engine::new(core, config, listener, inlet, outlet.clone(), pulse.clone())?;
        engine.show_registries(slow.registries(), slow.registry_view());
        Ok(Node { observer: None, watchdog: None, slow, engine, outlet, pulse, idle })
    }

    /// One round of the engine; whether anything happened.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.engine.poll(Driver::Client)
    }

    /// Sleeps until there is something to do, at most so long.
    ///
    /// # Errors
    ///
    /// [`NodeError::Device`] or [`NodeError::System`] if the system does not wait.
    pub fn rest(&mut self, at_most: Duration) -> Result<(), NodeError> {
        self.engine.rest(at_most)
    }

    /// The core, for clients that the owner opens itself and drives inline. Their events come from
    /// [`Node::poll_event`], not from the core.
    pub fn core(&mut self) -> &mut Core<SoftDevice> {
        self.engine.core()
    }

    /// Takes an event of a client that the owner opened, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.engine.poll_event()
    }

    /// The client's end of a new session's socket. The node takes its own end at its next round.
    ///
    /// # Errors
    ///
    /// [`NodeError::System`] if there is no descriptor left, or the node has as much to look at as it holds
    /// ([`std::io::ErrorKind::WouldBlock`]): then it must have a round first.
    pub fn connect(&self) -> Result<Socket, NodeError> {
        // Nobody else could make room.
        let full = || std::io::Error::from(std::io::ErrorKind::WouldBlock);
        connect(|notice| self.outlet.try_send(notice).then_some(()).ok_or_else(full))
    }

    /// How the node is.
    pub fn status(&mut self) -> Status {
        self.engine.status()
    }

    /// Where its registry listens, if it is a meta server.
    pub fn registry_address(&self) -> Option<SocketAddr> {
        self.slow.registry_address()
    }

    /// What the operator of the node should hear of, such as that a registry refuses it and why. It is
    /// given once, and ends with the node. Without anybody who reads it, it is forgotten.
    pub fn take_reports(&mut self) -> Option<Receiver<String>> {
        self.slow.take_reports()
    }

    /// Serves status and metrics to others. The node must be driven for them to be answered.
    ///
    /// # Errors
    ///
    /// [`NodeError::System`] if there is no thread or descriptor for it.
    pub fn observe(&mut self, observer: Observer) -> Result<(), NodeError> {
        self.observer = Some(observer.start(self.outlet.clone())?);
        Ok(())
    }

    /// Has a thread watch that the engine turns while [`Node::run`] or [`Node::spawn`] drives it: a
    /// system call that does not return, or a loop without an end, is seen by nobody else.
    ///
    /// # Errors
    ///
    /// [`NodeError::System`] if there is no thread or descriptor for it.
    pub fn watch(&mut self, watchdog: Watchdog) -> Result<(), NodeError> {
        let proof = Proof { pulse: self.pulse.clone(), outlet: self.outlet.clone() };
        self.watchdog = Some(watchdog.start(proof)?);
        Ok(())
    }

    /// Gives the node to a thread of its own.
    ///
    /// # Errors
    ///
    /// [`NodeError::System`] if there is no thread for it.
    pub fn spawn(self) -> Result<NodeThread, NodeError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (outlet, registry) = (self.outlet.clone(), self.registry_address());
        let stops = stop.clone();
        let thread = std::thread::Builder::new()
            .name("elver-engine".into())
            .spawn(move || self.run(&stops))
            .map_err(|reason| NodeError::System { call: "starting a thread", reason })?;
        Ok(NodeThread { outlet, stop, registry, thread: Some(thread) })
    }

    /// Drives the node on this thread until `stop` is set. Who sets it makes the node look around
    /// by [`Stopper::stop`], or waits 0.4 s.
    ///
    /// # Errors
    ///
    /// As [`Node::rest`].
    pub fn run(mut self, stop: &AtomicBool) -> Result<(), NodeError> {
        let pulse = self.pulse.clone();
        let _driven = pulse.drive();
        self.engine.core().turns_by_itself(true);
        let (mut idle_since, mut turns) = (None, Turns::default());
        let looks_throughout = Turns::are_ignored(Duration::from_nanos(self.idle.spin_ns));
        while !stop.load(Ordering::Relaxed) {
            if self.engine.poll(Driver::Thread) {
                idle_since = None;
                // Whoever was told something may wait for this core, and who was let in does if he shares it: before he ran
                // he had it for long, to begin, which says nothing of what he does next.
                let may_wait = self.engine.has_told() && turns.shares_core();
                if self.idle.yields && (may_wait || self.engine.has_let_in()) {
                    turns.pass();
                }
                continue;
            }
            let now = now();
            let since = *idle_since.get_or_insert(now);
            let is_held = !looks_throughout && turns.is_held_now();
            if is_held || now.ns_since(since) >= self.idle.spin_ns {
                self.rest(SLEEP_MAX)?;
            } else if self.idle.yields {
                turns.pass();
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// What ends a node that runs on another thread.
    pub fn stopper(&self, stop: Arc<AtomicBool>) -> Stopper {
        Stopper { outlet: self.outlet.clone(), stop }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.outlet.close();
    }
}

/// Ends a node that runs on another thread.
#[derive(Clone)]
pub struct Stopper {
    outlet: Outlet,
    stop: Arc<AtomicBool>,
}

impl Stopper {
    /// Ends it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.outlet.ring();
    }
}

impl NodeThread {
    /// The client's end of a new session's socket.
    ///
    /// # Errors
    ///
    /// [`NodeError::System`] if there is no descriptor left, or the node has ended.
    pub fn connect(&self) -> Result<Socket, NodeError> {
        let ended = |gone| std::io::Error::new(std::io::ErrorKind::ConnectionRefused, gone);
        connect(|notice| self.outlet.send(notice).map_err(ended))
    }

    /// How the node is; none if it has ended.
    pub fn status(&self) -> Option<Status> {
        self.outlet.ask(|answer| Notice::Status { answer })
    }

    /// Where its registry listens, if it is a meta server.
    pub fn registry_address(&self) -> Option<SocketAddr> {
        self.registry
    }

    /// Ends the node; tells why it had ended, if it had.
    ///
    /// # Errors
    ///
    /// Why it had ended, if it had; [`NodeError::System`] if its thread panicked.
    pub fn stop(mut self) -> Result<(), NodeError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), NodeError> {
        self.stop.store(true, Ordering::Relaxed);
        self.outlet.ring();
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| {
            Err(NodeError::System {
                call: "the node's thread",
                reason: std::io::Error::other("it panicked"),
            })
        })
    }
}

impl Drop for NodeThread {
    fn drop(&mut self) {
        // Who wants to know how it ended calls `stop`.
        let _ = self.end();
    }
}

impl IdlePolicy {
    fn of(config: &Config) -> IdlePolicy {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        IdlePolicy {
            spin_ns: config.engine.spin_us.saturating_mul(1_000),
            yields: cores <= config.engine.yield_cores as usize,
        }
    }
}

fn connect(tell: impl FnOnce(Notice) -> Result<(), std::io::Error>) -> Result<Socket, NodeError> {
    let system = |call| move |reason| NodeError::System { call, reason };
    let (ours, theirs) = Socket::pair().map_err(system("socketpair"))?;
    tell(Notice::Adopt { socket: ours }).map_err(system("connecting to the node"))?;
    Ok(theirs)
}

/// Takes the meta server's role, if the configuration gives it.
fn meta_role(
    core: &mut Core<SoftDevice>,
    config: &Config,
    secret: Option<Secret>,
) -> Result<Option<MetaRole>, NodeError> {
    if !config.meta.serve {
        return Ok(None);
    }
    let address = config.meta_listen()?;
    let listener = TcpListener::bind(address).map_err(|reason| NodeError::Listen {
        address,
        what: "the registry",
        option: "meta.listen",
        reason,
    })?;
    let server: MetaServer = core.serve_meta(config.meta.nodes_max)?;
    // Its own record is at hand: whoever reads the table finds it from the first moment on.
    let (gid, record) = (core.gid(), core.record());
    core.meta_put(gid, record)?;
    let usual = registry::RegistryConfig::default();
    let registry = registry::RegistryConfig {
        ttl_ns: config.meta.ttl_ms * 1_000_000,
        nodes_max: config.meta.nodes_max,
        // One for each node, and for those who have not said who they are.
        connections_max: config.meta.nodes_max.saturating_add(usual.strangers_max),
        verify_source: config.meta.verify_source,
        secret,
        ..usual
    };
    Ok(Some(MetaRole { listener, server, registry }))
}

/// From the operating system's generator.
fn seed() -> Result<Seed, NodeError> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| NodeError::System { call: "getrandom", reason: error.into() })?;
    Ok(bytes.into())
}
