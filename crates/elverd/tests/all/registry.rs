//! Who may be in the cluster: the secret, and addresses. Built daemons, and whoever would be one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::daemon::{Daemon, Directory, elverd, toml};
use crate::common::{Client, PATIENCE, free_address, gid, wait_for};
use elver_core::{NodeRecord, Terms};
use elver_node::now;
use elver_node::registry::{News, Registry, RegistryClient, RegistryClientConfig, Secret};
use elver_portal::RefusalCode;

const SECRET: &str = "of this cluster alone\n";

/// A file that nobody else may read.
fn private(directory: &Directory, name: &str, content: &str) -> PathBuf {
    let path = directory.file(name, content);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn meta(secret: Option<&Path>, more: &str) -> String {
    let secret = secret.map_or(String::new(), |path| {
        format!("[registry]\nsecret_file = \"{}\"\n", path.display())
    });
    format!("{more}\n{secret}")
}

/// A daemon that is not taken, with what it says of that.
struct Refused {
    daemon: Daemon,
    report: String,
}

/// Starts a daemon and waits until it has reported something.
fn start_refused(directory: &Directory, name: &str, meta: &str) -> Refused {
    let socket = directory.path.join(format!("{name}.sock"));
    let config = directory.file(&format!("{name}.toml"), &toml(&free_address(), &socket, meta));
    let mut command = elverd();
    command.arg("--config").arg(config).stderr(Stdio::piped());
    let mut daemon = Daemon::run(command);
    let mut report = String::new();
    BufReader::new(daemon.stderr()).read_line(&mut report).unwrap();
    Refused { daemon, report }
}

fn registry_counter(daemon: &Daemon, name: &str) -> u64 {
    daemon.status().registry[name]
}

#[test]
fn who_knows_the_secret_is_in_the_cluster_and_nobody_else() {
    let directory = Directory::new();
    let secret = private(&directory, "secret", SECRET);
    let first = Daemon::start(&directory, "a", &meta(Some(&secret), "serve = true"));
    let servers = format!("servers = [\"{}\"]", first.registry.unwrap());
    // A newline more or less makes no other secret.
    let same = private(&directory, "same", SECRET.trim_end());
    let second = Daemon::start(&directory, "b", &meta(Some(&same), &servers));
    first.registered(1);
    second.registered(1);
    let mut client = Client::connect(&second.socket).unwrap();
    let vqp = client.create();
    client.qconnect(vqp, gid(&first.address), 0).unwrap();
    assert_eq!(registry_counter(&first, "unproven"), 0);

    let other = private(&directory, "other", "of another cluster\n");
    let wrong = start_refused(&directory, "c", &meta(Some(&other), &servers));
    let none = start_refused(&directory, "d", &meta(None, &servers));
    for (refused, reason) in [
        (&wrong, "the node's secret is not the registry's"),
        (&none, "this node has none: set `registry.secret_file`"),
    ] {
        let registry = first.registry.unwrap().to_string();
        let report = &refused.report;
        assert!(report.starts_with("elverd: cannot register at "), "{report}");
        assert!(report.contains(&registry) && report.contains(reason), "{report}");
        // The engine hears of it a moment after the operator.
        let status = wait_for("the engine to hear of it", || {
            let status = refused.daemon.status();
            let has_heard =
                !status.refusals.is_empty() && status.engine["registrations_refused"] > 0;
            has_heard.then_some(status)
        });
        assert_eq!((status.registered, status.meta_servers.len()), (0, 0));
        assert!(status.refusals[0].reason.contains(reason), "{status:?}");
        // Nobody finds it.
        let found = client.qconnect(vqp, gid(&refused.daemon.address), 0);
        assert_eq!(found.unwrap_err().0, RefusalCode::NoSuchNode);
    }
    assert!(registry_counter(&first, "unproven") > 0);
    let metrics = first.http("GET /metrics HTTP/1.1\r\n\r\n");
    assert!(metrics.contains("elver_registry_unproven_total "), "{metrics}");
    let metrics = wrong.daemon.http("GET /metrics HTTP/1.1\r\n\r\n");
    assert!(metrics.contains("elver_engine_registrations_refused_total "), "{metrics}");
}

#[test]
fn a_node_with_a_secret_takes_no_registry_without_it() {
    let directory = Directory::new();
    let secret = private(&directory, "secret", SECRET);
    let impostor = Daemon::start(&directory, "a", "serve = true");
    let servers = format!("servers = [\"{}\"]", impostor.registry.unwrap());
    let refused = start_refused(&directory, "b", &meta(Some(&secret), &servers));
    assert!(refused.report.contains("does not prove that it knows"), "{}", refused.report);
    let status = refused.daemon.status();
    assert_eq!((status.registered, status.meta_servers.len()), (0, 0));
    wait_for("the impostor to have itself", || {
        (registry_counter(&impostor, "registered") > 0).then_some(())
    });
    assert_eq!(registry_counter(&impostor, "registered"), 1, "itself alone");

    // Neither one that has another.
    let other = private(&directory, "other", "of another cluster\n");
    let impostor = Daemon::start(&directory, "c", &meta(Some(&other), "serve = true"));
    let servers = format!("servers = [\"{}\"]", impostor.registry.unwrap());
    let refused = start_refused(&directory, "d", &meta(Some(&secret), &servers));
    assert!(refused.report.contains("secret"), "{}", refused.report);
    assert_eq!(refused.daemon.status().registered, 0);
}

#[test]
fn a_node_whose_secret_is_mended_is_taken_at_once() {
    let directory = Directory::new();
    let secret = private(&directory, "secret", SECRET);
    let first = Daemon::start(&directory, "a", &meta(Some(&secret), "serve = true"));
    let servers = format!("servers = [\"{}\"]", first.registry.unwrap());
    let own = private(&directory, "own", "of another cluster\n");
    let mut refused = start_refused(&directory, "b", &meta(Some(&own), &servers));
    refused.daemon.signal(rustix::process::Signal::TERM);
    std::fs::write(&own, SECRET).unwrap();
    let mended = Daemon::start(&directory, "b", &meta(Some(&own), &servers));
    mended.registered(1);
    assert!(mended.status().refusals.is_empty());
}

#[test]
fn a_secret_that_others_could_know_is_refused() {
    let directory = Directory::new();
    let refused = |path: &Path| {
        let text = toml(&free_address(), &directory.path.join("a.sock"), &meta(Some(path), ""));
        let config = directory.file("a.toml", &text);
        for arguments in [&["--check", "--config"][..], &["--config"]] {
            let output = elverd().args(arguments).arg(&config).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(text.contains(&path.display().to_string()), "{text}");
            if arguments.len() == 1 {
                return text;
            }
        }
        unreachable!();
    };
    let path = private(&directory, "secret", SECRET);
    for mode in [0o640, 0o604, 0o602, 0o677] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let text = refused(&path);
        assert!(text.contains("too open") && text.contains("chmod 600"), "{text}");
    }
    let short = private(&directory, "short", " fifteen bytes..\n");
    assert!(refused(&short).contains("15 bytes"));
    let long = private(&directory, "long", &"x".repeat(5_000));
    assert!(refused(&long).contains("16 to 4096"));
    assert!(refused(&directory.path.join("nowhere")).contains("No such file"));
    assert!(refused(&directory.path).contains("not a regular file"));
    // Opening a pipe without a writer would take for ever.
    let pipe = directory.path.join("pipe");
    let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status();
    assert!(made.unwrap().success());
    assert!(refused(&pipe).contains("not a regular file"));
    if rustix::process::geteuid().is_root() {
        let other = private(&directory, "other", SECRET);
        std::os::unix::fs::chown(&other, Some(65_534), None).unwrap();
        assert!(refused(&other).contains("belongs to user 65534"));
    }
}

