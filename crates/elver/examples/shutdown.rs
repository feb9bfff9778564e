//! A server that ends as it should when it is asked to, by SIGTERM or Ctrl-C: it takes no new requests,
//! answers those it has, and gives everything back.
//!
//! Run it beside a daemon: `cargo run -p elver --example shutdown`. It asks itself to end after a moment.

use elver::{AccessFlags, Error, RecvWr, Session, VqpOptions};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::connect_default()?;
    let bound = session.create_vqp(VqpOptions::default())?;
    let port = bound.qbind(0)?;
    let mr = session.alloc(4096, AccessFlags::LOCAL_WRITE)?;
    bound.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 64)] }])?;

    // A waker can go to another thread; the session cannot. It ends the wait in which this thread is, or
    // the next one if it is in none, so that no signal is missed.
    let waker = session.waker()?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let handle = signals.handle();
    let watching = std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            waker.wake();
        }
    });
    println!("serving at {} port {port}", session.gid());
    // For this example: whoever is to be told to end, some time.
    kill_process(getpid(), Signal::TERM)?;

    loop {
        match bound.wait_msgs(None) {
            Ok(messages) => println!("{} requests", messages.len()),
            Err(Error::Woken) => break,
            Err(error) => return Err(error.into()),
        }
    }
    // What came meanwhile is answered here; then nobody reaches this server any more.
    drop(bound.qpop_msgs()?);
    drop(bound);
    // Returns when neither the node nor a peer touches the memory any more.
    mr.deregister()?;
    // Returns when the node has nothing left of the session.
    session.close()?;
    handle.close();
    watching.join().expect("it does not panic");
    println!("ended, and nothing is left");
    Ok(())
}
