//! Tasks of tokio's that wait on one session (feature `tokio`).
//!
//! Run it beside a daemon: `cargo run -p elver --example tasks --features tokio`.

use std::rc::Rc;

use elver::tokio::AsyncSession;
use elver::{
    AccessFlags, Completed, ConnectOptions, Error, Payload, SendFlags, SendOp, SendWr, Session,
    VqpOptions, Wc,
};

// A session belongs to one thread, and so do the tasks that use it: a current-thread runtime, or a
// `LocalSet` on another.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let session = Rc::new(AsyncSession::new(Session::connect_default()?)?);
    let tasks = tokio::task::LocalSet::new();
    let work: Vec<_> = (0..4).map(|task| tasks.spawn_local(work(session.clone(), task))).collect();
    tasks.await;
    for task in work {
        task.await.expect("no task panics")?;
    }
    println!("4 tasks, 100 READs each");
    Ok(())
}

async fn work(session: Rc<AsyncSession>, task: u64) -> Result<(), Error> {
    let mr = session.session().alloc(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
    mr.write_u64(0, task)?;
    let vqp = session.session().create_vqp(VqpOptions::default())?;
    let gid = session.session().gid();
    let connecting = vqp.qconnect_start(gid, 0, ConnectOptions::default())?;
    session.wait_connected(&connecting).await?;
    let sges = [mr.sge(64, 8)];
    for wr_id in 0..100 {
        let (op, payload) = (SendOp::Read(mr.remote(0)), Payload::Sges(&sges));
        vqp.post_send(&[SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None }])?;
        let mut wcs = [Wc::default()];
        session.wait_cq(&vqp, &mut wcs).await?;
        assert_eq!((wcs[0].succeeded()?.wr_id, mr.read_u64(64)?), (wr_id, task));
    }
    Ok(())
}
