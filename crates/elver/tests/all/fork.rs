//! Sessions that a process prepares, and its children take over: who gets one and who does not, and that
//! a child's end, whenever it comes, leaves nothing to the next.
//!
//! Each parent is a process of its own beside the test's node, with no thread but the test's, so that its
//! children are whole.

use std::io::{Read, Write, pipe};
use std::time::{Duration, Instant};

use elver::{
    AccessFlags, Destination, Error, Heir, HeirState, Heirs, Mr, NotInherited, PrepareOptions,
    RecvWr, SendOp, Session, VqpOptions, Wc, WcStatus,
};
use elver_node::NodeThread;
use elver_portal::{Message, Received, Socket};
use elver_testkit::{Launch, Process, Role, is_root, role, stay};

use crate::common::{ALL, TestNode, WAIT, cluster, succeeds, wr};

mod assigned;
mod scribbles;

const WORDS: &[u8; 16] = b"what is prepared";
const NOBODY: u32 = 65_534;
/// A port that children bind.
const PORT: u16 = 7;

/// A child of this process's, and what it says.
struct Child {
    pid: i32,
    says: std::io::PipeReader,
}

impl Child {
    /// What the child does after the fork; it says how that ended, and ends.
    fn new(does: impl FnOnce() -> String) -> Child {
        let (says, mut tells) = pipe().unwrap();
        // SAFETY: no other thread of this process holds anything that the child needs; the child ends by
        // `_exit`, whatever happens.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(does));
            let said = said.unwrap_or_else(|_| "it panicked".into());
            let written = tells.write_all(said.as_bytes());
            // SAFETY: it ends the child alone.
            unsafe { libc::_exit(i32::from(written.is_err())) };
        }
        Child { pid, says }
    }

    fn kill(&self) {
        // SAFETY: the child is this process's, and not waited for yet.
        assert_eq!(unsafe { libc::kill(self.pid, libc::SIGKILL) }, 0);
    }

    /// What it said, once it has ended.
    fn ends(mut self) -> String {
        let mut said = String::new();
        self.says.read_to_string(&mut said).unwrap();
        let mut status = 0;
        // SAFETY: the child is this process's, and `status` is valid for what is written.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(pid, self.pid);
        said
    }
}

fn why(result: Result<Heir, Error>) -> String {
    match result {
        Ok(heir) => format!("took {}", heir.number),
        Err(error) => format!("{error:?}"),
    }
}

/// Waits until a session is as it should be.
#[track_caller]
fn until(heirs: &Heirs, heir: u32, is: impl Fn(HeirState) -> bool) {
    let begun = Instant::now();
    while !is(heirs.state(heir).unwrap()) {
        assert!(begun.elapsed() < WAIT.unwrap(), "{:?}", heirs.state(heir));
        std::thread::yield_now();
    }
}

/// A parent with a region that children read, and a set.
struct Parent {
    session: Session,
    region: Mr,
    heirs: Heirs,
}

impl Parent {
    fn new(role: &Role, count: u32) -> Parent {
        let session = Session::connect(&role.socket).unwrap();
        let region = session.alloc(4_096, ALL).unwrap();
        region.write(0, WORDS).unwrap();
        let peer = role.knows.split(' ').nth(1).unwrap().parse::<std::net::IpAddr>().unwrap();
        let to = [Destination::new(session.gid()), Destination::new(elver::Gid::from(peer))];
        let heirs = session.prepare(count, &to, PrepareOptions::default()).unwrap();
        Parent { session, region, heirs }
    }

