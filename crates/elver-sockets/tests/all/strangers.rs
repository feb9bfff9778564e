//! Those who are no end of a connection, and would be.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Child;
use std::time::{Duration, Instant};

use elver::Session;
use elver_stream::{Connecting, Options};
use elver_testkit::{WAIT, is_root, wait_for};

use crate::common::{Host, port, program, succeeded};

/// A client that sends bytes to and fro for a while, from a port of its own or any (0), once it is connected.
fn ping(host: &Host, ports: [u16; 2], with_library: bool) -> Child {
    let [port, own] = ports.map(|port| port.to_string());
    let program = program();
    let words = [&program, "ping", &port, "1300", &own];
    let mut client = if with_library { host.command(&words) } else { host.plain(&words) };
    let mut client = client.spawn().unwrap();
    assert_eq!(line_of(&mut client), "connected\n");
    client
}

/// The next line that a program says.
fn line_of(child: &mut Child) -> String {
    let (mut said, mut byte) = (String::new(), [0]);
    let stdout = child.stdout.as_mut().unwrap();
    while !said.ends_with('\n') && stdout.read(&mut byte).unwrap() == 1 {
        said.push(byte[0].into());
    }
    said
}

/// One who takes the peer's name of an end that has the library, while its peer has none; what he was told.
fn intrude(group: u8, user: &str, served: bool) -> (Host, String) {
    let (host, port) = (Host::hasty(group), port());
    let program = program();
    let at = port.to_string();
    let serve = [&program[..], "serve", &at, "epoll", "1"];
    let command = if served { host.command(&serve) } else { host.plain(&serve) };
    let server = crate::common::Server::start(command, port);
    let client_port = crate::common::port();
    let name = |end: &str| format!("elver-tcp/{end}/127.0.0.1:{client_port}-127.0.0.1:{port}");
    let (connected, accepted) = (name("connected"), name("accepted"));
    let [other, own] = if served { [&accepted, &connected] } else { [&connected, &accepted] };
    let stranger = ["setpriv", "--reuid", user, "--clear-groups", &program, "intrude", other, own];
    let mut stranger = host.plain(&stranger).spawn().unwrap();
    assert_eq!(line_of(&mut stranger), "there\n");
    let client = ping(&host, [port, client_port], !served);
    let told = succeeded("the stranger", &stranger.wait_with_output().unwrap());
    // Bytes go to and fro all the same.
    succeeded("the client", &client.wait_with_output().unwrap());
    server.ends();
    assert_eq!(host.lines("by a stream"), 0, "{}", host.log());
    (host, told.trim().to_string())
}

/// Whoever may run as another user is root.
fn for_root() -> bool {
    if !is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root can be another user");
        return false;
    }
    let program = program();
    let dir = std::path::Path::new(&program).parent().unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    true
}

#[test]
fn another_user_is_told_nothing_by_who_accepted() {
    if for_root() {
        let (host, told) = intrude(40, "65534", true);
        assert_eq!(told, "not told", "{}", host.log());
    }
}

#[test]
fn another_user_s_offer_is_not_taken() {
    if for_root() {
        let (host, told) = intrude(41, "65534", false);
        assert_eq!(told, "not told", "{}", host.log());
        assert!(host.lines("has no such library") > 0, "{}", host.log());
        assert_eq!(host.lines("did not come in time"), 0, "{}", host.log());
    }
}

/// One of the same user is believed, so that the two above show what keeps the others away; what he offers is long
/// void, and the connection stays as it was.
#[test]
fn the_same_user_is_believed_and_does_no_harm() {
    if for_root() {
        let (host, told) = intrude(42, "0", true);
        assert_eq!(told, "told", "{}", host.log());
        let (host, _) = intrude(43, "0", false);
        assert_eq!(host.lines("did not come in time"), 2, "{}", host.log());
    }
}

/// Whoever finds the port where a process takes streams, and does not know what was drawn for a connection.
#[test]
fn a_stream_of_no_connection_is_refused() {
    let (host, port) = (Host::new(44), port());
    let (program, at) = (program(), port.to_string());
    let server = host.serve(&[&program, "serve", &at, "epoll", "2"], port);
    let first = ping(&host, [port, 0], true);
    let session = Session::connect(host.node_path()).unwrap();
    let taken_at = host.stream_port(&server.process());
    let stranger =
        Connecting::start(&session, session.gid(), taken_at, Options::default()).unwrap();
    // A process looks for streams while it agrees on a connection.
    let second = ping(&host, [port, 0], true);
    let stranger = stranger.wait(WAIT).unwrap();
    (&stranger).write_all(b"ELVTCP\0\x01only a guess, 1234567890").unwrap();
    (&stranger).flush().unwrap();
    stranger.set_read_timeout(WAIT).unwrap();
    let refused = (&stranger).read(&mut [0; 64]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionReset, "{refused}");
    for client in [first, second] {
        succeeded("the client", &client.wait_with_output().unwrap());
    }
    server.ends();
    assert_eq!(host.lines("a stream of no connection was refused"), 1, "{}", host.log());
    assert_eq!(host.lines("by a stream from here on"), 4, "{}", host.log());
}

