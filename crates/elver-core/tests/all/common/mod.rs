//! Nodes that look at the network in turns, in virtual time: what a test waits for comes or does not,
//! however busy the machine is.

pub mod attacker;
pub mod stubborn;
pub mod virtual_time;

use std::net::IpAddr;

use elver_core::*;
use elver_sim::{FaultPlan, Rates, SimDevice, SimMemory, SimNet};
use elver_verbs::*;

/// The longest that a test may wait for anything, in virtual time.
pub const WAIT_NS: u64 = 30_000_000_000;
/// Rounds that it may take: in each something happens, or time passes.
const ROUNDS_MAX: u32 = 10_000_000;
/// Time that passes in a round in which something was done, at most.
const BUSY_NS: u64 = 1_000;
/// The same in one in which nothing was: as long as no packet comes and no timer, at most.
const IDLE_NS: u64 = 100_000;
/// Hosts that a network has room for; the last ones are no nodes, but who they are is the tests' to say.
pub const HOSTS: u8 = 16;
pub const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// A node with one client.
pub struct Node {
    pub core: Core<SimDevice>,
    pub client: ClientId,
    pub completions: Vec<Completion>,
    pub events: Vec<Event>,
}

/// A region of a client's.
pub struct Region {
    pub memory: SimMemory,
    pub info: MrInfo,
}

impl Region {
    pub fn sge(&self, at: u64, length: u32) -> Sge {
        Sge { addr: self.info.addr + at, length, lkey: self.info.lkey }
    }

    pub fn remote(&self, at: u64) -> RemoteAddr {
        RemoteAddr { addr: self.info.addr + at, rkey: self.info.rkey }
    }

    pub fn fill(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).unwrap();
    }

    pub fn word(&self, at: u64) -> u64 {
        u64::from_ne_bytes(self.bytes(at, 8).try_into().unwrap())
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        self.memory.view()[at as usize..][..len].to_vec()
    }
}

/// Some nodes; the first is the meta server of all.
pub struct Cluster {
    pub net: SimNet,
    pub nodes: Vec<Node>,
    added: u64,
}

/// A configuration that makes tests quick: few buffers, short retries and leases.
pub fn config() -> Config {
    Config {
        dc_qps: 4,
        log_dc_streams: 3,
        sq_depth: 128,
        max_mrs: 64,
        mr_lease_ns: 20_000_000,
        timeout: 9,
        retry_cnt: 3,
        recv_buffers: 64,
        ..Config::default()
    }
}

/// The address of a host, counted from 1.
pub fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

/// A network on which nothing goes wrong but that so many packets in a million are lost.
pub fn network(loss: u32, seed: u64) -> SimNet {
    let rates = Rates { loss, ..Rates::default() };
    let plan = FaultPlan { rates, ..FaultPlan::default() };
    SimNet::new((1..=HOSTS).map(address).collect(), &plan, seed)
}

impl Cluster {
    /// `count` nodes.
    pub fn new(count: u8, config: &Config) -> Cluster {
        Cluster::on(network(0, 1), count, config, |_, _| {})
    }

    /// The same on a network, on devices whose configuration `change` has changed, by their host.
    pub fn on(
        net: SimNet,
        count: u8,
        config: &Config,
        change: impl Fn(u8, &mut elver_sim::Config),
    ) -> Cluster {
        let mut cluster = Cluster { net, nodes: Vec::new(), added: 0 };
        for host in 1..=count {
            let mut device = elver_sim::Config::default();
            change(host, &mut device);
            cluster.add_on(host, device, config.clone());
        }
        let meta = cluster.nodes[0].core.serve_meta(100).unwrap();
        for n in 0..cluster.nodes.len() {
            cluster.register(n);
            let now = cluster.now();
            cluster.nodes[n].core.set_meta_servers(&[meta], now);
        }
        cluster
    }

    /// One more node, behind the others; at a host where one was, as after a restart.
    pub fn add(&mut self, host: u8, config: Config) {
        self.add_on(host, elver_sim::Config::default(), config);
    }

    fn add_on(&mut self, host: u8, device: elver_sim::Config, config: Config) {
        let device = self.net.device(usize::from(host) - 1, device).unwrap();
        // A node that starts anew has another seed.
        self.added += 1;
        let seed = self.added << 8 | u64::from(host);
        let mut core = Core::new(device, config, seed, self.now()).unwrap();
        let client = core.client_open(ClientLimits::default()).unwrap();
        self.nodes.push(Node { core, client, completions: Vec::new(), events: Vec::new() });
    }

    /// Tells the meta server of a node.
    pub fn register(&mut self, n: usize) {
        let (gid, record) = (self.nodes[n].core.gid(), self.nodes[n].core.record());
        self.nodes[0].core.meta_put(gid, record).unwrap();
    }

    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// Lets time pass in which nobody looks at anything.
    pub fn skip(&self, ns: u64) {
        self.net.advance(self.now().saturating_add_ns(ns));
    }

    /// Polls every node once and takes what there is for their clients. Then time passes until the next
    /// thing happens.
    pub fn round(&mut self) {
        self.round_without(usize::MAX);
    }

