//! The registry over loopback TCP: servers on threads, clients driven by the test.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use elver_core::{MetaServer, NodeRecord};
use elver_verbs::Gid;
use rustix::event::{EventfdFlags, eventfd};

use super::samples::{gid, meta_server, record};
use super::*;
use crate::now;

/// Long against a busy machine; no test waits for it unless something is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any test: nobody dies because the machine is busy.
const TTL: Duration = Duration::from_secs(60);

type Shared = Arc<Mutex<BTreeMap<Gid, NodeRecord>>>;

struct Table {
    number: u8,
    nodes: Shared,
}

impl NodeTable for Table {
    fn server(&self) -> MetaServer {
        meta_server(self.number)
    }

    fn put(&mut self, gid: Gid, record: NodeRecord) -> Result<(), String> {
        self.nodes.lock().unwrap().insert(gid, record);
        Ok(())
    }

    fn remove(&mut self, gid: Gid) {
        self.nodes.lock().unwrap().remove(&gid);
    }
}

struct Server {
    address: SocketAddr,
    nodes: Shared,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<RegistryCounters>>,
}

impl Server {
    fn start(number: u8, listener: TcpListener, ttl: Duration) -> Server {
        let nodes = Shared::default();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let ttl_ns = ttl.as_nanos() as u64;
        let config = RegistryConfig { ttl_ns, nodes_max: 64, ..RegistryConfig::default() };
        let table = Table { number, nodes: nodes.clone() };
        let mut server = RegistryServer::new(listener, config, table, wake.as_fd(), now()).unwrap();
        let address = server.address().unwrap();
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                server.wait(now(), PATIENCE).unwrap();
                server.poll(now());
            }
            *server.counters()
        });
        Server { address, nodes, stop, wake, thread: Some(thread) }
    }

    fn on_free_port(number: u8) -> Server {
        Server::start(number, TcpListener::bind("127.0.0.1:0").unwrap(), TTL)
    }

    fn has(&self, number: u8) -> Option<NodeRecord> {
        self.nodes.lock().unwrap().get(&gid(number)).copied()
    }

    fn end(&mut self) -> RegistryCounters {
        self.stop.store(true, Ordering::Relaxed);
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

fn client(servers: &[&Server], number: u8) -> RegistryClient {
    let mut config =
        RegistryClientConfig::for_servers(servers.iter().map(|one| one.address).collect());
    config.source = Some(gid(number).to_ip());
    config.answer_ns_max = PATIENCE.as_nanos() as u64;
    config.retry_ns_max = 50_000_000;
    let mut client = RegistryClient::new(config, now());
    client.register(gid(number), record(u32::from(number)));
    client
}

/// Drives clients until one of them has heard it.
fn until(clients: &mut [&mut RegistryClient], mut heard: impl FnMut(usize, &News) -> bool) {
    let limit = Instant::now() + PATIENCE;
    loop {
        for (index, client) in clients.iter_mut().enumerate() {
            client.poll(now());
            while let Some(news) = client.poll_news() {
                if heard(index, &news) {
                    return;
                }
            }
        }
        assert!(Instant::now() < limit, "it was never heard");
        let share = Duration::from_millis(5);
        clients[0].wait(share, None).unwrap();
    }
}

fn registered(client: &mut RegistryClient, count: usize) {
    until(&mut [client], |_, news| *news == News::Registered { servers: count });
}

#[test]
fn nodes_register_everywhere_and_hear_of_each_other() {
    let (first, second) = (Server::on_free_port(1), Server::on_free_port(2));
    let mut a = client(&[&first, &second], 11);
    let mut servers = Vec::new();
    until(&mut [&mut a], |_, news| {
        if let News::MetaServers(list) = news {
            servers.clone_from(list);
        }
        *news == News::Registered { servers: 2 }
    });
    assert_eq!(servers, [meta_server(1), meta_server(2)]);
    assert_eq!((first.has(11), second.has(11)), (Some(record(11)), Some(record(11))));

    let mut b = client(&[&first, &second], 12);
    let came = News::Node { gid: gid(12), record: Some(record(12)) };
    until(&mut [&mut a, &mut b], |who, news| who == 0 && *news == came);

    // A clean leave is heard of at once.
    b.leave();
    drop(b);
    until(&mut [&mut a], |_, news| *news == News::Node { gid: gid(12), record: None });
    assert_eq!(first.has(12), None);
}

/// Whether news say that a node is gone; also a list that does not have it does.
fn tells_gone(number: u8) -> impl FnMut(&News) -> bool {
    let mut listed = true;
    move |news| match news {
        News::ListBegin => {
            listed = false;
            false
        }
        News::Node { gid: one, record } if *one == gid(number) => {
            listed = true;
            record.is_none()
        }
        News::ListEnd { .. } => !listed,
        _ => false,
    }
}

#[test]
fn a_dead_node_is_removed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(1, listener, Duration::from_millis(200));
    let mut a = client(&[&server], 11);
    let mut b = client(&[&server], 12);
    let came = News::Node { gid: gid(12), record: Some(record(12)) };
    until(&mut [&mut a, &mut b], |who, news| who == 0 && *news == came);
    drop(b);
    let mut gone = tells_gone(12);
    until(&mut [&mut a], |_, news| gone(news));
    assert_eq!(server.has(12), None);
}

