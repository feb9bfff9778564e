//! Whole nodes on links of different length: which meta server they ask, and that what leases promise
//! holds where links are slow, packets are lost and queues are full.

use crate::common::virtual_time::Nodes;
use elver_core::*;
use elver_sim::{FaultPlan, Rates, Rng, SimMemory};
use elver_verbs::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const ALL: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_CHANGES);

/// Servers are at hosts 0 to 2, readers at 3 to 5, whose names these are.
const SERVERS: usize = 3;

/// Three meta servers, and readers.
fn cluster() -> Nodes {
    let mut nodes = Nodes::new(6, &Config::default(), ClientLimits::default());
    let now = nodes.net.now();
    let records: Vec<(Gid, NodeRecord)> =
        nodes.nodes.iter().map(|node| (node.core.gid(), node.core.record())).collect();
    let mut servers = Vec::new();
    for server in 0..SERVERS {
        let core = &mut nodes.nodes[server].core;
        servers.push(core.serve_meta(16).unwrap());
        for (gid, record) in &records {
            core.meta_put(*gid, *record).unwrap();
        }
    }
    for node in &mut nodes.nodes {
        node.core.set_meta_servers(&servers, now);
    }
    nodes.net.overhear();
    nodes
}

/// Connects of node `n`'s that look their peer up, a second apart.
fn look_up(nodes: &mut Nodes, n: usize, times: u32) {
    for _ in 0..times {
        let vqp = nodes.vqp(n, VqpInit::default());
        if nodes.begin_connect(n, vqp, 5, Policy::Shared, true).is_none() {
            nodes.until(|nodes| match nodes.connected(n) {
                Some((ended, result)) => {
                    assert_eq!(ended, vqp);
                    result.unwrap();
                    true
                }
                None => false,
            });
        }
        nodes.destroy(n, vqp);
        nodes.pause(1_000 * MS);
    }
}

/// How many of the packets of so many look-ups went to each server: a look-up is one.
fn asked(nodes: &mut Nodes, n: usize, times: u32) -> [u64; SERVERS] {
    nodes.net.take_heard();
    let mut asked = [0; SERVERS];
    for _ in 0..times {
        look_up(nodes, n, 1);
        for packet in nodes.net.take_heard() {
            let at = |host: usize, address| nodes.net.gid(host) == Gid::from(address);
            if at(n, packet.flow.src.ip()) {
                let to = (0..SERVERS).find(|server| at(*server, packet.flow.dst.ip()));
                asked[to.expect("a reader talks to servers alone")] += 1;
            }
        }
    }
    asked
}

/// A node asks one server, and measures others: at most one a second.
fn prefers(nodes: &mut Nodes, n: usize, server: usize, others: &[usize]) {
    const TIMES: u32 = 30;
    let asked = asked(nodes, n, TIMES);
    let measured: u64 = others.iter().map(|other| asked[*other]).sum();
    let right = asked[server] >= TIMES.into() && measured <= u64::from(TIMES) + 1;
    assert!(right, "node {n}, of which {server} is the nearest, asked {asked:?}");
}

/// The first of the list was asked, however far away it was.
#[test]
fn a_reader_asks_the_nearest_meta_server() {
    let mut nodes = cluster();
    for reader in [3, 4] {
        for server in 0..SERVERS {
            nodes.net.set_distance(reader, server, 100 * US);
        }
    }
    nodes.net.set_distance(3, 1, 5 * US);
    nodes.net.set_distance(4, 2, 5 * US);
    for (reader, nearest, others) in [(3, 1, [0, 2]), (4, 2, [0, 1])] {
        look_up(&mut nodes, reader, 6);
        prefers(&mut nodes, reader, nearest, &others);
    }

    // Its way becomes the longest, and another server's the shortest.
    nodes.net.set_distance(3, 1, 200 * US);
    nodes.net.set_distance(3, 0, 20 * US);
    look_up(&mut nodes, 3, 30);
    prefers(&mut nodes, 3, 0, &[1, 2]);
    prefers(&mut nodes, 4, 2, &[0, 1]);

    // It goes, and the next nearest is asked, by the first look-up that finds it gone.
    let failed_over = |nodes: &Nodes| nodes.nodes[4].core.stats().lookups_failed_over;
    let before = failed_over(&nodes);
    nodes.net.set_distance(4, 1, 40 * US);
    look_up(&mut nodes, 4, 4);
    nodes.net.crash(2);
    look_up(&mut nodes, 4, 1);
    assert_eq!(failed_over(&nodes), before + 1);
    prefers(&mut nodes, 4, 1, &[0]);
    assert_eq!(failed_over(&nodes), before + 1);
}

