//! What somebody with a UDP socket and nothing else can do to daemons that have a secret: where tests
//! may do so, as user nobody. Each attack ends in counters.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;

use crate::attacker::{self, Attacker};
use crate::common::daemon::{Daemon, Directory, Witness};
use crate::common::process;
use crate::common::{Client, gid, wait_for};
use elver_core::{Class, ControlBody, RcEnd, Request};
use elver_testkit::{Process, Role, role, stay};
use elver_verbs::Mtu;

/// UDP port of RoCEv2.
const ROCE: u16 = 4_791;
/// Q_Key that all control QPs once had, and any other.
const QKEYS: [u32; 2] = [0x0e1e_4e12, 1];
/// Datagrams of the first attack: two requests with two Q_Keys to so many QPNs.
const QPNS: u32 = 256;
/// Addresses of the second: more than what a node ever has paths for.
const ADDRESSES: u32 = 70_000;

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

    /// Runs an attack on the second daemon, from an address of the attacker's own and from that of
    /// the meta server.
    fn attack(&self, test: &str) -> Process {
        let knows = format!("{} {}", self.node.address, self.meta.address);
        process::start(&self.directory, &self.node.socket, test, &knows)
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

/// Packets that the daemon's device dropped.
fn dropped(daemon: &Daemon) -> u64 {
    let status = daemon.status();
    status.device.iter().filter(|(name, _)| name.starts_with("drop_")).map(|(_, count)| count).sum()
}

/// 1,022 datagrams told a stranger a node's record, with the DC key and the key of its table of
/// regions, and with that all memory that is open to peers; one made it believe another's record.
#[test]
fn datagrams_tell_a_stranger_nothing() {
    let mut cluster = Cluster::new();
    let before = dropped(&cluster.node);
    let mut attack = cluster.attack("attacks::attacker_that_asks");
    assert_eq!(attack.says(), "asked");
    let all = u64::from(QPNS) * 2 * 2 * QKEYS.len() as u64;
    wait_for("all to be dropped", || (dropped(&cluster.node) >= before + all).then_some(()));
    attack.goes();
    assert_eq!(attack.says(), "heard 0");
    attack.ends();
    let status = cluster.node.status();
    assert_eq!((status.core["control_strangers"], status.core["control_stray"]), (0, 0));
    cluster.works();
}

/// Not a test of its own: asks a node for its record, and for an RC QP, at every QPN that it may
/// have, under its own name and under that of the meta server.
#[test]
fn attacker_that_asks() {
    let Some(Role { knows, .. }) = role() else { return };
    let (node, meta) = addresses(&knows);
    let attackers = [own(), meta].map(|address| Attacker::new(address, node));
    let end = RcEnd { qpn: attacker::QPN, psn: 1, mtu: Mtu::Mtu1024, rd_atomic: 16 };
    let connect = Request::RcConnect { end, class: Class::Low, leased: false };
    for (id, qpn) in (2..2 + QPNS).enumerate() {
        for attacker in &attackers {
            for (request, qkey) in [Request::Meta, connect].into_iter().zip(QKEYS) {
                let body = ControlBody::Request(request);
                attacker.control(qpn, qkey, attacker::QPN, id as u64, body);
                attacker.control(qpn, QKEYS[0], attacker::QPN, 1 << 32 | id as u64, body);
            }
            // Not faster than the node takes them, or some are lost before it sees them.
            std::thread::yield_now();
        }
    }
    eprintln!("asked");
    stay();
    let heard = attackers.iter().filter(|attacker| attacker.heard().is_some()).count();
    eprintln!("heard {heard}");
}

/// 65,600 datagrams from new addresses left a node unable to answer any new one.
#[test]
fn a_flood_of_new_addresses_uses_up_nothing() {
    let mut cluster = Cluster::new();
    let peers = cluster.node.status().peers_total;
    let mut attack = cluster.attack("attacks::attacker_of_many_addresses");
    assert_eq!(attack.says(), "sent");
    attack.ends();
    assert_eq!(cluster.node.status().peers_total, peers);
    cluster.works();
}

/// Not a test of its own: sends a request from many addresses.
#[test]
fn attacker_of_many_addresses() {
    let Some(Role { knows, .. }) = role() else { return };
    let (node, _) = addresses(&knows);
    for n in 0..ADDRESSES {
        // Of a half of 127.0.0.0/8 that tests have no nodes in.
        let [_, a, b, c] = (0x00c0_0001 + n).to_be_bytes();
        let attacker = Attacker::new(IpAddr::from([127, a, b, c]), node);
        let body = ControlBody::Request(Request::Meta);
        attacker.control(2 + n % QPNS, QKEYS[0], attacker::QPN, n.into(), body);
    }
    eprintln!("sent");
    stay();
}

/// The node, and the meta server's address.
fn addresses(knows: &str) -> (SocketAddr, IpAddr) {
    let mut addresses = knows.split(' ').map(|address| address.parse::<IpAddr>().unwrap());
    let node = SocketAddr::new(addresses.next().unwrap(), ROCE);
    (node, addresses.next().unwrap())
}

/// An address that no node has.
fn own() -> IpAddr {
    IpAddr::from([127, 192, 0, 250])
}
