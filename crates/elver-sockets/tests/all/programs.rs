//! A program that uses TCP in the ways that programs do (`program.c`).

use crate::common::{Host, Server, port, program, succeeded};

/// Bytes of each connection: it takes some milliseconds until a stream carries it.
const TOTAL: u64 = 8_000_000;
const CONNECTIONS: u64 = 6;

fn number(value: u64) -> String {
    value.to_string()
}

/// Echoes random pieces to and fro over many connections at once; how many of them a stream carried to its end.
fn echo(group: u8, how: &str) -> u64 {
    let (host, port) = (Host::new(group), port());
    let (program, at, count) = (program(), number(port.into()), number(CONNECTIONS));
    let server = host.serve(&[&program, "serve", &at, how, &count], port);
    host.run(&[&program, "echo", &at, &count, &number(TOTAL), &number(group.into())]);
    server.ends();
    let carried = host.lines("by a stream from here on");
    assert_eq!(host.lines(" ended: "), carried, "{}", host.log());
    // What was said at one end was heard at the other.
    assert_eq!(carried % 2, 0, "{}", host.log());
    carried as u64 / 2
}

#[test]
fn epoll_serves() {
    assert_eq!(echo(1, "epoll"), CONNECTIONS);
}

#[test]
fn epoll_serves_that_tells_of_edges() {
    assert_eq!(echo(2, "edge"), CONNECTIONS);
}

#[test]
fn poll_serves() {
    assert_eq!(echo(3, "poll"), CONNECTIONS);
}

#[test]
fn select_serves() {
    assert_eq!(echo(4, "select"), CONNECTIONS);
}

#[test]
fn threads_serve() {
    assert_eq!(echo(5, "threads"), CONNECTIONS);
}

/// Who accepts and then forks is carried by TCP, and misses nothing.
#[test]
fn processes_serve_what_their_parent_has_accepted() {
    assert_eq!(echo(6, "forks"), 0);
}

#[test]
fn processes_serve_what_they_accept_at_one_listener() {
    assert_eq!(echo(7, "workers"), CONNECTIONS);
}

#[test]
fn a_carried_socket_is_a_socket() {
    let (host, port) = (Host::new(8), port());
    let (program, at) = (program(), number(port.into()));
    let server = host.serve(&[&program, "serve", &at, "threads", "1"], port);
    host.run(&[&program, "behave", &at]);
    server.ends();
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
    assert!(host.bytes() > 400_000, "{}", host.log());
}

#[test]
fn an_epoll_is_one() {
    let (host, port) = (Host::new(17), port());
    let (program, at) = (program(), number(port.into()));
    let server = host.serve(&[&program, "serve", &at, "threads", "4"], port);
    host.run(&[&program, "watch", &at]);
    server.ends();
    assert_eq!(host.lines(" ended: "), 8, "{}", host.log());
}

/// Of threads that wait in an epoll already when it has its first connection, one was told, and the others never.
#[test]
fn all_who_wait_in_an_epoll_are_told() {
    let (host, port) = (Host::new(20), port());
    let (program, at) = (program(), number(port.into()));
    let server = host.serve(&[&program, "serve", &at, "threads", "2"], port);
    host.run(&[&program, "pool", &at]);
    server.ends();
}

/// Shut, closed and reset by either end, with bytes that were not read and without: `poll`, `epoll`, `select`, reads, writes
/// and `SO_ERROR` say the same by TCP and by a stream.
#[test]
fn ends_are_told_as_tcp_tells_them() {
    let host = Host::new(21);
    let (program, at) = (program(), number(port().into()));
    let plain = host.plain(&[&program, "compare", &at, "plain"]).output().unwrap();
    let plain = succeeded("by TCP", &plain);
    let carried = host.run(&[&program, "compare", &at, "carried"]);
    for (carried, plain) in carried.lines().zip(plain.lines()) {
        assert_eq!(carried, plain);
    }
    assert_eq!(carried, plain);
    assert!(plain.lines().count() > 40);
}

/// A thread that ends in a call leaves nothing that others wait for, nor does who jumps out of one.
#[test]
fn calls_that_wait_may_be_left() {
    let (host, port) = (Host::new(22), port());
    let (program, at) = (program(), number(port.into()));
    let server = host.serve(&[&program, "serve", &at, "threads", "1"], port);
    host.run(&[&program, "cancel", &at]);
    server.ends();
}

/// A handler may end the process whatever it interrupted, and the peer hears of it: a byte that was not read resets.
#[test]
fn who_ends_in_the_handler_of_a_signal_ends() {
    let (host, port) = (Host::new(19), port());
    let (program, at) = (program(), number(port.into()));
    let server = host.serve(&[&program, "serve", &at, "threads", "1"], port);
    host.run(&[&program, "crash", &at]);
    server.wait();
}

