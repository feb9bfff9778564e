//! What somebody with a UDP socket and nothing else can do to daemons that have a secret: where tests
//! may do so, as user nobody. Each attack ends in counters.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;

use crate::attacker::{self, Access, Attacker};
use crate::common::daemon::{Daemon, Directory, Witness};
use crate::common::process;
use crate::common::{Client, free_address, gid, wait_for};
use elver_core::{
    Class, ClientLimits, ConnectOptions, ControlBody, NodeRecord, RcEnd, Request, VqpInit,
};
use elver_node::Node;
use elver_node::config::Config;
use elver_testkit::{Process, Role, role, stay};
use elver_verbs::{Memory, Mtu, RemoteAddr};
use elver_wire::{Message, PacketView};

/// UDP port of RoCEv2.
const ROCE: u16 = 4_791;
/// Q_Key that all control QPs once had, and any other.
const QKEYS: [u32; 2] = [0x0e1e_4e12, 1];
/// Rounds of the first attacks.
const ROUNDS: u32 = 64;
/// Addresses of the last that must be seen to have been refused: more than the device has paths for.
const ADDRESSES: u64 = 140_000;
/// Addresses of a part of it, and parts at most: what comes faster than the node takes it is lost.
const PART: u32 = 10_000;
const PARTS_MAX: u32 = 100;
/// What stands in the memory that is attacked.
const OWN: [u8; 8] = [7; 8];

/// Two daemons with a secret, and a client that reads at the second from itself.
struct Cluster {
    directory: Directory,
    secret: String,
    meta: Daemon,
    node: Daemon,
    witness: Witness,
}

impl Cluster {
    fn new() -> Cluster {
        let directory = Directory::alone();
        let secret = directory.file("secret", "that nobody does not know\n");
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let secret = format!("[registry]\nsecret_file = \"{}\"\n", secret.display());
        let meta = Daemon::start(&directory, "meta", &format!("serve = true\n{secret}"));
        let node = start(&directory, "node", &meta, &secret);
        std::fs::set_permissions(&node.socket, std::fs::Permissions::from_mode(0o600)).unwrap();
        meta.registered(1);
        node.registered(1);
        let witness = Witness::new(&node);
        Cluster { directory, secret, meta, node, witness }
    }

    /// What a member of the cluster learns of the second daemon: its record. It has gone by then.
    fn record(&self) -> NodeRecord {
        let mut config = Config::default();
        config.node.address = free_address().parse().unwrap();
        config.meta.servers = vec![self.meta.registry.unwrap().to_string()];
        config.metrics.listen = "127.0.0.1:0".to_string();
        config.registry.secret_file = self.directory.path.join("secret");
        let mut member = Node::embedded(config).unwrap();
        let client = member.core().client_open(ClientLimits::default()).unwrap();
        wait_for("the member to be one", || {
            member.poll();
            (member.status().registered == 1).then_some(())
        });
        let (gid, now) = (gid(&self.node.address), elver_node::now());
        let core = member.core();
        let vqp = core.vqp_create(client, VqpInit::default()).unwrap();
        let begun = core.qconnect(client, vqp, gid, 0, ConnectOptions::default(), 1, now);
        assert_eq!(begun, Ok(None), "it asks the meta server");
        wait_for("the record", || {
            member.poll();
            member.core().record_of(gid)
        })
    }

    /// Runs an attack on the second daemon, by somebody who knows where its queue pairs and the
    /// witness's memory are, and this besides.
    fn attack(&self, test: &str, record: &NodeRecord, keys: [u64; 3]) -> Process {
        let remote = self.witness.remote();
        self.witness.region.memory.write(0, &OWN).unwrap();
        let knows = Knows {
            node: self.node.address.parse().unwrap(),
            meta: self.meta.address.parse().unwrap(),
            numbers: [record.control_qpn.into(), record.dctn.into(), remote.addr],
            keys,
        };
        process::start(&self.directory, &self.node.socket, test, &knows.tell())
    }

