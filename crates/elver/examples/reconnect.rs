//! Waits that end in time, and a VQP that failed: what its error says, and how it works again.
//!
//! Run it beside a daemon: `cargo run -p elver --example reconnect`.

use std::time::Duration;

use elver::{
    AccessFlags, Completed, Error, Gid, Mr, Payload, RemoteAddr, SendFlags, SendOp, SendWr,
    Session, Vqp, VqpOptions, Wc,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::connect_default()?;
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let mr = session.alloc(4096, rights)?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(session.gid(), 0)?;

    // Nothing was posted, so that nothing comes.
    match vqp.wait_cq(&mut [Wc::default()], Some(Duration::from_millis(5))) {
        Err(Error::TimedOut) => println!("nothing came in 5 ms"),
        other => println!("{} came", other?),
    }

    // A node that is not there: a refusal with a reason, for programs and for people.
    let nowhere: Gid = "192.0.2.1".parse()?;
    let other = session.create_vqp(VqpOptions::default())?;
    match other.qconnect(nowhere, 0) {
        Err(Error::Refused { code, text }) => println!("{code:?}: {text}"),
        other => println!("connected by {:?}", other?),
    }

    // A READ with a wrong key fails its VQP, and what is posted after that is refused.
    let wrong = RemoteAddr { rkey: mr.rkey() ^ 1, ..mr.remote(0) };
    for from in [wrong, mr.remote(0)] {
        if let Err(failed) = read(&vqp, &mr, from) {
            println!("{failed}");
        }
    }

    // Connected anew it is as good as ever. Whoever serves others does this in a loop, and waits a
    // little longer each time.
    vqp.qconnect(session.gid(), 0)?;
    read(&vqp, &mr, mr.remote(0))?;
    println!("it works again");

    // When the daemon itself has gone, every call says `NodeGone`, and a new session is needed:
    // `Session::connect_default` fails with `NoDaemon` until it is back.
    Ok(())
}

fn read(vqp: &Vqp, mr: &Mr, from: RemoteAddr) -> Result<(), Error> {
    let sges = [mr.sge(64, 8)];
    let payload = Payload::Sges(&sges);
    let op = SendOp::Read(from);
    vqp.post_send(&[SendWr { wr_id: 7, op, flags: SendFlags::SIGNALED, payload, dest: None }])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, Some(Duration::from_secs(10)))?;
    wcs[0].succeeded().map(drop)
}
