//! A session per thread: nothing is locked between them, and what they share is memory of one of them,
//! which the others reach as any peer does.
//!
//! Run it beside a daemon: `cargo run --example threads`.

use std::sync::Barrier;

use elver::{
    AccessFlags, Completed, Error, Gid, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Session,
    VqpOptions, Wc,
};

const THREADS: usize = 4;
const ADDS: u64 = 200;

fn main() -> Result<(), Error> {
    let session = Session::connect_default()?;
    let counter = session.alloc(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC)?;
    // A session, its memory and its VQPs stay on their thread: the compiler refuses to send them. GIDs,
    // addresses and keys are plain values.
    let (gid, remote) = (session.gid(), counter.remote(0));
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(|| work(gid, remote, &barrier))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    assert_eq!(counter.read_u64(0)?, ADDS * THREADS as u64);
    println!("{THREADS} threads added 1 to a counter {ADDS} times each");
    Ok(())
}

fn work(gid: Gid, remote: RemoteAddr, barrier: &Barrier) -> Result<(), Error> {
    // Some tens of microseconds; a thread keeps it for as long as it lives.
    let opened = Session::connect_default();
    barrier.wait();
    let session = opened?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(gid, 0)?;
    let before = session.alloc(64, AccessFlags::LOCAL_WRITE)?;
    let sges = [before.sge(0, 8)];
    for wr_id in 0..ADDS {
        let op = SendOp::FetchAdd { remote, add: 1 };
        let payload = Payload::Sges(&sges);
        vqp.post_send(&[SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None }])?;
        let mut wcs = [Wc::default()];
        vqp.wait_cq(&mut wcs, None)?;
        wcs[0].succeeded()?;
    }
    Ok(())
}