    /// Waits until the second daemon's device has counted as much more as it should, and nothing else
    /// that it refuses.
    fn counts(&self, before: &Counters, more: &[(&str, u64)]) {
        let all: u64 = more.iter().map(|(_, count)| count).sum();
        let now = wait_for("the attack to be counted", || {
            let now = refused(&self.node);
            let grown: u64 = now.iter().map(|(name, count)| count - before[name]).sum();
            (grown >= all).then_some(now)
        });
        let grown = now.iter().map(|(name, count)| (name.as_str(), count - before[name]));
        let grown: Vec<_> = grown.filter(|(_, more)| *more > 0).collect();
        assert_eq!(grown, more, "each packet is refused for what it lacks");
    }

    /// Nobody has written to the memory that was attacked.
    fn is_unchanged(&self) {
        let mut bytes = [0; 8];
        self.witness.region.memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, OWN);
    }

    /// All is as before, for those who are known and for those who come.
    fn works(&mut self) {
        self.witness.works();
        let mut client = Client::connect(&self.node.socket).unwrap();
        let vqp = client.create();
        client.qconnect(vqp, gid(&self.meta.address), 0).unwrap();
        let new = start(&self.directory, "new", &self.meta, &self.secret);
        new.registered(1);
        client.qconnect(vqp, gid(&new.address), 0).unwrap();
        let mut its = Witness::new(&new);
        let vqp = its.client.create();
        its.client.qconnect(vqp, gid(&self.node.address), 0).unwrap();
        its.client.read(vqp, &its.region, 0, 8, self.witness.remote());
        assert_eq!(its.client.completion().status, elver_verbs::WcStatus::Success);
    }
}

fn start(directory: &Directory, name: &str, meta: &Daemon, secret: &str) -> Daemon {
    let servers = format!("servers = [\"{}\"]\n{secret}", meta.registry.unwrap());
    Daemon::start(directory, name, &servers)
}

type Counters = BTreeMap<String, u64>;

/// What the daemon's device has refused, by why.
fn refused(daemon: &Daemon) -> Counters {
    let mut counters = daemon.status().device;
    counters.retain(|name, _| name.starts_with("drop_") || name == "dc_refused_key");
    counters
}

/// 1,022 datagrams told a stranger a node's record, with the DC key and the key of its table of
/// regions, and with that all memory that is open to peers; one made it believe another's record.
/// Here it even knows where to send them.
#[test]
fn datagrams_tell_a_stranger_nothing() {
    let mut cluster = Cluster::new();
    let record = cluster.record();
    let before = refused(&cluster.node);
    let mut attack = cluster.attack("attacks::attacker_that_asks", &record, [0; 3]);
    assert_eq!(attack.says(), "asked");
    let each = 2 * QKEYS.len() as u64 * u64::from(ROUNDS);
    // Under the meta server's name it has another port than the meta server's device.
    cluster.counts(&before, &[("drop_qkey", each), ("drop_source_port", each)]);
    attack.goes();
    assert_eq!(attack.says(), "heard 0");
    attack.ends();
    let status = cluster.node.status();
    assert_eq!((status.core["control_strangers"], status.core["control_stray"]), (0, 0));
    cluster.works();
}

/// Not a test of its own: asks a node for its record, and for an RC QP, under its own name and under
/// that of the meta server.
#[test]
fn attacker_that_asks() {
    let Some(knows) = Knows::told() else { return };
    let attackers = knows.attackers();
    let end = RcEnd { qpn: attacker::QPN, psn: 1, mtu: Mtu::Mtu1024, rd_atomic: 16 };
    let connect = Request::RcConnect { end, class: Class::Low, leased: false };
    let [control_qpn, ..] = knows.qpns();
    for round in 0..ROUNDS {
        for attacker in &attackers {
            for (at, request) in [Request::Meta, connect].into_iter().enumerate() {
                for qkey in QKEYS {
                    let id = u64::from(qkey) << 32 | u64::from(round) << 1 | at as u64;
                    let body = ControlBody::Request(request);
                    attacker.control(control_qpn, qkey, attacker::QPN, id, body);
                }
            }
        }
        // Not faster than the node takes them, or some are lost before it sees them.
        std::thread::yield_now();
    }
    eprintln!("asked");
    stay();
    let heard = attackers.iter().filter(|attacker| attacker.heard().is_some()).count();
    eprintln!("heard {heard}");
}