#[test]
fn a_node_that_returns_replaces_what_was_there() {
    let server = Server::on_free_port(1);
    let mut a = client(&[&server], 11);
    let mut b = client(&[&server], 12);
    registered(&mut b, 1);
    registered(&mut a, 1);
    drop(b);
    let mut b = client(&[&server], 12);
    b.register(gid(12), record(99));
    let came = News::Node { gid: gid(12), record: Some(record(99)) };
    until(&mut [&mut a, &mut b], |who, news| who == 0 && *news == came);
    assert_eq!(server.has(12), Some(record(99)));
}

#[test]
fn news_come_from_the_next_server_when_the_first_dies_and_from_the_first_when_it_returns() {
    let (mut first, second) = (Server::on_free_port(1), Server::on_free_port(2));
    let mut a = client(&[&first, &second], 11);
    registered(&mut a, 2);
    first.end();
    // What is heard from now on is the second's.
    until(&mut [&mut a], |_, news| *news == News::Registered { servers: 1 });
    let mut b = client(&[&second], 12);
    let came = News::Node { gid: gid(12), record: Some(record(12)) };
    until(&mut [&mut a, &mut b], |who, news| who == 0 && *news == came);

    let listener = TcpListener::bind(first.address).unwrap();
    let first = Server::start(3, listener, TTL);
    let expected = vec![meta_server(3), meta_server(2)];
    until(&mut [&mut a, &mut b], |who, news| {
        who == 0 && *news == News::MetaServers(expected.clone())
    });
    until(&mut [&mut a, &mut b], |who, news| who == 0 && *news == News::Registered { servers: 2 });
    assert_eq!(first.has(11), Some(record(11)));
}

#[test]
fn a_server_bears_anything() {
    let mut server = Server::on_free_port(1);
    let mut a = client(&[&server], 11);
    registered(&mut a, 1);
    let mut random = 7u64;
    for len in [1, 3, 100, 5_000, 100_000] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as u8
        })
        .take(len)
        .collect();
        // It may be cut off while it writes.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // One that asks without end and takes nothing.
    let mut greedy = TcpStream::connect(server.address).unwrap();
    greedy.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut asks = Vec::new();
    super::frame::Frame::Hello { nonce: [0; 32] }.encode(&mut asks, None);
    for _ in 0..5_000 {
        super::frame::Frame::Watch { on: true }.encode(&mut asks, None);
        super::frame::Frame::Heartbeat.encode(&mut asks, None);
    }
    let mut heartbeats = Vec::new();
    for _ in 0..20_000 {
        super::frame::Frame::Heartbeat.encode(&mut heartbeats, None);
    }
    while greedy.write_all(&asks).is_ok() {
        asks.clone_from(&heartbeats);
    }
    let mut b = client(&[&server], 12);
    registered(&mut b, 1);
    assert_eq!(server.has(11), Some(record(11)));
    let counters = server.end();
    assert!(counters.violations >= 3, "{counters:?}");
    assert_eq!(counters.overflowed, 1);
}

#[test]
fn a_client_survives_a_server_that_is_none() {
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::on_free_port(1);
    let mut config =
        RegistryClientConfig::for_servers(vec![impostor.local_addr().unwrap(), server.address]);
    config.source = Some(gid(11).to_ip());
    config.retry_ns_max = 50_000_000;
    let mut a = RegistryClient::new(config, now());
    a.register(gid(11), record(11));
    let babble = std::thread::spawn(move || {
        for _ in 0..3 {
            let (mut stream, _) = impostor.accept().unwrap();
            stream.write_all(&[0xff; 1_000]).unwrap();
        }
    });
    registered(&mut a, 1);
    while !babble.is_finished() {
        a.poll(now());
        a.wait(Duration::from_millis(5), None).unwrap();
    }
    babble.join().unwrap();
    assert_eq!(server.has(11), Some(record(11)));
}
