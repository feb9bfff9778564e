//! Children that write where they have no business: nobody else has what they can reach.

use std::io::{Read, Write, pipe};
use std::time::Instant;

use elver::{Error, HeirState, NotInherited, SendOp, VqpOptions};
use elver_testkit::Role;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use super::{Child, Parent, WORDS, count, parent, until};
use crate::common::{ALL, WAIT, cluster, succeeds, wr};

/// A mapping that is shared with others and may be written.
struct Writable {
    start: u64,
    end: u64,
    /// What the system says of the file.
    name: String,
}

/// All of this process's.
fn writable() -> Vec<Writable> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of = |line: &str| {
        let (place, rest) = line.split_once(' ')?;
        let (start, end) = place.split_once('-')?;
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        let name = rest.rsplit('/').next()?.to_string();
        rest.starts_with("rw-s").then(|| Writable { start: at(start), end: at(end), name })
    };
    maps.lines().filter_map(of).collect()
}

/// How many are of the files that hold sessions, and what they reach of others'. Memory in a file of its own is both processes'.
fn sessions() -> usize {
    writable().iter().filter(|one| !one.name.starts_with("memfd:elver-mr")).count()
}

/// Overwrites them all, but what an address lies in.
fn scribble(spared: Option<u64>) {
    for Writable { start, end, .. } in writable() {
        if !spared.is_some_and(|addr| (start..end).contains(&addr)) {
            // SAFETY: the pages are mapped and may be written. Nothing of this process has a reference to them: what is
            // shared with others is looked at by atomics and copies alone.
            unsafe { std::ptr::write_bytes(start as *mut u8, 0xa5, (end - start) as usize) };
        }
    }
}

pub(super) fn scribbles(role: &Role) {
    let parent = Parent::new(role, 3);
    let heirs = &parent.heirs;
    // What the parent reaches itself is in its memory too.
    let apart = parent.session.alloc_apart(4_096, ALL).unwrap();
    let vqp = parent.session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(parent.session.gid(), 0).unwrap();
    let begun = Instant::now();
    while !writable().iter().any(|one| one.name.starts_with("memfd:elver-gate")) {
        assert!(begun.elapsed() < WAIT.unwrap(), "nothing goes directly");
        succeeds(&vqp, wr(1, SendOp::Read(apart.remote(0)), &[parent.region.sge(512, 8)]));
    }
    assert_eq!(
        sessions(),
        2,
        "its own session and its gate, and nothing of those that it prepared"
    );

    let (mut stop, mut ready) = (pipe().unwrap(), pipe().unwrap());
    let brother = Child::new(|| {
        let heir = heirs.take(0).unwrap();
        ready.1.write_all(b"!").unwrap();
        let _ = stop.0.read(&mut [0]);
        parent.read(&heir)
    });
    ready.0.read_exact(&mut [0]).unwrap();
    for _ in 0..3 {
        let said = Child::new(|| {
            let heir = heirs.take(1).unwrap();
            let own = heir.mr.as_ref().unwrap().addr();
            assert_eq!(sessions(), 1, "its own session");
            scribble(Some(own));
            assert_eq!(heirs.state(0), Some(HeirState::Taken { pid: brother.pid }));
            let twice = heirs.take(2).map(drop);
            assert!(matches!(twice, Err(Error::NotInherited(NotInherited::Twice { heir: 1 }))));
            let said = parent.read(&heir);
            drop(heir);
            handles_are_harmless(&parent, &vqp);
            said
        })
        .ends();
        assert_eq!(said.as_bytes(), WORDS);
        until(heirs, 1, |state| state == HeirState::Free);
    }
    // One that takes none, or takes it later. It has no descriptor left to leave with.
    let said = Child::new(|| {
        let connected = rustix::net::getpeername(&parent.session);
        assert!(connected.is_ok_and(|to| to.is_some()));
        let few = Rlimit { current: Some(64), maximum: Some(64) };
        rustix::process::setrlimit(Resource::Nofile, few).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        parent.session.leave_to_parent().unwrap();
        parent.session.leave_to_parent().unwrap();
        drop(all);
        assert_eq!(rustix::net::getpeername(&parent.session).err(), Some(Errno::NOTCONN));
        assert_eq!(sessions(), 0);
        scribble(None);
        parent.read(&heirs.take(2).unwrap())
    })
    .ends();
    assert_eq!(said.as_bytes(), WORDS);

    stop.1.write_all(b"!").unwrap();
    assert_eq!(brother.ends().as_bytes(), WORDS);
    for (heir, returned) in [(0, 1), (1, 3), (2, 1)] {
        until(heirs, heir, |state| state == HeirState::Free);
        assert_eq!(heirs.returned(heir), returned);
    }
    gives_back_and_lives_on(&parent);
    let not_left = parent.session.leave_to_parent();
    assert!(matches!(not_left, Err(Error::Invalid { .. })), "{not_left:?}");
    let mut bytes = [0; WORDS.len()];
    parent.region.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, WORDS);
    succeeds(&vqp, wr(2, SendOp::Read(parent.region.remote(0)), &[parent.region.sge(512, 8)]));
    let other = parent.session.create_vqp(VqpOptions::default()).unwrap();
    other.qconnect(parent.session.gid(), 0).unwrap();
}

