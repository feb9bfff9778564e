//! Nodes and clients that are processes of their own, of users that may do little: memory of the
//! process's, huge pages, a node that is killed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use elver::node::Node;
use elver::{
    AccessFlags, Error, PostFailed, RecvWr, SendOp, Session, SessionOptions, VqpOptions, Wc,
    WcStatus,
};
use elver_portal::Listener;
use elver_testkit::{Launch, Process, Role, copy, impatient, is_root, role, stay, wait_for};

use crate::common::{
    ALL, TestNode, WAIT, alone, completion, config, run, session_at, succeeds, wr,
};

const NOBODY: u32 = 65_534;
/// The port that a process serves.
const SERVED: u16 = 7;

/// A directory that every user may use, with this program in it.
struct Place(PathBuf);

impl Place {
    fn new(group: u8) -> Place {
        let path = PathBuf::from(format!("/var/tmp/elver-test-{}-{group}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, mode).unwrap();
        // Where the tests were built another user may have no business.
        copy(&std::env::current_exe().unwrap(), &path.join("program"));
        Place(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("node.sock")
    }

    /// Runs a test of this program as a process of its own; if the tests are root's, as a user.
    fn start(&self, group: u8, test: &str, user: u32) -> Process {
        let launch = Launch::new(&format!("processes::{test}"), &self.socket());
        let launch = launch.program(&self.0.join("program")).knows(group);
        if is_root() { launch.user(user).start() } else { launch.start() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Not a test of its own: a node in a process of its own, until its standard input ends.
#[test]
fn process_that_is_a_node() {
    let Some(Role { socket, knows }) = role() else { return };
    let listener = Listener::bind(&socket).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&socket, mode).unwrap();
    let mut config = config(knows.parse().unwrap(), 1);
    config.meta.serve = true;
    config.meta.listen = format!("{}:0", config.node.address);
    let node = Node::open(config, Some(listener)).unwrap().spawn().unwrap();
    eprintln!("ready");
    eprintln!("{}", node.registry_address().unwrap());
    stay();
}

/// Reads memory of this process's through the node; why not, if it cannot be registered.
fn copies(socket: &Path) -> Result<(), Error> {
    let session = Session::connect(socket)?;
    let mut bytes = *b"of the process's own";
    let (start, len) = (bytes.as_mut_ptr(), bytes.len());
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    // SAFETY: the bytes outlive the region, and are not touched while it is there.
    let own = unsafe { session.register(start, len as u64, access) }?;
    let mr = session.alloc(64, ALL)?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(session.gid(), 0)?;
    succeeds(&vqp, wr(1, SendOp::Read(own.remote(0)), &[mr.sge(0, len as u32)]));
    own.deregister()?;
    let mut copied = [0; 20];
    mr.read(0, &mut copied)?;
    assert_eq!(copied, bytes);
    Ok(())
}

/// Not a test of its own: a client that registers memory of its own.
#[test]
fn process_that_registers_memory() {
    let Some(Role { socket, .. }) = role() else { return };
    match copies(&socket) {
        Ok(()) => eprintln!("copied"),
        Err(Error::Refused { code, text }) => eprintln!("{code:?}: {text}"),
        Err(error) => eprintln!("{error}"),
    }
}

#[test]
fn a_node_of_the_same_user_copies_what_its_processes_register() {
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").as_deref().map(str::trim) {
        Ok("1") => {}
        Ok(scope @ ("2" | "3")) => {
            return println!("skipped: Yama's rule is {scope}, under which only root's nodes can");
        }
        _ => println!("without Yama's rule: this system has none"),
    }
    let place = Place::new(173);
    let mut node = place.start(173, "process_that_is_a_node", NOBODY);
    assert_eq!(node.says(), "ready");
    let mut client = place.start(173, "process_that_registers_memory", NOBODY);
    assert_eq!(client.says(), "copied");
}

#[test]
fn a_node_of_another_user_says_why_it_cannot() {
    if !is_root() {
        return println!("skipped: only root can run processes of other users");
    }
    let place = Place::new(174);
    let mut node = place.start(174, "process_that_is_a_node", NOBODY);
    assert_eq!(node.says(), "ready");
    let mut client = place.start(174, "process_that_registers_memory", NOBODY - 1);
    let said = client.says();
    assert!(said.starts_with("Permission: ") && said.contains("of its own user"), "{said}");
    assert!(said.contains("Session::alloc"), "{said}");
}

/// What it makes once it runs again, for who has given up waiting, stays with nobody.
#[test]
fn a_node_that_stands_still_ends_calls_and_goes_on_where_it_stood() {
    let place = Place::new(245);
    let mut node = place.start(245, "process_that_is_a_node", NOBODY);
    assert_eq!(node.says(), "ready");
    let patience = Duration::from_secs(2);
    let options = SessionOptions { patience, ..SessionOptions::default() };
    let session = Session::connect_with(Some(&place.socket()), options).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    let limit = session.limits().vqps;

    node.stop();
    let silent = |error: Error| assert!(matches!(error, Error::Silent), "{error}");
    silent(session.create_vqp(VqpOptions::default()).unwrap_err());
    silent(session.alloc(64, ALL).unwrap_err());
    silent(session.alloc_apart(64, ALL).unwrap_err());
    silent(vqp.qconnect(session.gid(), 0).unwrap_err());

    node.resume();
    // The connect was waited for in vain, and came about.
    wait_for("the connect", || {
        session.poll().unwrap();
        vqp.is_connected().then_some(())
    });
    let mr = session.alloc(64, ALL).unwrap();
    succeeds(&vqp, wr(1, SendOp::Read(mr.remote(0)), &[mr.sge(8, 8)]));
    let more = std::iter::repeat_with(|| session.create_vqp(VqpOptions::default()));
    let more: Vec<_> = more.map_while(Result::ok).take(limit as usize).collect();
    assert_eq!(more.len(), limit as usize - 1, "one counts that nobody has");
    drop((more, mr, vqp));

    node.stop();
    silent(session.close().unwrap_err());
}

/// Not a test of its own: a process at the node that serves a port, and answers the first message to it.
#[test]
fn process_that_serves_a_port() {
    let Some(Role { socket, .. }) = role() else { return };
    let session = Session::connect(&socket).unwrap();
    let mr = session.alloc(64, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qbind(SERVED).unwrap();
    vqp.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 64)] }]).unwrap();
    eprintln!("serves");
    if let Ok(messages) = vqp.wait_msgs(WAIT)
        && let Some(message) = messages.first()
    {
        message.source.post_send(&[wr(2, SendOp::Send, &[mr.sge(0, 8)])]).unwrap();
        eprintln!("answered");
    }
    stay();
}