    /// Reads the parent's words by the first VQP of what a child took.
    fn read(&self, heir: &Heir) -> String {
        let mr = heir.mr.as_ref().unwrap();
        let read = SendOp::Read(self.region.remote(0));
        succeeds(&heir.vqps[0], wr(1, read, &[mr.sge(64, WORDS.len() as u32)]));
        let mut bytes = [0; WORDS.len()];
        mr.read(64, &mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Not a test of its own: a parent that does what it is told, beside the node of a test.
#[test]
fn process_that_forks() {
    let Some(role) = role() else { return };
    match role.knows.split(' ').next().unwrap() {
        "takes" => takes(&role),
        "cleans" => cleans(&role),
        "strangers" => strangers(&role),
        "shares" => shares(&role),
        "soaks" => soaks(&role),
        "orphans" => orphans(&role),
        "restarts" => restarts(&role),
        "misses" => misses(&role),
        "scribbles" => scribbles::scribbles(&role),
        "assigns" => assigned::assigns(&role),
        other => panic!("no such role: {other}"),
    }
    eprintln!("done");
    stay();
}

fn parent(node: &TestNode, does: &str, peer: &TestNode) -> Process {
    let knows = format!("{does} {}", peer.gid.to_ip());
    Launch::new("fork::process_that_forks", &node.path).knows(knows).start()
}

fn count(node: &NodeThread, name: &str) -> u64 {
    node.status().unwrap().engine[name]
}

fn takes(role: &Role) {
    let parent = Parent::new(role, 3);
    let heirs = &parent.heirs;
    assert_eq!((heirs.len(), heirs.first_free()), (3, Some(0)));
    assert!(matches!(heirs.take(0), Err(Error::NotInherited(NotInherited::Parent))));
    let mut stop = pipe().unwrap();
    let holds = Child::new(|| {
        let heir = heirs.take(1).unwrap();
        assert_eq!(heir.vqps.len(), 2);
        let twice = heirs.take(2).map(drop);
        assert!(matches!(twice, Err(Error::NotInherited(NotInherited::Twice { heir: 1 }))));
        // The session that it has from its parent is still none of its own.
        assert!(matches!(parent.session.poll(), Err(Error::Forked)));
        let _ = stop.0.read(&mut [0]);
        parent.read(&heir)
    });
    until(heirs, 1, |state| state == HeirState::Taken { pid: holds.pid });
    // Another child has what is left, and a child's child nothing.
    let other = Child::new(|| {
        let taken = heirs.take(1).map(drop).unwrap_err();
        let number = heirs.take(3).map(drop).unwrap_err();
        let inner = Child::new(|| why(heirs.take(2))).ends();
        format!("{taken:?}; {number:?}; {inner}; {}", why(heirs.take_any()))
    });
    let said = other.ends();
    let expected = format!(
        "NotInherited(Taken {{ heir: 1, pid: {} }}); NotInherited(NoSuch {{ heir: 3, count: 3 }}); \
         NotInherited(Grandchild); took 0",
        holds.pid
    );
    assert_eq!(said, expected);
    stop.1.write_all(b"!").unwrap();
    assert_eq!(holds.ends().as_bytes(), WORDS);
    for heir in [0, 1] {
        until(heirs, heir, |state| state == HeirState::Free);
        assert_eq!(heirs.returned(heir), 1);
    }
    // The next one has the same session.
    let next = Child::new(|| parent.read(&heirs.take(1).unwrap())).ends();
    assert_eq!(next.as_bytes(), WORDS);
}

#[test]
fn a_child_takes_a_session_over_and_nobody_else_does() {
    let (meta, node) = cluster(120, |_| {});
    let mut process = parent(&node, "takes", &meta);
    assert_eq!(process.says(), "done");
    let counts = ["prepared", "inherited", "refused"]
        .map(|name| count(&node.thread, &format!("heirs_{name}")));
    assert_eq!(counts, [3, 3, 0], "what the library refuses costs the node nothing");
    process.kill();
    let begun = Instant::now();
    while !node.thread.status().unwrap().sessions.is_empty()
        || count(&node.thread, "heirs_free") > 0
    {
        assert!(begun.elapsed() < WAIT.unwrap());
    }
}

fn misses(role: &Role) {
    let session = Session::connect(&role.socket).unwrap();
    let region = session.alloc(4_096, ALL).unwrap();
    region.write(0, WORDS).unwrap();
    let nobody: std::net::IpAddr = "127.255.1.9".parse().unwrap();
    let to = [Destination::new(session.gid()), Destination::new(elver::Gid::from(nobody))];
    let refused = session.prepare(2, &to, PrepareOptions::default()).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    let options = PrepareOptions { must_connect: false, ..PrepareOptions::default() };
    let preparing = session.prepare_start(2, &to, options).unwrap();
    let begun = Instant::now();
    while !preparing.poll().unwrap() {
        assert!(begun.elapsed() < WAIT.unwrap());
    }
    let parent = Parent { heirs: preparing.finish().unwrap(), session, region };
    for round in 1..=2 {
        let child = Child::new(|| {
            let heir = parent.heirs.take(1).unwrap();
            let begun = Instant::now();
            while heir.vqps[1].failure().is_none() {
                heir.session.poll().unwrap();
                assert!(begun.elapsed() < WAIT.unwrap());
            }
            assert!(heir.vqps[0].failure().is_none());
            parent.read(&heir)
        });
        assert_eq!(child.ends().as_bytes(), WORDS);
        until(&parent.heirs, 1, |state| state == HeirState::Free);
        assert_eq!(parent.heirs.returned(1), round);
    }
    // One that is not waited for goes, and its sessions with it.
    drop(parent.session.prepare_start(8, &to[..1], PrepareOptions::default()).unwrap());
}

#[test]
fn a_destination_that_is_away_refuses_a_set_or_is_missing_in_it() {
    let (meta, node) = cluster(128, |_| {});
    assert_eq!(parent(&node, "misses", &meta).says(), "done");
    let begun = Instant::now();
    while count(&node.thread, "heirs_free") > 0 {
        assert!(begun.elapsed() < WAIT.unwrap());
    }
}

fn cleans(role: &Role) {
    let parent = Parent::new(role, 1);
    for round in 0..6 {
        let child = Child::new(|| {
            let heir = parent.heirs.take(0).unwrap();
            let mr = heir.mr.as_ref().unwrap();
            let mut bytes = vec![0; mr.len() as usize];
            mr.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "what another left in its memory");
            // Beyond the region lies what he allocated of the arena.
            let more = heir.session.alloc(16 << 10, ALL).unwrap();
            let mut bytes = vec![0; 16 << 10];
            more.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "what another left in the arena");
            let mut wcs = [Wc::default(); 4];
            for vqp in &heir.vqps {
                assert_eq!(vqp.poll_cq(&mut wcs).unwrap(), 0, "another's completion");
                assert!(vqp.failure().is_none());
            }
            // A port of his is free, and no message of his comes.
            heir.vqps[0].qbind(PORT).unwrap();
            assert!(heir.vqps[0].qpop_msgs().unwrap().is_empty(), "another's message");
            let to_it = heir.session.create_vqp(VqpOptions::default()).unwrap();
            to_it.qconnect(heir.session.gid(), PORT).unwrap();
            heir.vqps[0].post_recv(&[RecvWr { wr_id: 9, sges: &[mr.sge(0, 64)] }]).unwrap();
            mr.write(0, &vec![7; mr.len() as usize]).unwrap();
            more.write(0, &vec![8; 16 << 10]).unwrap();
            // It goes with messages and READs of its own under way.
            for wr_id in 0..20 {
                to_it.post_send(&[wr(wr_id, SendOp::Send, &[more.sge(0, 64)])]).unwrap();
                let read = SendOp::Read(parent.region.remote(0));
                let sges = [mr.sge(0, 4_096)];
                heir.vqps[0].post_send(&[wr(wr_id, read, &sges)]).unwrap();
                heir.vqps[1].post_send(&[wr(wr_id, SendOp::Send, &sges)]).unwrap();
            }
            format!("{} {}", mr.rkey(), more.rkey())
        });
        let said = child.ends();
        let keys: Vec<u32> = said.split(' ').filter_map(|key| key.parse().ok()).collect();
        assert_eq!(keys.len(), 2, "round {round}: {said}");
        until(&parent.heirs, 0, |state| state == HeirState::Free);
        assert_eq!(parent.heirs.returned(0), round + 1);
        // What the child registered for peers is nobody's now.
        let vqp = parent.session.create_vqp(VqpOptions::default()).unwrap();
        vqp.qconnect(parent.session.gid(), 0).unwrap();
        let addr = parent.region.addr();
        let read = SendOp::Read(elver::RemoteAddr { addr, rkey: keys[1] });
        let wc = crate::common::run(&vqp, wr(1, read, &[parent.region.sge(1_024, 8)]));
        assert_ne!(wc.status, WcStatus::Success);
    }
}

#[test]
fn a_session_comes_back_clean() {
    let (meta, node) = cluster(121, |_| {});
    assert_eq!(parent(&node, "cleans", &meta).says(), "done");
}

fn strangers(role: &Role) {
    let parent = Parent::new(role, 2);
    // What the library would not do: a child's child asks all the same.
    let asks = || match raw(&role.socket, 0, Some(0)) {
        Ok(heir) => format!("got {heir}"),
        Err(text) => text,
    };
    let said = Child::new(|| Child::new(asks).ends()).ends();
    assert!(said.contains("not to a child's child"), "{said}");
    // Nor the parent, nor a child of no such set, nor one that has one already.
    assert!(raw(&role.socket, 0, Some(0)).unwrap_err().contains("not to a child's child"));
    let said = Child::new(|| raw(&role.socket, 99, None).unwrap_err()).ends();
    assert!(said.contains("no set of number 99"), "{said}");
    let said = Child::new(|| {
        let _heir = parent.heirs.take(0).unwrap();
        raw(&role.socket, 0, None).unwrap_err()
    })
    .ends();
    assert!(said.contains("has session 0 of the set already"), "{said}");
    let said = Child::new(|| raw(&role.socket, 0, Some(7)).unwrap_err()).ends();
    assert!(said.contains("there is no session 7"), "{said}");
    if is_root() {
        let said = Child::new(|| {
            // SAFETY: the calls have no memory to do with, and this process one thread that uses them.
            // The files stay root's to it, so that it reaches the socket.
            unsafe {
                assert_eq!(libc::seteuid(NOBODY), 0);
                libc::setfsuid(0);
            }
            why(parent.heirs.take(1))
        })
        .ends();
        assert!(said.contains("is user 65534's"), "{said}");
    }
    eprintln!("prepared");
    stay();
    // All that was in vain.
    let said = Child::new(|| parent.read(&parent.heirs.take(1).unwrap())).ends();
    assert_eq!(said.as_bytes(), WORDS);
}

/// Claims a session by the portal's words; which one, or what the node said.
fn raw(path: &std::path::Path, set: u32, heir: Option<u32>) -> Result<u32, String> {
    let socket = Socket::connect(path, Duration::from_secs(60)).unwrap();
    socket.send(&Message::Inherit { set, heir }, None).unwrap();
    loop {
        socket.wait(WAIT).unwrap();
        match socket.receive(true).unwrap() {
            Received::Message(Message::Inherited { heir }, None) => return Ok(heir),
            Received::Message(Message::Rejected { text }, None) => return Err(text),
            Received::Nothing => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_claims_anothers_session_is_refused_and_counted() {
    let (meta, node) = cluster(122, |_| {});
    let mut process = parent(&node, "strangers", &meta);
    assert_eq!(process.says(), "prepared");
    let by_children = 5 + u64::from(is_root());
    assert_eq!(count(&node.thread, "heirs_refused"), by_children);
    // A process that is no child of it at all.
    for heir in [None, Some(0), Some(1), Some(u32::MAX - 1)] {
        assert!(raw(&node.path, 0, heir).unwrap_err().contains("no set of number 0 is process"));
    }
    assert_eq!(count(&node.thread, "heirs_refused"), by_children + 4);
    process.goes();
    assert_eq!(process.says(), "done");
}

fn shares(role: &Role) {
    let parent = Parent::new(role, 1);
    let both = parent.session.alloc_shared(8_192, ALL).unwrap();
    let shared = both.share().unwrap();
    both.write_u64(0, 41).unwrap();
    // What is this session's alone is told apart.
    let refused = parent.region.share().unwrap_err().to_string();
    assert!(refused.contains("a child's copy of it is the child's"), "{refused}");
    let said = Child::new(|| {
        let heir = parent.heirs.take(0).unwrap();
        let own = heir.session.attach(&shared, ALL).unwrap();
        assert!(own.lkey() != both.lkey() && own.rkey() != both.rkey());
        assert_eq!(own.read_u64(0).unwrap(), 41);
        own.write_u64(8, 42).unwrap();
        // By the node, too, and by the key that the parent gave its peers.
        let add = SendOp::FetchAdd { remote: both.remote(0), add: 1 };
        succeeds(&heir.vqps[0], wr(1, add, &[own.sge(16, 8)]));
        own.read_u64(16).unwrap().to_string()
    })
    .ends();
    assert_eq!(said, "41");
    assert_eq!([0, 8].map(|at| both.read_u64(at).unwrap()), [42, 42]);
    // A process that took nothing over has no part in it.
    let said = Child::new(|| {
        let session = Session::connect(&role.socket).unwrap();
        session.attach(&shared, ALL).map(drop).unwrap_err().to_string()
    })
    .ends();
    assert!(said.contains("no session of this process has a region"), "{said}");
    // It is registered still, for the parent.
    assert!(both.deregister().is_ok());
}

#[test]
fn memory_for_sharing_is_a_childs_too() {
    let (meta, node) = cluster(123, |_| {});
    assert_eq!(parent(&node, "shares", &meta).says(), "done");
}

/// Children of the soak, and how many are there at once.
const CHILDREN: u32 = 300;
const AT_ONCE: u32 = 8;

fn soaks(role: &Role) {
    let parent = Parent::new(role, AT_ONCE);
    let seed = std::env::var("ELVER_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| {
        Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 20
    });
    println!("ELVER_TEST_SEED={seed}");
    let mut state = seed;
    let mut random = |below: u64| {
        // An LCG's high bits are random enough for moments.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut running: Vec<(Child, u32, bool)> = Vec::new();
    let settle = |(child, _, killed): (Child, u32, bool)| {
        let said = child.ends();
        assert!(killed || said.as_bytes() == WORDS, "seed {seed}: {said}");
    };
    for number in 0..CHILDREN {
        if running.len() as u32 == AT_ONCE {
            settle(running.swap_remove(random(u64::from(AT_ONCE)) as usize));
        }
        // A parent knows which it has given to a child that may not have taken it yet.
        let given: Vec<u32> = running.iter().map(|(_, heir, _)| *heir).collect();
        let free = |heir: &u32| {
            parent.heirs.state(*heir) == Some(HeirState::Free) && !given.contains(heir)
        };
        let begun = Instant::now();
        let heir = loop {
            match (0..AT_ONCE).find(free) {
                Some(heir) => break heir,
                None => assert!(begun.elapsed() < WAIT.unwrap(), "seed {seed}: none comes back"),
            }
            std::thread::yield_now();
        };
        let killed = number % 10 == 0;
        let child = Child::new(|| {
            let heir = parent.heirs.take(heir).unwrap();
            if !killed {
                return parent.read(&heir);
            }
            // Until it is killed, at whatever it does.
            loop {
                parent.read(&heir);
                let more = heir.session.alloc(256, ALL).unwrap();
                let vqp = heir.session.create_vqp(VqpOptions::default()).unwrap();
                drop((more, vqp));
            }
        });
        if killed {
            let (begun, wait) = (Instant::now(), Duration::from_nanos(random(2_000_000)));
            while begun.elapsed() < wait {
                std::hint::spin_loop();
            }
            child.kill();
        }
        running.push((child, heir, killed));
    }
    running.into_iter().for_each(settle);
    for heir in 0..AT_ONCE {
        until(&parent.heirs, heir, |state| state == HeirState::Free);
    }
    eprintln!("soaked");
    stay();
}

#[test]
fn children_that_are_killed_at_any_instruction_leave_nothing() {
    let (meta, node) = cluster(124, |_| {});
    let mut process = parent(&node, "soaks", &meta);
    assert_eq!(process.says(), "soaked");
    let status = node.thread.status().unwrap();
    let tables = |status: &elver_node::Status| {
        let user = status.users.iter().map(|user| (user.sessions, user.vqps, user.mrs, user.bytes));
        (status.sessions.len(), status.vqps_total, user.collect::<Vec<_>>())
    };
    // The parent's own session and region, and what it has prepared: two VQPs and a region each.
    let (prepared, own) = (AT_ONCE, 1);
    let bytes = elver_portal::HeirsLayout { heirs: prepared, vqps: 2 }.bytes();
    assert_eq!(
        tables(&status),
        (1, 2 * u64::from(prepared), vec![(prepared + own, 2 * prepared, prepared + own, bytes)])
    );
    let counts =
        ["free", "inherited", "returned"].map(|name| status.engine[&format!("heirs_{name}")]);
    assert_eq!(counts[0], u64::from(AT_ONCE));
    assert_eq!(counts[1], counts[2]);
    // Those that were killed before they asked have taken none.
    assert!(counts[1] >= u64::from(CHILDREN * 9 / 10), "{counts:?}");
    process.kill();
    let begun = Instant::now();
    loop {
        let status = node.thread.status().unwrap();
        let left: u32 = status.users.iter().map(|user| user.sessions + user.vqps + user.mrs).sum();
        let bytes: u64 = status.users.iter().map(|user| user.bytes).sum();
        if left == 0 && bytes == 0 && status.vqps_total == 0 {
            break;
        }
        assert!(begun.elapsed() < WAIT.unwrap(), "{status:?}");
        std::thread::yield_now();
    }
}

/// Says a line at once: two processes that say theirs in pieces would mix them.
fn line(text: &str) {
    std::io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}

fn orphans(role: &Role) {
    let parent = Parent::new(role, 2);
    let own = std::process::id() as i32;
    let orphaned = || {
        let begun = Instant::now();
        // SAFETY: the call has no memory to do with.
        while unsafe { libc::getppid() } == own {
            assert!(begun.elapsed() < WAIT.unwrap());
            std::thread::yield_now();
        }
    };
    let keeps = Child::new(|| {
        let heir = parent.heirs.take(0).unwrap();
        let mine = heir.session.alloc(64, ALL).unwrap();
        orphaned();
        // What it has is its own, though the parent's region has gone.
        mine.write(0, WORDS).unwrap();
        let read = SendOp::Read(mine.remote(0));
        succeeds(&heir.vqps[0], wr(1, read, &[mine.sge(32, 16)]));
        line("keeps");
        String::new()
    });
    until(&parent.heirs, 0, |state| state == HeirState::Taken { pid: keeps.pid });
    Child::new(|| {
        orphaned();
        let said = match parent.heirs.take(1) {
            Err(Error::Rejected { text }) if text.contains("once that process has ended") => {
                "refused".into()
            }
            Err(Error::NotInherited(NotInherited::Making { heir: 1 })) => "refused".into(),
            other => why(other),
        };
        line(&said);
        String::new()
    });
    // SAFETY: the parent ends here and now, as if it were killed.
    unsafe { libc::_exit(0) };
}

#[test]
fn children_keep_theirs_when_their_parent_ends() {
    let (meta, node) = cluster(125, |_| {});
    let mut process = parent(&node, "orphans", &meta);
    let mut said = [process.says(), process.says()];
    said.sort();
    assert_eq!(said, ["keeps", "refused"]);
    let begun = Instant::now();
    loop {
        let status = node.thread.status().unwrap();
        if status.sessions.is_empty() && status.vqps_total == 0 {
            break assert_eq!(status.engine["heirs_free"], 0);
        }
        assert!(begun.elapsed() < WAIT.unwrap(), "{status:?}");
    }
}

fn restarts(role: &Role) {
    let parent = Parent::new(role, 1);
    eprintln!("prepared");
    stay();
    let said = Child::new(|| why(parent.heirs.take(0))).ends();
    eprintln!("{said}");
    assert!(matches!(parent.session.alloc(64, AccessFlags::LOCAL_WRITE), Err(Error::NodeGone)));
    // Prepared again it goes on.
    let again = Parent::new(role, 1);
    let said = Child::new(|| again.read(&again.heirs.take(0).unwrap())).ends();
    assert_eq!(said.as_bytes(), WORDS);
}

#[test]
fn what_a_node_prepared_before_it_was_started_anew_is_gone() {
    let mut alone = crate::common::config(126, 1);
    alone.meta.serve = true;
    alone.meta.listen = format!("{}:0", alone.node.address);
    let node = TestNode::start(alone.clone());
    let mut process = parent(&node, "restarts", &node);
    assert_eq!(process.says(), "prepared");
    drop(node);
    let node = TestNode::start(alone);
    process.goes();
    let said = process.says();
    assert!(
        said.contains("NotInherited(Making") || said.contains("the node was started anew"),
        "{said}"
    );
    assert_eq!(process.says(), "done");
    drop(node);
}
