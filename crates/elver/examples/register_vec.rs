//! Memory that the program has already, a `Vec`, registered in its place.
//!
//! Run it beside a daemon: `cargo run -p elver --example register_vec`. The node must be allowed to look into this
//! process: it is if it runs as root or as this user, and the error says what to change if not.

use elver::{
    AccessFlags, Completed, Error, Payload, SendFlags, SendOp, SendWr, Session, VqpOptions, Wc,
};

fn main() -> Result<(), Error> {
    let session = Session::connect_default()?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(session.gid(), 0)?;

    // What peers read lies in memory of the node's: `alloc` is the faster way where one can choose.
    let source = session.alloc(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
    source.write(0, &[7; 1024])?;

    let mut bytes = vec![0u8; 1024];
    // SAFETY: `bytes` is neither dropped nor grown, and nobody looks at it, until `deregister` has
    // returned.
    let mr = unsafe { session.register(bytes.as_mut_ptr(), 1024, AccessFlags::LOCAL_WRITE)? };
    let sges = [mr.sge(0, 1024)];
    let (op, payload) = (SendOp::Read(source.remote(0)), Payload::Sges(&sges));
    vqp.post_send(&[SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None }])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, None)?;
    wcs[0].succeeded()?;
    // When this returns, neither the node nor a peer touches the memory any more.
    mr.deregister()?;
    assert!(bytes.iter().all(|byte| *byte == 7));
    println!("1,024 bytes were READ into a Vec");
    Ok(())
}