    /// The same, but one of them stands still.
    pub fn round_without(&mut self, still: usize) {
        let (now, mut busy) = (self.now(), false);
        let blank = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
        for (n, node) in self.nodes.iter_mut().enumerate() {
            if n == still {
                continue;
            }
            busy |= node.core.poll(now);
            let mut into = [blank; 16];
            loop {
                let count = node.core.poll_completions(node.client, &mut into);
                node.completions.extend_from_slice(&into[..count]);
                if count < into.len() {
                    break;
                }
            }
            node.events.extend(std::iter::from_fn(|| node.core.poll_event()));
            node.core.audit().unwrap();
        }
        let most = now.saturating_add_ns(if busy { BUSY_NS } else { IDLE_NS });
        let awake = self.nodes.iter_mut().enumerate().filter(|(n, _)| *n != still);
        let wakes = awake.flat_map(|(_, node)| {
            // What is due and was not done must not stop the clock.
            let due = [node.core.device().wake_at(), node.core.poll_timeout()];
            due.into_iter().flatten().map(|due| due.max(now.saturating_add_ns(1)))
        });
        let next = wakes.chain(self.net.next_arrival()).min();
        self.net.advance(next.map_or(most, |next| next.min(most)));
    }

    /// Drives all for so long.
    pub fn drive(&mut self, ns: u64) {
        let end = self.now().saturating_add_ns(ns);
        while self.now() < end {
            self.round();
        }
    }

    /// Drives all until `done` holds.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Cluster) -> bool) {
        let end = self.now().saturating_add_ns(WAIT_NS);
        for _ in 0..ROUNDS_MAX {
            if done(self) {
                return;
            }
            assert!(self.now() < end, "never: {what}");
            self.round();
        }
        panic!("never: {what}");
    }

    pub fn region(&mut self, n: usize, len: u64, access: AccessFlags) -> Region {
        let node = &mut self.nodes[n];
        let memory = node.core.device().alloc_memory(len).unwrap();
        let info = node.core.reg_mr(node.client, memory.clone(), None, access).unwrap();
        Region { memory, info }
    }

    pub fn vqp(&mut self, n: usize) -> VqpId {
        let node = &mut self.nodes[n];
        node.core.vqp_create(node.client, VqpInit::default()).unwrap()
    }

    /// A VQP of node `n` that is bound to `port`.
    pub fn bound(&mut self, n: usize, port: u16) -> VqpId {
        let vqp = self.vqp(n);
        let node = &mut self.nodes[n];
        assert_eq!(node.core.qbind(node.client, vqp, port), Ok(port));
        vqp
    }

    /// Starts to connect a VQP of node `n` to node `to`.
    pub fn start_connect(&mut self, n: usize, vqp: VqpId, to: usize, port: u16) -> Option<Via> {
        let (gid, now) = (self.nodes[to].core.gid(), self.now());
        let node = &mut self.nodes[n];
        let (options, token) = (ConnectOptions::default(), u64::from(vqp.0));
        node.core.qconnect(node.client, vqp, gid, port, options, token, now).unwrap()
    }

    /// Connects a VQP of node `n` to node `to`.
    pub fn connect(&mut self, n: usize, vqp: VqpId, to: usize, port: u16) -> Via {
        if let Some(via) = self.start_connect(n, vqp, to, port) {
            return via;
        }
        self.connected(n, vqp).unwrap()
    }

    /// The same by a policy.
    pub fn connect_by(&mut self, policy: Policy, n: usize, vqp: VqpId, to: usize) -> Via {
        let (gid, now) = (self.nodes[to].core.gid(), self.now());
        let node = &mut self.nodes[n];
        let (options, token) = (ConnectOptions { policy, uncached: false }, u64::from(vqp.0));
        let at_once = node.core.qconnect(node.client, vqp, gid, 0, options, token, now).unwrap();
        at_once.unwrap_or_else(|| self.connected(n, vqp).unwrap())
    }

    /// Waits for the end of a `qconnect`.
    pub fn connected(&mut self, n: usize, vqp: VqpId) -> Result<Via, ConnectError> {
        let mut outcome = None;
        self.until("connected", |cluster| {
            let events = &mut cluster.nodes[n].events;
            let token = u64::from(vqp.0);
            let at = events.iter().position(
                |event| matches!(event, Event::Connected { token: found, .. } if *found == token),
            );
            if let Some(at) = at
                && let Event::Connected { result, .. } = events.remove(at)
            {
                outcome = Some(result);
            }
            outcome.is_some()
        });
        outcome.unwrap()
    }

    pub fn post(&mut self, n: usize, vqp: VqpId, wrs: &[SendWr<'_>]) {
        assert_eq!(self.try_post(n, vqp, wrs), Ok(()));
    }

    pub fn try_post(
        &mut self,
        n: usize,
        vqp: VqpId,
        wrs: &[SendWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        let now = self.now();
        let node = &mut self.nodes[n];
        node.core.post_send(node.client, vqp, wrs, now)
    }

    pub fn recv(&mut self, n: usize, vqp: VqpId, wr_id: u64, sges: &[Sge]) {
        let now = self.now();
        let node = &mut self.nodes[n];
        node.core.post_recv(node.client, vqp, &[RecvWr { wr_id, sges }], now).unwrap();
    }

    /// Waits for `count` completions of node `n` and takes them all.
    pub fn take(&mut self, n: usize, count: usize) -> Vec<Completion> {
        self.until("completions", |cluster| cluster.nodes[n].completions.len() >= count);
        std::mem::take(&mut self.nodes[n].completions)
    }

    /// Waits for one completion of node `n`.
    pub fn take_one(&mut self, n: usize) -> Completion {
        let all = self.take(n, 1);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }

    /// No core is at fault, and nothing is left on any lane.
    pub fn check(&mut self) {
        for node in &self.nodes {
            let stats = node.core.stats();
            assert_eq!((stats.completions_unknown, stats.device_refusals), (0, 0), "{stats:?}");
        }
    }
}

/// A signalled WR.
pub fn wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(sges));
    SendWr { wr_id, op, flags, payload, dest: None }
}

/// The same, unsignalled.
pub fn quiet(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr { flags: SendFlags::empty(), ..wr(wr_id, op, sges) }
}