/// The other end of a connection, of which a process with the library thinks that it may come by a stream: it was made an
/// offer. Its name, and the TCP connection.
fn offered(port: u16) -> (TcpStream, UnixDatagram) {
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let tuple = format!("{}-{}", tcp.local_addr().unwrap(), tcp.peer_addr().unwrap());
    let at =
        |end: &str| SocketAddr::from_abstract_name(format!("elver-tcp/{end}/{tuple}")).unwrap();
    let name = UnixDatagram::bind_addr(&at("connected")).unwrap();
    name.set_nonblocking(true).unwrap();
    tcp.write_all(b"?").unwrap();
    tcp.read_exact(&mut [0]).unwrap();
    wait_for("an offer", || {
        // The other end answers whom it has connected to, behind the first one.
        let _ = name.send_to_addr(b"ELVTCP\x01\x01", &at("accepted"));
        let mut heard = [0; 100];
        (name.recv(&mut heard).is_ok_and(|len| len > 8)).then_some(())
    });
    (tcp, name)
}

/// TCP's end is kept from a reader as long as more may come by a stream. Who waits for edges was told of it then, and is
/// told once more when none comes.
#[test]
fn an_end_that_was_kept_is_told() {
    let (host, port) = (Host::hasty(45), port());
    let (program, at) = (program(), port.to_string());
    let server = host.serve(&[&program, "serve", &at, "edge", "2"], port);
    let first = ping(&host, [port, 0], true);
    let session = Session::connect(host.node_path()).unwrap();
    let taken_at = host.stream_port(&server.process());
    // One who says nothing might be of any connection.
    let silent = Connecting::start(&session, session.gid(), taken_at, Options::default()).unwrap();
    let (mut tcp, _name) = offered(port);
    let silent = silent.wait(WAIT).unwrap();
    tcp.shutdown(Shutdown::Write).unwrap();
    assert_eq!(tcp.read(&mut [0; 8]).unwrap(), 0);
    // Nobody waits for his sake when he is given up, as for the last words of one that is used.
    silent.set_read_timeout(WAIT).unwrap();
    let refused = (&silent).read(&mut [0]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionReset, "{refused}");
    succeeded("the client", &first.wait_with_output().unwrap());
    server.ends();
}

/// Whoever goes on connecting streams that say nothing keeps nobody's end: those that come when an offer is void are none
/// of that connection's.
#[test]
fn an_end_is_kept_for_a_time_only() {
    let (host, port) = (Host::hasty(46), port());
    let (program, at) = (program(), port.to_string());
    let server = host.serve(&[&program, "serve", &at, "poll", "2"], port);
    let first = ping(&host, [port, 0], true);
    let session = Session::connect(host.node_path()).unwrap();
    let taken_at = host.stream_port(&server.process());
    let connect = || Connecting::start(&session, session.gid(), taken_at, Options::default());
    let mut silent = vec![(Instant::now(), connect().unwrap().wait(WAIT).unwrap())];
    let (mut tcp, _name) = offered(port);
    tcp.shutdown(Shutdown::Write).unwrap();
    tcp.set_nonblocking(true).unwrap();
    wait_for("the end", || {
        // Another one long before the one before it is dropped.
        let (last, _) = silent.last().unwrap();
        if last.elapsed() > Duration::from_millis(400)
            && let Ok(stream) = connect().and_then(|it| it.wait(WAIT))
        {
            silent.push((Instant::now(), stream));
        }
        silent.retain(|(since, _)| since.elapsed() < Duration::from_secs(4));
        (tcp.read(&mut [0; 8]).is_ok_and(|read| read == 0)).then_some(())
    });
    succeeded("the client", &first.wait_with_output().unwrap());
    server.ends();
}

/// A peer that offers a stream for ever, at a port that nobody answers at, is not waited for so long.
#[test]
fn an_offer_is_not_believed_for_longer_than_offers_stand() {
    let host = Host::hasty(47);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let session = Session::connect(host.node_path()).unwrap();
    let vqp = session.create_vqp(elver::VqpOptions::default()).unwrap();
    let bound = vqp.qbind(0).unwrap();
    let program = program();
    let mut client = host.command(&[&program, "ping", &port.to_string(), "2500"]).spawn().unwrap();
    let (mut tcp, _) = listener.accept().unwrap();
    let tuple = format!("{}-{}", tcp.peer_addr().unwrap(), tcp.local_addr().unwrap());
    let at =
        |end: &str| SocketAddr::from_abstract_name(format!("elver-tcp/{end}/{tuple}")).unwrap();
    let name = UnixDatagram::bind_addr(&at("accepted")).unwrap();
    let mut offer = b"ELVTCP\x01\x02".to_vec();
    offer.extend_from_slice(&session.gid().0);
    offer.extend_from_slice(&bound.to_le_bytes());
    offer.extend_from_slice(&[7; 16]);
    offer.extend_from_slice(&u64::MAX.to_le_bytes());
    tcp.set_nonblocking(true).unwrap();
    wait_for("the client to give it up", || {
        let mut byte = [0];
        if tcp.read(&mut byte).is_ok_and(|read| read == 1) {
            tcp.write_all(&byte).unwrap();
        }
        let _ = name.send_to_addr(&offer, &at("connected"));
        (host.lines("did not come in time") > 0).then_some(())
    });
    client.kill().unwrap();
    client.wait().unwrap();
}