/// What a client at another node is told that only waits, when one of the other end's node and process has
/// been ended; the one that is left stays until it is told.
fn told_who_only_waits(
    group: u8,
    talks: bool,
    ends: impl FnOnce(Process, Process) -> Process,
) -> String {
    let place = Place::new(group);
    let mut node = place.start(group, "process_that_is_a_node", NOBODY);
    assert_eq!(node.says(), "ready");
    let mut server = place.start(group, "process_that_serves_a_port", NOBODY);
    assert_eq!(server.says(), "serves");
    let mut own = config(group, 2);
    own.meta.servers = vec![node.says()];
    impatient(&mut own);
    let own = TestNode::start(own);
    let until = |what: &str, done: &dyn Fn(&elver::node::Status) -> bool| {
        let began = Instant::now();
        while !done(&own.thread.status().unwrap()) {
            assert!(began.elapsed() < WAIT.unwrap(), "never: {what}");
            std::thread::yield_now();
        }
    };
    until("registered", &|status| status.registered > 0);
    let session = session_at(&own);
    let mr = session.alloc(64, ALL).unwrap();
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    let peer = elver::Gid::from(std::net::IpAddr::from([127, 0, group, 1]));
    vqp.qconnect(peer, SERVED).unwrap();
    let sges = [mr.sge(0, 64)];
    vqp.post_recv(&[RecvWr { wr_id: 1, sges: &sges }, RecvWr { wr_id: 2, sges: &sges }]).unwrap();
    if talks {
        vqp.post_send(&[wr(3, SendOp::Send, &[mr.sge(0, 8)])]).unwrap();
        let mut ended: Vec<u64> = [completion(&vqp), completion(&vqp)].map(|wc| wc.wr_id).into();
        ended.sort_unstable();
        assert_eq!((ended, server.says().as_str()), (vec![1, 3], "answered"));
    }
    // The peer's node, and who has the port, are known by then.
    until("asked whether it is there", &|status| status.core["peers_answered"] >= 2);
    let _left = ends(node, server);
    // What it had posted comes back, and behind it why.
    let mut wcs = [Wc::default(); 4];
    loop {
        match vqp.wait_cq(&mut wcs, WAIT) {
            Err(error) => return error.to_string(),
            Ok(count) => {
                assert!(wcs[..count].iter().all(|wc| wc.status == WcStatus::WrFlushErr), "{wcs:?}");
            }
        }
    }
}