/// A record of no node's.
fn record() -> NodeRecord {
    NodeRecord {
        dctn: 1,
        dc_key: 1,
        control_qpn: 1,
        mrs_rkey: 3,
        log_mrs_max: 7,
        terms: Terms::default(),
    }
}

/// Somebody who registers `name` from the address `from`.
fn stranger(server: SocketAddr, name: &str, from: &str, secret: Option<&str>) -> RegistryClient {
    let mut config = RegistryClientConfig::for_servers(vec![server]);
    config.source = Some(from.parse().unwrap());
    config.secret = secret.map(|text| Secret::new(text.trim_end().as_bytes()));
    let mut client = RegistryClient::new(config, now());
    client.register(gid(name), record());
    client
}

/// Drives it until it is registered, or is told why not.
fn result(client: &mut RegistryClient) -> Result<(), String> {
    let limit = Instant::now() + PATIENCE;
    loop {
        client.poll(now());
        while let Some(news) = client.poll_news() {
            match news {
                News::Registered { servers: 1 } => return Ok(()),
                News::Refused { servers, .. } if !servers.is_empty() => {
                    return Err(servers[0].1.clone());
                }
                _ => {}
            }
        }
        assert!(Instant::now() < limit, "no answer");
        client.wait(Duration::from_millis(20), None).unwrap();
    }
}

