//! Those who are no end of a connection, and would be.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Child;

use elver::Session;
use elver_stream::{Connecting, Options};
use elver_testkit::{WAIT, is_root};

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
    let (host, port) = (Host::new(group), port());
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
    match (&stranger).read(&mut [0; 64]) {
        Ok(read) => assert_eq!(read, 0),
        Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "{error}"),
    }
    for client in [first, second] {
        succeeded("the client", &client.wait_with_output().unwrap());
    }
    server.ends();
    assert_eq!(host.lines("a stream of no connection was refused"), 1, "{}", host.log());
    assert_eq!(host.lines("by a stream from here on"), 4, "{}", host.log());
}
