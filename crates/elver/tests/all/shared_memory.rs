//! Memory that several sessions of a process have registered, each on a thread of its own.

use std::sync::{Barrier, mpsc};

use elver::{
    AccessFault, AccessFlags, Error, Mr, RefusalCode, SendOp, Session, SharedMemory, Vqp,
    VqpOptions, WcStatus,
};
use elver_testkit::wait_for;

use crate::common::{ALL, TestNode, alone, cluster, run, session_at, succeeds, wr};

const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;
const THREADS: u64 = 4;
const PIECE: u64 = 5_000;

fn connected(session: &Session, to: &TestNode) -> Vqp {
    let vqp = session.create_vqp(VqpOptions::default()).unwrap();
    vqp.qconnect(to.gid, 0).unwrap();
    vqp
}

/// The key is nobody's.
fn is_gone(result: Result<Mr, Error>) {
    match result.unwrap_err() {
        Error::Refused { code, .. } => assert_eq!(code, RefusalCode::NoSuchMr),
        error => panic!("{error}"),
    }
}

/// Regions and bytes that a node's processes have.
fn held(node: &TestNode) -> (u32, u64) {
    let users = node.thread.status().unwrap().users;
    (users.iter().map(|user| user.mrs).sum(), users.iter().map(|user| user.bytes).sum())
}

#[test]
fn what_is_shared_may_go_to_other_threads() {
    fn may_go<T: Send + Sync + Clone>() {}
    may_go::<SharedMemory>();
}

/// Each thread READs a piece of a peer's memory into its place of what all share, and another one's piece from there to
/// the peer.
#[test]
fn sessions_of_several_threads_have_one_memory() {
    let (meta, node) = cluster(220, |_| {});
    let (there, here) = (session_at(&meta), session_at(&node));
    let bytes: Vec<u8> = (0..PIECE * THREADS).map(|at| ((at * 31) >> 3) as u8).collect();
    let peer = there.alloc(2 * PIECE * THREADS, ALL).unwrap();
    peer.write(0, &bytes).unwrap();
    let all = here.alloc_shared(PIECE * THREADS, LOCAL).unwrap();
    let (memory, remote, barrier) =
        (all.share().unwrap(), |at| peer.remote(at), Barrier::new(THREADS as usize));
    assert_eq!((memory.len(), memory.is_empty()), (PIECE * THREADS, false));
    let places: Vec<_> = (0..THREADS)
        .map(|at| (remote(PIECE * at), remote(PIECE * (2 * THREADS - 1 - at))))
        .collect();
    std::thread::scope(|scope| {
        for (at, (from, to)) in places.into_iter().enumerate() {
            let (memory, barrier, node, meta) = (memory.clone(), &barrier, &node, &meta);
            scope.spawn(move || {
                let session = session_at(node);
                let own = session.attach(&memory, LOCAL).unwrap();
                let vqp = connected(&session, meta);
                let (at, len) = (at as u64, PIECE as u32);
                succeeds(&vqp, wr(1, SendOp::Read(from), &[own.sge(PIECE * at, len)]));
                barrier.wait();
                // What another thread's session has read.
                let other = THREADS - 1 - at;
                succeeds(&vqp, wr(2, SendOp::Write(to), &[own.sge(PIECE * other, len)]));
            });
        }
    });
    let mut found = vec![0; bytes.len()];
    all.read(0, &mut found).unwrap();
    assert_eq!(found, bytes);
    peer.read(PIECE * THREADS, &mut found).unwrap();
    assert_eq!(found, bytes);
    wait_for("the threads' regions to go", || (held(&node).0 == 1).then_some(()));
}