#[test]
fn a_node_takes_no_others_address() {
    let directory = Directory::new();
    let secret = private(&directory, "secret", SECRET);
    let strict = Daemon::start(&directory, "a", &meta(Some(&secret), "serve = true"));
    let relaxed = "serve = true\nverify_source = false";
    let relaxed = Daemon::start(&directory, "b", &meta(Some(&secret), relaxed));
    let (own, others) = (free_address(), free_address());
    for server in [strict.registry.unwrap(), relaxed.registry.unwrap()] {
        let mut honest = stranger(server, &own, &own, Some(SECRET));
        result(&mut honest).unwrap();
        // Without the secret not even so, though nobody has the place.
        let refused = result(&mut stranger(server, &others, &others, None)).unwrap_err();
        assert!(refused.contains("registry.secret_file"), "{refused}");
    }
    // Who knows the secret takes no place but its own.
    let server = strict.registry.unwrap();
    let refused = result(&mut stranger(server, &others, &own, Some(SECRET))).unwrap_err();
    assert!(refused.contains("must register from its own address"), "{refused}");
    assert!(refused.contains(&own), "{refused}");
    let server = relaxed.registry.unwrap();
    let mut allowed = stranger(server, &others, &own, Some(SECRET));
    result(&mut allowed).unwrap();
    // It answers before it counts.
    wait_for("the refusal to be counted", || {
        (registry_counter(&strict, "refused") == 1).then_some(())
    });
    assert_eq!(registry_counter(&relaxed, "refused"), 0);
}

#[test]
fn a_node_of_an_ipv6_address_takes_no_others_address() {
    if TcpListener::bind("[::1]:0").is_err() {
        return println!("skipped: this machine has no IPv6");
    }
    let directory = Directory::new();
    let socket = directory.path.join("a.sock");
    let text = toml(&free_address(), &socket, "serve = true").replace("0.0.0.0:0", "[::1]:0");
    let mut command = elverd();
    command.arg("--config").arg(directory.file("a.toml", &text));
    let daemon = Daemon::run(command);
    let server = daemon.registry.unwrap();
    assert!(server.is_ipv6());
    result(&mut stranger(server, "::1", "::1", None)).unwrap();
    let refused = result(&mut stranger(server, "fd00::7", "::1", None)).unwrap_err();
    assert!(refused.contains("must register from its own address"), "{refused}");
}

/// A wire between a node and its registry that keeps what both say.
struct Wire {
    address: SocketAddr,
    thread: std::thread::JoinHandle<(Vec<u8>, Vec<u8>)>,
}

impl Wire {
    /// Carries one connection, from an address, until `bytes` of the node's have come through; then
    /// it ends.
    fn new(server: SocketAddr, from: String, bytes: usize) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut node, _) = listener.accept().unwrap();
            let mut registry = connect_from(&from, server);
            let (mut said, mut answered) = (Vec::new(), Vec::new());
            let limit = Instant::now() + PATIENCE;
            while said.len() < bytes {
                assert!(Instant::now() < limit, "{} bytes came", said.len());
                pass(&mut node, &mut registry, &mut said);
                pass(&mut registry, &mut node, &mut answered);
            }
            (said, answered)
        });
        Wire { address, thread }
    }
}

fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
    let family = rustix::net::AddressFamily::INET;
    let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, all: &mut Vec<u8>) {
    from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut bytes = [0; 4_096];
    if let Ok(count) = from.read(&mut bytes) {
        all.extend(&bytes[..count]);
        // The other end may have had enough.
        let _ = to.write_all(&bytes[..count]);
    }
}

