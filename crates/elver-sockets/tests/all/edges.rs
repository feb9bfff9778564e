//! What programs do with connections beside reading and writing them (`edges.c`).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use elver::Session;
use elver_stream::{Listener, ListenerOptions};
use elver_testkit::wait_for;

use crate::common::{Host, port, program, succeeded};

/// Runs a client against a server of threads that gives back what it gets from so many connections.
pub fn beside_threads(group: u8, count: &str, client: &str) -> Host {
    let (host, port) = (Host::new(group), port());
    let (program, at) = (program(), port.to_string());
    let server = host.serve(&[&program, "serve", &at, "threads", count], port);
    host.run(&[&program, client, &at]);
    server.wait();
    host
}

/// A peer that took the stream, and closes the connection by TCP before it has heard which connection that is of: its
/// process may make no call for ever, and the stream says nothing.
#[test]
fn an_end_by_tcp_is_told_where_the_stream_says_nothing() {
    let host = Host::new(24);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let session = Session::connect(host.node_path()).unwrap();
    let streams = Listener::bind(&session, 0, ListenerOptions::default()).unwrap();
    let program = program();
    let client = host.command(&[&program, "drain", &port.to_string()]).spawn().unwrap();
    let (mut tcp, _) = listener.accept().unwrap();
    tcp.read_exact(&mut [0]).unwrap();
    let tuple = format!("{}-{}", tcp.peer_addr().unwrap(), tcp.local_addr().unwrap());
    let at =
        |end: &str| SocketAddr::from_abstract_name(format!("elver-tcp/{end}/{tuple}")).unwrap();
    let name = UnixDatagram::bind_addr(&at("accepted")).unwrap();
    let mut offer = b"ELVTCP\x01\x02".to_vec();
    offer.extend_from_slice(&session.gid().0);
    offer.extend_from_slice(&streams.port().to_le_bytes());
    offer.extend_from_slice(&[7; 16]);
    let _stream = wait_for("the client to connect a stream", || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let until_ns = (now.tv_sec as u64 + 1) * 1_000_000_000 + now.tv_nsec as u64;
        let offer = [&offer[..], &until_ns.to_le_bytes()].concat();
        let _ = name.send_to_addr(&offer, &at("connected"));
        streams.try_accept().unwrap()
    });
    wait_for("it to be in use", || {
        (host.lines("Connector: by a stream from here on") == 1).then_some(())
    });
    tcp.write_all(&[1; 1_000]).unwrap();
    drop(tcp);
    succeeded("the client", &client.wait_with_output().unwrap());
}

/// Handlers of a fork may use connections, and take what another thread has while it waits for one.
#[test]
fn handlers_of_a_fork_use_connections() {
    let host = beside_threads(25, "1", "fork-handlers");
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
}

/// A handler that was registered before the first connection writes, and hears an answer, as the process ends.
#[test]
fn what_is_written_at_the_end_of_a_process_arrives() {
    let (host, port) = (Host::new(26), port());
    let (program, at) = (program(), port.to_string());
    let server = host.serve(&[&program, "count", &at], port);
    host.run(&[&program, "farewell", &at]);
    server.ends();
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
}

/// A call that waits belongs to the connection that it was made for, whatever its number comes to mean.
#[test]
fn a_call_that_waits_leaves_another_connection_alone() {
    beside_threads(27, "2", "reuse");
}

#[test]
fn what_a_stream_cannot_do_is_refused_and_takes_nothing() {
    let host = beside_threads(28, "2", "cannot");
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
    assert!(host.lines("it was passed to another process") > 0, "{}", host.log());
}

#[test]
fn what_was_shut_for_reading_stays_shut() {
    let host = beside_threads(29, "1", "deaf");
    // A server that has yet to answer when its client goes fails, and says no more.
    assert_eq!(host.lines("by a stream from here on"), 2, "{}", host.log());
    assert!(host.lines(" ended: ") > 0, "{}", host.log());
}

/// Programs close what they have not opened, as daemons do, and give the numbers to files of their own.
#[test]
fn a_program_that_closes_all_descriptors_keeps_its_streams() {
    let host = beside_threads(34, "1", "close-all");
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
}

/// A connection that was reset is not found by who connects anew from the same addresses.
#[test]
fn a_new_connection_is_not_taken_for_a_former_one_of_its_addresses() {
    const APART: &str = "Acceptor: by TCP, since it has ended";
    let (host, port) = (Host::new(36), port());
    let (program, at) = (program(), port.to_string());
    let server = host.serve(&[&program, "heir", &at], port);
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let own = plain.local_addr().unwrap();
    plain.write_all(b"x").unwrap();
    wait_for("the server to look for the other end", || {
        let names = std::fs::read_to_string("/proc/net/unix").unwrap();
        names.contains(&format!("elver-tcp/accepted/{own}-127.0.0.1:{port}")).then_some(())
    });
    rustix::net::sockopt::set_socket_linger(&plain, Some(Duration::ZERO)).unwrap();
    drop(plain);
    let ping = [&program[..], "ping", &at, "300", &own.port().to_string()];
    let client = host.command(&ping).output().unwrap();
    succeeded("the client", &client);
    server.ends();
    assert_eq!(host.lines(APART), 1, "{}", host.log());
}

/// What others write and read beside the process that connects a socket goes by TCP, and so does the rest.
#[test]
fn a_socket_that_was_shared_before_it_was_connected_stays_with_tcp() {
    let host = beside_threads(37, "4", "shared");
    let said = host.lines("Connector: by TCP, since its socket may be another's as well");
    assert_eq!(said, 4, "{}", host.log());
}

#[test]
fn an_epoll_keeps_a_socket_that_is_connected_again() {
    let host = beside_threads(38, "1", "again");
    assert_eq!(host.lines(" ended: "), 2, "{}", host.log());
}

/// As `inetd` does, Python's `subprocess`, and git's daemon: what the program says that was started goes by TCP.
#[test]
fn what_is_given_to_a_program_that_is_started_stays_with_tcp() {
    let (host, port) = (Host::new(55), port());
    let (program, at) = (program(), port.to_string());
    let server = host.serve(&[&program, "inetd", &at], port);
    host.run(&[&program, "inetd-client", &at]);
    server.ends();
    let said = host.lines("Acceptor: by TCP, since the process forked before it was agreed");
    assert_eq!((said, host.lines("by a stream")), (4, 0), "{}", host.log());
}

/// Ends that look for peers which have no library take a part of the program's descriptors, and no more.
#[test]
fn a_server_of_plain_clients_has_its_descriptors_for_them() {
    let (host, port) = (Host::new(48), port());
    let (program, at) = (program(), port.to_string());
    let server = host.serve(&[&program, "gather", &at, "200", "256"], port);
    let connect = |_| {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"x").unwrap();
        client
    };
    let _clients: Vec<TcpStream> = (0..200).map(connect).collect();
    server.ends();
    assert!(host.lines("too many look for their peers at once") > 0, "{}", host.log());
}