#[test]
fn who_only_waits_is_told_that_the_other_process_was_killed() {
    for (group, talks) in [(240, true), (241, false)] {
        let told = told_who_only_waits(group, talks, |node, server| {
            server.kill();
            node
        });
        assert!(
            told.contains(&format!("at node 127.0.{group}.1")) && told.contains("gone"),
            "{told}"
        );
    }
}

#[test]
fn who_only_waits_is_told_that_the_other_node_was_killed() {
    for (group, talks) in [(242, true), (243, false)] {
        let told = told_who_only_waits(group, talks, |node, server| {
            node.kill();
            server
        });
        let gone = format!("node 127.0.{group}.1 has gone: it did not answer for 500 ms");
        assert!(told.contains(&gone), "{told}");
    }
}

#[test]
fn a_node_that_is_killed_is_noticed_by_who_sleeps_polls_and_posts() {
    let place = Place::new(175);
    let mut node = place.start(175, "process_that_is_a_node", NOBODY);
    assert_eq!(node.says(), "ready");
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = Session::connect(place.socket()).unwrap();
        let mr = session.alloc(1 << 20, ALL).unwrap();
        let vqp = session.create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(session.gid(), 0).unwrap();
        succeeds(&vqp, wr(1, SendOp::Read(mr.remote(0)), &[mr.sge(64, 8)]));
        sessions.push((session, mr, vqp));
    }
    node.kill();
    let gone = |error: Error| assert!(matches!(error, Error::NodeGone), "{error}");
    // One that sleeps for a completion, one that polls, one that posts.
    let (_, _, sleeps) = &sessions[0];
    gone(sleeps.wait_cq(&mut [Wc::default()], WAIT).unwrap_err());
    let (_, _, polls) = &sessions[1];
    gone(loop {
        match polls.poll_cq(&mut [Wc::default()]) {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    });
    let (session, mr, posts) = &sessions[2];
    let sges = [mr.sge(64, 8)];
    gone(loop {
        match posts.post_send(&[wr(2, SendOp::Read(mr.remote(0)), &sges)]) {
            Ok(()) => {}
            Err(PostFailed { error: Error::QueueFull { .. }, .. }) => match session.poll() {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            },
            Err(failed) => break failed.error,
        }
    });
    // All that can be asked now says the same.
    gone(session.alloc(64, ALL).unwrap_err());
    gone(session.create_vqp(VqpOptions::default()).unwrap_err());
    gone(posts.qconnect(session.gid(), 0).unwrap_err());
    gone(posts.info().unwrap_err());
    // What the process allocated stays its own.
    mr.write(0, b"still there").unwrap();
    assert!(matches!(Session::connect(place.socket()), Err(Error::NoDaemon { .. })));
}

#[test]
fn huge_memory_is_memory() {
    let node = alone(176);
    let session = session_at(&node);
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    for len in [1, 4_096, (2 << 20) - 1, 2 << 20, (4 << 20) + 5] {
        let mr = session.alloc_huge(len, ALL).unwrap();
        assert_eq!((mr.len(), mr.addr() % (2 << 20)), (len, 0));
        let piece = len.min(8) as u32;
        mr.write(len - u64::from(piece), &b"the last"[..piece as usize]).unwrap();
        let target = session.alloc_huge(u64::from(piece), ALL).unwrap();
        let read = SendOp::Read(mr.remote(len - u64::from(piece)));
        succeeds(&vqp, wr(1, read, &[target.sge(0, piece)]));
        let mut bytes = vec![0; piece as usize];
        target.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, b"the last"[..piece as usize]);
        // Not a byte beyond it.
        let beyond = run(&vqp, wr(2, SendOp::Read(mr.remote(len)), &[target.sge(0, 1)]));
        assert_eq!(beyond.status, WcStatus::RemAccessErr);
        vqp.qconnect(node.gid, 0).unwrap();
    }
    let (code, text) = match session.alloc_huge(1 << 45, ALL) {
        Err(Error::Refused { code, text }) => (code, text),
        other => panic!("{other:?}"),
    };
    assert!(!text.is_empty(), "{code:?}");
}