/// Bytes of a frame, given what it carries: a length, a kind, a seal.
const fn frame_bytes(body: usize, sealed: bool) -> usize {
    2 + 1 + body + if sealed { 32 } else { 0 }
}

#[test]
fn what_was_overheard_is_of_no_use() {
    let directory = Directory::new();
    let secret = private(&directory, "secret", SECRET);
    let daemon = Daemon::start(&directory, "a", &meta(Some(&secret), "serve = true"));
    let server = daemon.registry.unwrap();
    daemon.registered(1);
    let own = free_address();
    // Hello, proof, registration.
    let hello = frame_bytes(8 + 2 + 32, false);
    let proof = frame_bytes(0, true);
    let register = frame_bytes(16 + elver_core::NODE_RECORD_BYTES, true);
    let wire = Wire::new(server, own.clone(), hello + proof + register);
    let mut honest = stranger(wire.address, &own, "127.0.0.1", Some(SECRET));
    wait_for("the registration to pass", || {
        honest.poll(now());
        wire.thread.is_finished().then_some(())
    });
    drop(honest);
    let (said, answered) = wire.thread.join().unwrap();
    wait_for("the registration", || (registry_counter(&daemon, "registered") == 2).then_some(()));
    let before = daemon.status().registry;

    // The same again over another connection: the registry says another nonce, and believes nothing.
    let mut replay = connect_from(&own, server);
    replay.set_read_timeout(Some(PATIENCE)).unwrap();
    replay.write_all(&said).unwrap();
    let mut heard = Vec::new();
    // It may be reset, since not all that was said was read.
    let _ = replay.read_to_end(&mut heard);
    let challenge = frame_bytes(32, false);
    assert!(heard.len() >= challenge);
    assert_ne!(heard[..challenge], answered[..challenge]);
    wait_for("the refusal", || {
        (registry_counter(&daemon, "unproven") == before["unproven"] + 1).then_some(())
    });

    // A proof without a seal, sent together with the hello: before the challenge was answered.
    let mut plain = connect_from(&own, server);
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = said[..hello].to_vec();
    bytes.extend([1, 0, 13]);
    let body = &said[hello + proof + 3..hello + proof + register - 32];
    bytes.extend((body.len() as u16 + 1).to_le_bytes());
    bytes.push(4);
    bytes.extend(body);
    plain.write_all(&bytes).unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard);
    wait_for("the refusal", || {
        (registry_counter(&daemon, "unproven") == before["unproven"] + 2).then_some(())
    });
    // And what the registry said, to a node: it believes it no more.
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut node = stranger(impostor.local_addr().unwrap(), &own, "127.0.0.1", Some(SECRET));
    let says = std::thread::spawn(move || {
        let (mut stream, _) = impostor.accept().unwrap();
        let mut hello = vec![0; hello];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&answered).unwrap();
        // Until it hangs up.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let refused = result(&mut node).unwrap_err();
    assert!(refused.contains("proves no knowledge"), "{refused}");
    drop(node);
    says.join().unwrap();
    assert_eq!(registry_counter(&daemon, "registered"), before["registered"]);
}

#[test]
fn strangers_without_number_keep_no_node_out() {
    let directory = Directory::new();
    let secret = private(&directory, "secret", SECRET);
    let meta_server = meta(Some(&secret), "serve = true\nttl_ms = 2000");
    let daemon = Daemon::start(&directory, "a", &meta_server);
    let server = daemon.registry.unwrap();
    // All that one address gets, and more.
    let held: Vec<TcpStream> = (0..100).map(|_| connect_from("127.0.0.1", server)).collect();
    wait_for("some to be turned away", || {
        (registry_counter(&daemon, "turned_away") >= 36).then_some(())
    });
    let servers = format!("servers = [\"{server}\"]");
    let node = Daemon::start(&directory, "b", &meta(Some(&secret), &servers));
    node.registered(1);
    // They are not waited for.
    for mut stream in held {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    }
    result(&mut stranger(server, "127.0.0.1", "127.0.0.1", Some(SECRET))).unwrap();
}