/// Who knows the numbers of a node's queue pairs, and where memory is that is open to peers, reaches
/// it neither over DC, whose key he lacks, nor over RC, where he has no queue pair.
#[test]
fn memory_is_reached_by_nobody_who_lacks_the_keys() {
    let mut cluster = Cluster::new();
    let record = cluster.record();
    let before = refused(&cluster.node);
    let mut attack = cluster.attack("attacks::attacker_of_memory", &record, [0; 3]);
    assert_eq!(attack.says(), "tried");
    let (each, rc) = (2 * u64::from(ROUNDS), 2 * 2 * 2 * u64::from(ROUNDS));
    let counted = [("dc_refused_key", each), ("drop_qpn", rc), ("drop_source_port", each)];
    cluster.counts(&before, &counted);
    attack.goes();
    assert_eq!(attack.says(), "read nothing");
    attack.ends();
    cluster.is_unchanged();
    cluster.works();
}

/// Not a test of its own: READs and WRITEs memory of a node's, over DC and RC, by keys that it guesses.
#[test]
fn attacker_of_memory() {
    let Some(knows) = Knows::told() else { return };
    let (attackers, qpns) = (knows.attackers(), knows.qpns());
    for round in 0..ROUNDS {
        let remote = RemoteAddr { addr: knows.numbers[2], rkey: round };
        for attacker in &attackers {
            for access in [Access::Read, Access::Write] {
                attacker.dc(qpns[1], u64::from(round), access, remote, round);
                for qpn in qpns {
                    attacker.rc(qpn, round, access, remote);
                }
            }
        }
        std::thread::yield_now();
    }
    eprintln!("tried");
    stay();
    // Its sessions are refused, in as few bytes as it takes to say so.
    let heard = attackers.iter().flat_map(|attacker| std::iter::from_fn(|| attacker.heard()));
    let heard: Vec<_> = heard.collect();
    let says = |bytes: &Vec<u8>| match PacketView::parse(bytes).unwrap().headers().message() {
        Message::Ack(_) => true,
        message => panic!("{message:?}"),
    };
    assert!(!heard.is_empty() && heard.iter().all(says));
    eprintln!("read nothing");
}

/// Who has all keys and lacks the port of a device is not heard. From that port the same packet is.
#[test]
fn all_keys_open_nothing_from_another_port() {
    let mut cluster = Cluster::new();
    let record = cluster.record();
    let before = refused(&cluster.node);
    let rkey = cluster.witness.remote().rkey;
    let keys = [record.dc_key, record.control_qkey().into(), rkey.into()];
    let mut attack = cluster.attack("attacks::attacker_with_all_keys", &record, keys);
    assert_eq!(attack.says(), "tried");
    cluster.counts(&before, &[("drop_source_port", 2 * 3 * u64::from(ROUNDS))]);
    cluster.is_unchanged();
    attack.goes();
    assert_eq!(attack.says(), "heard 0");
    wait_for("what was sent from the port", || {
        let mut bytes = [0; 8];
        cluster.witness.region.memory.read(0, &mut bytes).unwrap();
        (bytes == attacker::FORGED).then_some(())
    });
    attack.ends();
    assert_eq!(cluster.node.status().core["control_strangers"], 0);
    cluster.works();
}

