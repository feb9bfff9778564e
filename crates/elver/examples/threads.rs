//! A session per thread: nothing is locked between them. Memory may be one's and all others' of the process too: each
//! registers it for itself, and the node reads and writes it for all.
//!
//! Run it beside a daemon: `cargo run -p elver --example threads`.

use std::sync::Barrier;

use elver::{
    AccessFlags, Completed, Error, Gid, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Session,
    SharedMemory, VqpOptions, Wc,
};

const THREADS: usize = 4;
const ADDS: u64 = 200;
/// Each thread's place in the memory that all have.
const PLACE: u64 = 64;

fn main() -> Result<(), Error> {
    let session = Session::connect_default()?;
    let counter = session.alloc(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC)?;
    let seen = session.alloc_shared(THREADS as u64 * PLACE, AccessFlags::LOCAL_WRITE)?;
    // A session, its regions and its VQPs stay on their thread: the compiler refuses to send them. GIDs,
    // addresses and keys are plain values, and so is what is shared of a region.
    let (gid, remote, memory) = (session.gid(), counter.remote(0), seen.share()?);
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let worker = |number| {
            let (memory, barrier) = (&memory, &barrier);
            scope.spawn(move || work(number, gid, remote, memory, barrier))
        };
        let workers: Vec<_> = (0..THREADS as u64).map(worker).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    assert_eq!(counter.read_u64(0)?, ADDS * THREADS as u64);
    println!("{THREADS} threads added 1 to a counter {ADDS} times each");
    // What each of them got last, the largest of which was the last of all.
    let last = (0..THREADS as u64).map(|number| seen.read_u64(number * PLACE));
    let last = last.collect::<Result<Vec<_>, _>>()?;
    assert_eq!(last.iter().max(), Some(&(ADDS * THREADS as u64 - 1)));
    println!("before they added the last time it was {last:?}");
    Ok(())
}

fn work(
    number: u64,
    gid: Gid,
    remote: RemoteAddr,
    memory: &SharedMemory,
    barrier: &Barrier,
) -> Result<(), Error> {
    // Some tens of microseconds; a thread keeps it for as long as it lives.
    let opened = Session::connect_default();
    barrier.wait();
    let session = opened?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(gid, 0)?;
    // The node puts the old value there, where the other threads see it.
    let seen = session.attach(memory, AccessFlags::LOCAL_WRITE)?;
    let sges = [seen.sge(number * PLACE, 8)];
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
