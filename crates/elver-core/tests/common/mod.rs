//! Nodes on loopback addresses, all driven by the test's own thread.
#![allow(dead_code)] // Each test binary uses a part of it.

pub mod attacker;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use elver_core::*;
use elver_soft::{SoftConfig, SoftDevice, SoftMemory};
use elver_verbs::*;

/// The longest that anything here may take.
pub const WAIT: Duration = Duration::from_secs(30);
pub const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// A node with one client.
pub struct Node {
    pub core: Core<SoftDevice>,
    pub client: ClientId,
    pub completions: Vec<Completion>,
    pub events: Vec<Event>,
}

/// A region of a client's.
pub struct Region {
    pub memory: SoftMemory,
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

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes).unwrap();
        bytes
    }
}

/// Some nodes; the first is the meta server of all.
pub struct Cluster {
    pub nodes: Vec<Node>,
    start: Instant,
    added: u64,
    /// Nanoseconds by which the nodes' clock is ahead of the real one.
    pub ahead: u64,
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

pub fn device(group: u8, host: u8, change: &dyn Fn(&mut SoftConfig)) -> SoftDevice {
    let mut config = SoftConfig::for_address(IpAddr::from([127, 0, group, host]));
    config.rnic.udp_port = 20_000 + u16::from(group);
    config.publish = false;
    change(&mut config);
    SoftDevice::open(config).unwrap()
}

impl Cluster {
    /// `count` nodes on 127.0.`group`.x.
    pub fn new(group: u8, count: u8, config: &Config) -> Cluster {
        Cluster::with_devices(group, count, config, |_| {})
    }

    /// The same, on devices whose configuration `change` has changed.
    pub fn with_devices(
        group: u8,
        count: u8,
        config: &Config,
        change: impl Fn(&mut SoftConfig),
    ) -> Cluster {
        let mut cluster = Cluster { nodes: Vec::new(), start: Instant::now(), added: 0, ahead: 0 };
        for host in 1..=count {
            cluster.add_on(device(group, host, &change), host, config.clone());
        }
        let meta = cluster.nodes[0].core.serve_meta(100).unwrap();
        for n in 0..cluster.nodes.len() {
            cluster.register(n);
            let now = cluster.now();
            cluster.nodes[n].core.set_meta_servers(&[meta], now);
        }
        cluster
    }

    pub fn add(&mut self, group: u8, host: u8, config: Config) {
        self.add_on(device(group, host, &|_| {}), host, config);
    }

    fn add_on(&mut self, device: SoftDevice, host: u8, config: Config) {
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
        Time(self.start.elapsed().as_nanos() as u64 + self.ahead + 1)
    }

    /// Polls every node once and takes what there is for their clients.
    pub fn round(&mut self) {
        let now = self.now();
        let blank = Completion { vqp: VqpId(0), source: None, wc: Wc::default() };
        for node in &mut self.nodes {
            node.core.poll(now);
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
    }

    /// Drives all until `done` holds.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Cluster) -> bool) {
        let end = Instant::now() + WAIT;
        while !done(self) {
            assert!(Instant::now() < end, "never: {what}");
            self.round();
        }
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