/// Not a test of its own: has all that there is to know, first from other ports than a device's.
#[test]
fn attacker_with_all_keys() {
    let Some(knows) = Knows::told() else { return };
    let node = SocketAddr::new(knows.node, ROCE);
    let [control_qpn, dctn] = knows.qpns();
    let [dc_key, qkey, rkey] = knows.keys;
    let remote = RemoteAddr { addr: knows.numbers[2], rkey: rkey as u32 };
    let elsewhere = [own(), knows.meta].map(|address| Attacker::from_another_port(address, node));
    for round in 0..ROUNDS {
        for attacker in &elsewhere {
            let body = ControlBody::Request(Request::Meta);
            attacker.control(control_qpn, qkey as u32, attacker::QPN, round.into(), body);
            for access in [Access::Read, Access::Write] {
                attacker.dc(dctn, dc_key, access, remote, round);
            }
        }
        std::thread::yield_now();
    }
    eprintln!("tried");
    stay();
    let heard = elsewhere.iter().filter(|attacker| attacker.heard().is_some()).count();
    let device = Attacker::new(own(), node);
    device.dc(dctn, dc_key, Access::Write, remote, ROUNDS);
    eprintln!("heard {heard}");
    stay();
}

/// 65,600 datagrams from new addresses left a node unable to answer any new one. These come from more
/// than its device has paths for.
#[test]
fn a_flood_of_new_addresses_uses_up_nothing() {
    let mut cluster = Cluster::new();
    let record = cluster.record();
    let peers = cluster.node.status().peers_total;
    let before = refused(&cluster.node);
    let mut attack = cluster.attack("attacks::attacker_of_many_addresses", &record, [0; 3]);
    let taken = || refused(&cluster.node)["drop_qkey"] - before["drop_qkey"];
    for part in 1.. {
        assert_eq!(attack.says(), "sent");
        if taken() >= ADDRESSES {
            break;
        }
        assert!(part < PARTS_MAX, "{} in {part} parts", taken());
        attack.goes();
    }
    attack.kill();
    let status = cluster.node.status();
    assert_eq!((status.peers_total, status.core["control_strangers"]), (peers, 0));
    assert_eq!(status.device["paths_evicted"], 0, "{:?}", status.device);
    cluster.works();
}

/// Not a test of its own: sends a request from many addresses, a part each time that it is told to.
#[test]
fn attacker_of_many_addresses() {
    let Some(knows) = Knows::told() else { return };
    let [control_qpn, _] = knows.qpns();
    for part in 0..PARTS_MAX {
        for n in part * PART..(part + 1) * PART {
            // Of a half of 127.0.0.0/8 that tests have no nodes in.
            let [_, a, b, c] = (0x0080_0001 + n).to_be_bytes();
            let attacker =
                Attacker::new(IpAddr::from([127, a, b, c]), SocketAddr::new(knows.node, ROCE));
            let body = ControlBody::Request(Request::Meta);
            attacker.control(control_qpn, QKEYS[0], attacker::QPN, n.into(), body);
        }
        eprintln!("sent");
        stay();
    }
}

/// What an attacker was told.
struct Knows {
    node: IpAddr,
    meta: IpAddr,
    /// The QPN for control, the DCT's number, the address of memory.
    numbers: [u64; 3],
    /// The DC key, the Q_Key, the memory's rkey; 0 for who has none.
    keys: [u64; 3],
}

impl Knows {
    fn tell(&self) -> String {
        let words = self.numbers.iter().chain(&self.keys).map(|word| format!(" {word}"));
        format!("{} {}{}", self.node, self.meta, words.collect::<String>())
    }

    /// What this process was told, if it is an attacker.
    fn told() -> Option<Knows> {
        let Role { knows, .. } = role()?;
        let words: Vec<&str> = knows.split(' ').collect();
        let [node, meta] = [0, 1].map(|at| words[at].parse().unwrap());
        let word = |at: usize| words[at].parse().unwrap();
        Some(Knows { node, meta, numbers: [2, 3, 4].map(word), keys: [5, 6, 7].map(word) })
    }

    /// The control QP and the DCT.
    fn qpns(&self) -> [u32; 2] {
        [self.numbers[0] as u32, self.numbers[1] as u32]
    }

    /// Under a name of its own, and under that of the meta server.
    fn attackers(&self) -> [Attacker; 2] {
        let node = SocketAddr::new(self.node, ROCE);
        [own(), self.meta].map(|address| Attacker::new(address, node))
    }
}

/// An address that no node has.
fn own() -> IpAddr {
    IpAddr::from([127, 192, 0, 250])
}