#[test]
fn each_region_has_keys_and_rights_of_its_own() {
    let node = alone(221);
    let (one, other) = (session_at(&node), session_at(&node));
    let first = one.alloc_shared(100, ALL).unwrap();
    let read_only = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let second = other.attach(&first.share().unwrap(), read_only).unwrap();
    assert_eq!((first.addr(), first.len()), (second.addr(), second.len()));
    assert!(first.lkey() != second.lkey() && first.rkey() != second.rkey());
    let vqp = connected(&other, &node);
    // A key of another session's is none of this one's, though the memory is.
    let stranger = vqp.post_send(&[wr(1, SendOp::Read(first.remote(0)), &[first.sge(0, 8)])]);
    assert!(stranger.is_err());
    let words = other.alloc(8, ALL).unwrap();
    words.write_u64(0, 77).unwrap();
    succeeds(&vqp, wr(2, SendOp::Write(first.remote(40)), &[words.sge(0, 8)]));
    assert_eq!((first.read_u64(40).unwrap(), second.read_u64(40).unwrap()), (77, 77));
    // An odd place, of which no word begins there.
    second.write(3, b"half words").unwrap();
    let mut bytes = [0; 10];
    first.read(3, &mut bytes).unwrap();
    assert_eq!(&bytes, b"half words");
    let add = SendOp::FetchAdd { remote: first.remote(40), add: 1 };
    succeeds(&vqp, wr(3, add, &[words.sge(0, 8)]));
    assert_eq!(second.read_u64(40).unwrap(), 78);
    let refused = run(&vqp, wr(4, SendOp::Write(second.remote(40)), &[words.sge(0, 8)]));
    assert_eq!(refused.status, WcStatus::RemAccessErr);
    assert_eq!(AccessFault::of(&refused), Some(AccessFault::Right));
    // Once more for the same session, with more rights.
    let third = other.attach(&second.share().unwrap(), ALL).unwrap();
    vqp.qconnect(node.gid, 0).unwrap();
    succeeds(&vqp, wr(5, SendOp::Write(third.remote(40)), &[words.sge(0, 8)]));
}

/// Neither the region that it was allocated with nor its session has to live on.
#[test]
fn memory_stays_until_its_last_region_goes() {
    let node = alone(222);
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let node = &node;
    std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            let session = session_at(node);
            let mr = session.alloc_shared(PIECE, ALL).unwrap();
            mr.write(PIECE - 4, b"last").unwrap();
            let memory = mr.share().unwrap();
            let again = session.attach(&memory, ALL).unwrap();
            mr.deregister().unwrap();
            // Of a region that is there no more.
            is_gone(session.attach(&memory, ALL));
            tell.send(again.share().unwrap()).unwrap();
            ended.recv().unwrap();
        });
        let session = session_at(node);
        let memory = told.recv().unwrap();
        let mr = session.attach(&memory, ALL).unwrap();
        end.send(()).unwrap();
        first.join().unwrap();
        wait_for("the session to end", || (held(node).0 == 1).then_some(()));
        is_gone(session.attach(&memory, ALL));
        let vqp = connected(&session, node);
        let into = session.alloc_shared(64, LOCAL).unwrap();
        succeeds(&vqp, wr(1, SendOp::Read(mr.remote(PIECE - 4)), &[into.sge(0, 4)]));
        let mut bytes = [0; 4];
        into.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"last");
        drop(into);
        mr.deregister().unwrap();
        wait_for("all to be given back", || (held(node) == (0, 0)).then_some(()));
    });
}

#[test]
fn what_is_a_session_s_alone_is_not_shared() {
    let node = alone(223);
    let session = session_at(&node);
    let mut own = [0_u64; 8];
    // SAFETY: the array outlives the region, and is not touched meanwhile.
    let registered = unsafe { session.register(own.as_mut_ptr().cast(), 64, LOCAL) }.unwrap();
    for mr in
        [session.alloc(64, LOCAL).unwrap(), session.alloc(1 << 20, LOCAL).unwrap(), registered]
    {
        let error = mr.share().unwrap_err();
        assert!(error.to_string().contains("alloc_shared"), "{error}");
        mr.deregister().unwrap();
    }
}

/// Sessions come and go with the memory, and all of them write it; nothing is left.
#[test]
fn threads_that_come_and_go_leave_nothing() {
    let node = alone(224);
    let session = session_at(&node);
    let mr = session.alloc_shared(PIECE, ALL).unwrap();
    let memory = mr.share().unwrap();
    std::thread::scope(|scope| {
        for lane in 0..THREADS {
            let (memory, node) = (memory.clone(), &node);
            scope.spawn(move || {
                for round in 0..20_u64 {
                    let session = session_at(node);
                    let own = session.attach(&memory, ALL).unwrap();
                    let vqp = connected(&session, node);
                    own.write_u64(8 * lane, round).unwrap();
                    // All add to one word, beside which each has its own.
                    let add = SendOp::FetchAdd { remote: own.remote(64), add: 1 };
                    succeeds(&vqp, wr(round, add, &[own.sge(128 + 8 * lane, 8)]));
                    assert_eq!(own.read_u64(8 * lane).unwrap(), round);
                    if round % 2 == 0 {
                        own.deregister().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(mr.read_u64(64).unwrap(), 20 * THREADS);
    wait_for("the others' regions to go", || (held(&node).0 == 1).then_some(()));
    assert_eq!(held(&node), (1, 8_192));
    mr.deregister().unwrap();
    wait_for("all to be given back", || (held(&node) == (0, 0)).then_some(()));
}