/// A child drops its session and stays, with the memory of it mapped: nobody has that before the child has ended.
fn gives_back_and_lives_on(parent: &Parent) {
    let heirs = &parent.heirs;
    let (mut stop, mut given) = (pipe().unwrap(), pipe().unwrap());
    let child = Child::new(|| {
        drop(heirs.take(2).unwrap());
        given.1.write_all(b"!").unwrap();
        let _ = stop.0.read(&mut [0]);
        "stayed".into()
    });
    given.0.read_exact(&mut [0]).unwrap();
    // Meanwhile another one is taken, given back and made anew.
    let other = Child::new(|| parent.read(&heirs.take(1).unwrap()));
    assert_eq!(other.ends().as_bytes(), WORDS);
    until(heirs, 1, |state| state == HeirState::Free);
    assert_eq!(heirs.state(2), Some(HeirState::Taken { pid: child.pid }));
    stop.1.write_all(b"!").unwrap();
    assert_eq!(child.ends(), "stayed");
    until(heirs, 2, |state| state == HeirState::Free);
}

/// In a child that has left the session: what it has from its parent says so, and can be dropped.
fn handles_are_harmless(parent: &Parent, vqp: &elver::Vqp) {
    let forked = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Forked)));
    let Parent { session, region, .. } = parent;
    forked(session.poll().map(drop));
    forked(session.alloc(64, ALL).map(drop));
    forked(region.read(0, &mut [0; 8]));
    forked(region.write(0, &[0; 8]));
    let posted = vqp.post_send(&[wr(3, SendOp::Read(region.remote(0)), &[region.sge(0, 8)])]);
    forked(posted.map_err(Error::from));
    forked(vqp.poll_cq(&mut [elver::Wc::default()]).map(drop));
    // SAFETY: the region's bytes stay mapped while it lives.
    assert_eq!(unsafe { region.as_ptr().read_volatile() }, 0, "a place that is nobody else's");
    // SAFETY: the process ends without looking at them again.
    drop(unsafe { (std::ptr::read(vqp), std::ptr::read(parent)) });
}

#[test]
fn a_child_that_writes_over_all_it_reaches_harms_nobody() {
    let (meta, node) = cluster(129, |_| {});
    let mut process = parent(&node, "scribbles", &meta);
    assert_eq!(process.says(), "done");
    let engine = node.thread.status().unwrap().engine;
    let broken =
        engine.iter().filter(|(name, times)| name.starts_with("violations") && **times > 0);
    assert_eq!(broken.collect::<Vec<_>>(), []);
    assert_eq!(engine["heirs_inherited"], 7);
    assert_eq!(count(&node.thread, "heirs_returned"), 7);
}
