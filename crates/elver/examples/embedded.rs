//! A node inside the process (feature `embedded`): for unit tests, and where no daemon shall be.
//!
//! `cargo run -p elver --example embedded --features embedded`; it needs no daemon.

use elver::node::config::Config;
use elver::{
    AccessFlags, Completed, Error, Payload, SendFlags, SendOp, SendWr, Session, VqpOptions, Wc,
};

/// What a program does with RDMA; it knows nothing of where the node is.
fn sum_of_peer(session: &Session, gid: elver::Gid, from: elver::RemoteAddr) -> Result<u64, Error> {
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(gid, 0)?;
    let mr = session.alloc(64, AccessFlags::LOCAL_WRITE)?;
    let sges = [mr.sge(0, 32)];
    let (op, payload) = (SendOp::Read(from), Payload::Sges(&sges));
    vqp.post_send(&[SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None }])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, None)?;
    wcs[0].succeeded()?;
    (0..4).map(|word| mr.read_u64(8 * word)).sum()
}

/// The unit test of it: this thread drives the node whenever it waits, so that the test needs no other
/// thread, no file and no socket of the host's but one UDP port.
fn the_sum_is_read_from_the_peer() -> Result<(), Error> {
    let mut config = Config::default();
    config.node.address = [127, 0, 0, 1].into();
    config.node.udp_port = 24_791;
    let session = Session::embedded(config)?;
    let peer = session.alloc(64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
    for word in 0..4 {
        peer.write_u64(8 * word, 10 + word)?;
    }
    assert_eq!(sum_of_peer(&session, session.gid(), peer.remote(0))?, 46);
    Ok(())
}

fn main() -> Result<(), Error> {
    the_sum_is_read_from_the_peer()?;
    println!("the test passes, with a node of its own");
    Ok(())
}