/// An owner, at host 2, and a writer, at host 1, a long way from each other.
struct Writing {
    nodes: Nodes,
    near: MrInfo,
    far: MrInfo,
    memory: SimMemory,
    /// Another region of the owner's, which stays.
    other: MrInfo,
    vqps: Vec<VqpId>,
}

impl Writing {
    fn new(config: &Config, faults: &FaultPlan, seed: u64, one_way_ns: u64) -> Writing {
        let device = elver_sim::Config::default();
        let config = |_: usize| config.clone();
        let mut nodes = Nodes::on(3, &config, &device, ClientLimits::default(), faults, seed);
        nodes.net.set_distance(1, 2, one_way_ns);
        let mut region = |n: usize| {
            let node = &mut nodes.nodes[n];
            let memory = node.core.device().alloc_memory(4_096).unwrap();
            (node.core.reg_mr(node.client, memory.clone(), None, ALL).unwrap(), memory)
        };
        let ((near, _), (far, memory), (other, _)) = (region(1), region(2), region(2));
        let mut writing = Writing { nodes, near, far, memory, other, vqps: Vec::new() };
        for _ in 0..4 {
            let init = VqpInit { max_send_wr: 64, ..VqpInit::default() };
            let vqp = writing.nodes.vqp(1, init);
            writing.nodes.connect(1, vqp, 2, Policy::Shared).unwrap();
            writing.vqps.push(vqp);
        }
        writing
    }

    /// Fills the send queues: with WRITEs to the region that goes, and of the last VQP to the other.
    fn fill(&mut self) {
        let now = self.nodes.net.now();
        for (n, vqp) in self.vqps.iter().enumerate() {
            let to = if n + 1 == self.vqps.len() { &self.other } else { &self.far };
            let node = &mut self.nodes.nodes[1];
            let sges = [Sge { addr: self.near.addr, length: 512, lkey: self.near.lkey }];
            let op = SendOp::Write(RemoteAddr { addr: to.addr, rkey: to.rkey });
            let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
            let wr = SendWr { wr_id: 1, op, flags, payload, dest: None };
            // Until it is full, or has failed.
            while node.core.post_send(node.client, *vqp, &[wr], now).is_ok() {}
        }
    }

    /// Takes what has completed; of a VQP's that lost its region all may fail.
    fn take(&mut self) -> u64 {
        let mut all = [Completion { vqp: VqpId(0), source: None, wc: Wc::default() }; 64];
        let node = &mut self.nodes.nodes[1];
        let count = node.core.poll_completions(node.client, &mut all);
        let stays = self.vqps[self.vqps.len() - 1];
        let mut done = 0;
        for Completion { vqp, wc, .. } in &all[..count] {
            match wc.status {
                WcStatus::Success => done += u64::from(*vqp == stays),
                WcStatus::RemAccessErr | WcStatus::WrFlushErr if *vqp != stays => {}
                status => panic!("{vqp:?}: {status}"),
            }
        }
        done
    }