/// A read that waits for all, of which a part came before the connection stays with TCP.
#[test]
fn a_read_that_waits_for_all_has_all() {
    use std::io::Write;

    let host = Host::hasty(18);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = number(listener.local_addr().unwrap().port().into());
    let program = program();
    let mut client = host.command(&[&program, "read-all", &at]).spawn().unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let bytes: Vec<u8> = (0..100).collect();
    peer.write_all(&bytes[..10]).unwrap();
    elver_testkit::wait_for("TCP to stay", || (host.lines("by TCP, since") > 0).then_some(()));
    peer.write_all(&bytes[10..]).unwrap();
    drop(peer);
    let ended = client.wait().unwrap();
    assert!(ended.success(), "{}", host.log());
}

#[test]
fn a_peer_that_is_killed_is_heard_of() {
    use std::io::{BufRead, BufReader};

    let (host, port) = (Host::new(9), port());
    let (program, at) = (program(), number(port.into()));
    let server = host.serve(&[&program, "serve", &at, "epoll", "1"], port);
    let mut client = host.command(&[&program, "bereaved", &at]).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(client.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "carried\n");
    server.kill();
    succeeded("the client", &client.wait_with_output().unwrap());
}

/// Whoever ends without closing has sent what it wrote.
#[test]
fn what_was_written_arrives_when_a_process_ends() {
    for (group, how) in [(10, "exit"), (11, "_exit"), (23, "quick_exit")] {
        let (host, port) = (Host::new(group), port());
        let (program, at) = (program(), number(port.into()));
        let server = host.serve(&[&program, "count", &at], port);
        host.run(&[&program, "blurt", &at, how]);
        let counted: u64 = server.said().trim().parse().unwrap();
        assert!(counted > 100_000, "{how}: {counted} bytes arrived");
        assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
    }
}

/// Connections that end while their ends agree. A byte was once lost that went by a stream of which the other end had
/// not heard when TCP ended.
#[test]
fn nothing_is_lost_of_connections_that_end_while_they_are_agreed_on() {
    let (host, port) = (Host::new(16), port());
    let (program, at) = (program(), number(port.into()));
    let seed = std::env::var("SEED").unwrap_or_else(|_| std::process::id().to_string());
    println!("replay with SEED={seed}");
    let server = host.serve(&[&program, "tally", &at, "100"], port);
    let sent = host.run(&[&program, "hurry", &at, "100", &seed]);
    assert_eq!(server.said(), sent, "{}", host.log());
    assert!(host.lines("by a stream from here on") > 0, "{}", host.log());
}

/// Programs with the library, and without: nothing is lost, and the log says why.
#[test]
fn a_peer_without_the_library_has_tcp() {
    for (group, served) in [(12, true), (13, false)] {
        let (host, port) = (Host::new(group), port());
        let (program, at, count) = (program(), number(port.into()), number(CONNECTIONS));
        let serve = [&program, "serve", &at, "epoll", &count];
        let echo = [&program, "echo", &at, &count, &number(300_000), "5"];
        let [server, mut client] = if served {
            [host.command(&serve), host.plain(&echo)]
        } else {
            [host.plain(&serve), host.command(&echo)]
        };
        let server = Server::start(server, port);
        succeeded("the client", &client.output().unwrap());
        server.ends();
        assert_eq!(host.lines("by a stream"), 0, "{}", host.log());
    }
}

/// As many as the node has room for are carried, and the others by TCP.
#[test]
fn a_node_without_room_leaves_the_rest_to_tcp() {
    let (host, port) = (Host::small(15, 12), port());
    let (program, at, count) = (program(), number(port.into()), number(CONNECTIONS));
    let server = host.serve(&[&program, "serve", &at, "epoll", &count], port);
    host.run(&[&program, "echo", &at, &count, &number(TOTAL), "7"]);
    server.ends();
    let carried = host.lines("by a stream from here on") / 2;
    assert!((1..CONNECTIONS as usize).contains(&carried), "{}", host.log());
    assert!(host.lines("the nodes made no stream") > 0, "{}", host.log());
}

#[test]
fn without_a_node_there_is_tcp() {
    let (host, port) = (Host::without_node(), port());
    let (program, at, count) = (program(), number(port.into()), number(CONNECTIONS));
    let server = host.serve(&[&program, "serve", &at, "epoll", &count], port);
    host.run(&[&program, "echo", &at, &count, &number(TOTAL), "6"]);
    server.ends();
    assert_eq!(host.lines("by a stream"), 0, "{}", host.log());
    assert!(host.lines("no node can be reached") > 0, "{}", host.log());
}

/// A node that ends takes its streams with it, and both ends hear of that.
#[test]
fn a_node_that_ends_resets_what_it_carried() {
    use std::io::{BufRead, BufReader};

    let (mut host, port) = (Host::new(14), port());
    let (program, at) = (program(), number(port.into()));
    let server = host.serve(&[&program, "serve", &at, "epoll", "1"], port);
    let mut client = host.command(&[&program, "bereaved", &at]).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(client.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "carried\n");
    host.kill_node();
    succeeded("the client", &client.wait_with_output().unwrap());
    drop(server);
}
