//! Debian's own programs, unmodified: each is skipped, and says so, where it is not installed. What counts is that streams
//! carried the bytes, which the log says.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{Host, Server, are_there, port};

/// As many lines say that a connection is carried as that one has ended.
fn carried(host: &Host, at_least: usize) {
    let (begun, ended) = (host.lines("by a stream from here on"), host.lines(" ended: "));
    assert_eq!(begun, ended, "{}", host.log());
    assert!(begun >= 2 * at_least, "{}", host.log());
    assert_eq!(host.lines("came by TCP, of no call"), 0, "{}", host.log());
}

#[test]
fn redis_serves_its_benchmark_and_saves_in_a_child_meanwhile() {
    if !are_there(&["redis-server", "redis-benchmark", "redis-cli"]) {
        return;
    }
    let (host, port) = (Host::new(30), port());
    let number = port.to_string();
    let dir = host.dir().to_str().unwrap();
    let server = host.serve(&["redis-server", "--port", &number, "--save", "", "--dir", dir], port);
    for clients in ["1", "50"] {
        let words = ["redis-benchmark", "-p", &number, "-c", clients, "-n", "20000"];
        let said = host.run(&[&words[..], &["-t", "set,get,lrange_100", "-q", "--csv"]].concat());
        assert_eq!(said.lines().filter(|line| line.starts_with('"')).count(), 5, "{said}");
        // A child that has copies of all connections, and closes them when it ends.
        assert!(host.run(&["redis-cli", "-p", &number, "bgsave"]).contains("started"));
    }
    assert_eq!(host.run(&["redis-cli", "-p", &number, "get", "key:__rand_int__"]).trim(), "VXK");
    server.end();
    carried(&host, 3 * 51);
    // 20,000 requests and answers of each, of some tens of bytes, at both ends.
    assert!(host.bytes() > 2 * 2 * 20_000 * 30, "{}", host.log());
}

#[test]
fn iperf3_streams_both_ways() {
    if !are_there(&["iperf3"]) {
        return;
    }
    let (host, port) = (Host::new(31), port());
    let number = port.to_string();
    let server = host.serve(&["iperf3", "-s", "-1", "-p", &number], port);
    let client = ["iperf3", "-c", "127.0.0.1", "-p", &number, "-n", "100M", "-P", "2", "--bidir"];
    let said = host.run(&client);
    assert!(said.contains("receiver"), "{said}");
    server.ends();
    carried(&host, 5);
    assert!(host.bytes() > 100 << 20, "{}", host.log());
}

#[test]
fn memcached_serves_with_several_threads() {
    if !are_there(&["memcached", "memcslap", "memccapable"]) {
        return;
    }
    let (host, port) = (Host::new(32), port());
    let number = port.to_string();
    let server =
        ["memcached", "-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "3", "-p", &number];
    let server = host.serve(&server, port);
    let at = format!("--servers=127.0.0.1:{number}");
    host.run(&["memcslap", &at, "--concurrency=6", "--execute-number=2000", "--test=get"]);
    let said = host.run(&["memccapable", "-t", "60", "-h", "127.0.0.1", "-p", &number]);
    assert!(said.contains("All tests passed"), "{said}");
    server.end();
    carried(&host, 7);
}

/// Workers are another user's where root starts it, and accept in several processes.
#[test]
fn nginx_serves_wrk_from_two_processes() {
    if !are_there(&["nginx", "wrk", "curl"]) {
        return;
    }
    let (host, port) = (Host::new(33), port());
    let dir = host.dir();
    let at = dir.to_str().unwrap();
    // Another user's workers read and log there.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.join("log"), "").unwrap();
    for path in [dir.join("log"), host.node_path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
    }
    let big: Vec<u8> =
        (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
    fs::write(dir.join("big"), &big).unwrap();
    fs::write(dir.join("small"), &big[..1024]).unwrap();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}/{name};\n"))
        .concat();
    let text = format!(
        "worker_processes 2;\ndaemon off;\npid {at}/pid;\nerror_log stderr;\nenv ELVER_SOCKET;\n\
         env ELVER_STREAMS_LOG;\nenv ELVER_STREAMS_PATIENCE_MS;\nevents {{ worker_connections 128; }}\nhttp {{\naccess_log off;\nsendfile on;\n\
         {temporary}server {{ listen 127.0.0.1:{port}; root {at}; }}\n}}\n"
    );
    fs::write(dir.join("conf"), text).unwrap();
    let conf = dir.join("conf");
    let words = ["/usr/sbin/nginx", "-e", "stderr", "-c", conf.to_str().unwrap()];
    let server = Server::start(host.command(&words), port);
    for (file, len) in [("small", 1024), ("big", big.len())] {
        let url = format!("http://127.0.0.1:{port}/{file}");
        let said = host.run(&["wrk", "-t", "2", "-c", "8", "-d", "5s", &url]);
        assert!(said.contains("Requests/sec"), "{said}");
        assert!(!said.contains("Non-2xx") && !said.contains("Socket errors"), "{said}");
        // The same connection for all of them: the later ones come by a stream.
        let got = dir.join("got");
        let times = format!("{url}?[1-40]");
        host.run(&["curl", "-sf", &times, "-o", got.to_str().unwrap()]);
        let got = fs::read(got).unwrap();
        assert!(got.len() == len && got == big[..len], "{} bytes of {file}", got.len());
    }
    server.end();
    let begun = host.lines("by a stream from here on");
    assert!(begun >= 2 * 16, "{}", host.log());
    assert_eq!(host.lines("came by TCP, of no call"), 0, "{}", host.log());
}

/// libuv at both ends, which closes and takes ends in its own ways, and a proxy between them.
#[test]
fn haproxy_stands_between_programs_of_uvloop_s() {
    let uvloop = "/usr/lib/python3/dist-packages/uvloop/__init__.py";
    if !are_there(&["haproxy", "/usr/bin/python3", uvloop]) {
        return;
    }
    let host = Host::new(56);
    let (behind, before) = (port(), port());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/echo.py");
    let conf = host.dir().join("conf");
    let text = format!(
        "defaults\n mode tcp\n timeout client 60s\n timeout server 60s\n timeout connect 60s\n\
         listen all\n bind 127.0.0.1:{before}\n server one 127.0.0.1:{behind}\n"
    );
    fs::write(&conf, text).unwrap();
    let [at, proxy] = [behind, before].map(|port| port.to_string());
    let server = host.serve(&["/usr/bin/python3", script, "serve", &at], behind);
    let between = host.serve(&["haproxy", "-db", "-f", conf.to_str().unwrap()], before);
    host.run(&["/usr/bin/python3", script, "look", &proxy]);
    between.end();
    server.end();
    // Eight connections on both sides of the proxy.
    assert!(host.lines("by a stream from here on") >= 2 * 16, "{}", host.log());
    assert!(host.bytes() > 8 * 8_000_000, "{}", host.log());
    assert_eq!(host.lines("came by TCP, of no call"), 0, "{}", host.log());
}