    /// Deregisters the region after some time of writing, and says how long that took, and for how
    /// long of it peers wrote there. Nobody may afterwards.
    fn deregister(&mut self, after_ns: u64) -> (u64, u64) {
        let start = self.nodes.net.now().saturating_add_ns(after_ns);
        while self.nodes.net.now() < start {
            self.go_on();
        }
        let start = self.nodes.net.now();
        let node = &mut self.nodes.nodes[2];
        node.core.dereg_mr(node.client, self.far.lkey, 5, start).unwrap();
        let (mut ended, mut written) = (None, start);
        while ended.is_none() {
            self.memory.write(0, &[0xdb; 512]).unwrap();
            self.go_on();
            let now = self.nodes.net.now();
            if !self.untouched() {
                written = now;
            }
            let event = self.nodes.nodes[2].core.poll_event();
            ended = event.map(|event| {
                assert!(matches!(event, Event::Deregistered { token: 5, .. }), "{event:?}");
                now
            });
        }
        // What is on its way still finds nothing there, and what the other VQP does goes on.
        self.memory.write(0, &[0xdb; 512]).unwrap();
        let (end, mut done) = (self.nodes.net.now().saturating_add_ns(after_ns + 20 * MS), 0);
        while self.nodes.net.now() < end {
            done += self.go_on();
            assert!(self.untouched(), "it was written to after it had been given back");
        }
        assert!(done > 0, "who shares the queue pair goes on");
        (ended.unwrap().ns_since(start), written.ns_since(start))
    }

    fn go_on(&mut self) -> u64 {
        self.fill();
        self.nodes.step();
        self.take()
    }

    fn untouched(&self) -> bool {
        let mut bytes = [0; 512];
        self.memory.read(0, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == 0xdb)
    }

    fn terms(&self) -> Terms {
        self.nodes.nodes[2].core.record().terms
    }
}

/// A lease of 5 ms on a way of 2 ms, and all queues full: peers write for as long as the lease lets them,
/// and nothing of that comes too late. How long the owner waits follows from its record alone.
#[test]
fn leases_hold_on_slow_links_with_full_queues() {
    let config = Config { mr_lease_ns: 5 * MS, timeout: 11, retry_cnt: 3, ..Config::default() };
    let mut longest = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut writing = Writing::new(&config, &FaultPlan::default(), seed, 2 * MS);
        let (took, written) = writing.deregister(rng.between(1, 15 * MS));
        let terms = writing.terms();
        let wait = terms.lease_ns().max(terms.flight_ns()) + terms.flight_ns();
        assert!((wait..=wait + MS).contains(&took), "seed {seed}: {took} ns for {wait}");
        let stats = writing.nodes.nodes[1].core.stats();
        assert_eq!(stats.mr_leases_outlived, 0, "seed {seed}: all arrived within the wait");
        assert_eq!(stats.lanes_reset, 0, "seed {seed}");
        longest = longest.max(written);
    }
    assert!(longest > 3 * MS, "peers wrote for {longest} ns: hardly more than the way takes");
}

/// Packets are lost as well, so that what was posted at the end of a lease is sent again and again, and
/// what is behind it waits: an owner that waited for its lease alone would be written to later.
#[test]
fn leases_hold_where_packets_are_lost() {
    let config = Config { mr_lease_ns: 5 * MS, timeout: 8, retry_cnt: 7, ..Config::default() };
    let rates = Rates { loss: 50_000, reorder: 20_000, ..Rates::default() };
    let faults = FaultPlan { rates, ..FaultPlan::default() };
    let mut longest = 0;
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let mut writing = Writing::new(&config, &faults, seed, 300 * US);
        let (took, written) = writing.deregister(rng.between(1, 15 * MS));
        let terms = writing.terms();
        let wait = terms.lease_ns().max(terms.flight_ns()) + terms.flight_ns();
        assert!((wait..=wait + MS).contains(&took), "seed {seed}: {took} ns for {wait}");
        assert!(written <= took, "seed {seed}");
        longest = longest.max(written);
    }
    assert!(longest > 6 * MS, "peers wrote for {longest} ns: no longer than the lease");
}
