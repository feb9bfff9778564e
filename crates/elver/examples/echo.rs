//! A server that sends back what it gets, and a client: messages over virtual queue pairs.
//!
//! Run it beside a daemon: `cargo run -p elver --example echo`.

use elver::{
    AccessFlags, Completed, Error, Gid, Payload, RecvWr, SendFlags, SendOp, SendWr, Session,
    VqpOptions, Wc, WcOpcode,
};

const ROUNDS: u64 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A session belongs to its thread, so that each side opens its own. Here both are in one process; in
    // life the server tells its clients its GID and its port.
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || serve(&tell));
    let (gid, port) = told.recv()?;
    ask(gid, port)?;
    server.join().expect("the server does not panic")?;
    println!("{ROUNDS} messages went there and back");
    Ok(())
}

fn serve(tell: &std::sync::mpsc::Sender<(Gid, u16)>) -> Result<(), Error> {
    let session = Session::connect_default()?;
    let bound = session.create_vqp(VqpOptions::default())?;
    let port = bound.qbind(0)?; // a free one
    let mr = session.alloc(4096, AccessFlags::LOCAL_WRITE)?;
    // A receive must be there for each message that comes; 0 to 15 are their wr_ids and their places.
    for slot in 0..16 {
        bound.post_recv(&[RecvWr { wr_id: slot, sges: &[mr.sge(slot * 64, 64)] }])?;
    }
    // Nobody waits for the channel any more if main has failed.
    let _ = tell.send((session.gid(), port));
    let mut answered = 0;
    while answered < ROUNDS {
        for message in bound.wait_msgs(None)? {
            let slot = message.wc.wr_id;
            let sges = [mr.sge(slot * 64, message.wc.byte_len)];
            // `source` is connected to whoever sent the message.
            message.source.post_send(&[send(slot, &sges)])?;
            let mut wcs = [Wc::default()];
            message.source.wait_cq(&mut wcs, None)?;
            wcs[0].succeeded()?;
            bound.post_recv(&[RecvWr { wr_id: slot, sges: &[mr.sge(slot * 64, 64)] }])?;
            answered += 1;
        }
    }
    Ok(())
}

fn ask(gid: Gid, port: u16) -> Result<(), Error> {
    let session = Session::connect_default()?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(gid, port)?;
    let mr = session.alloc(4096, AccessFlags::LOCAL_WRITE)?;
    for round in 0..ROUNDS {
        vqp.post_recv(&[RecvWr { wr_id: round, sges: &[mr.sge(64, 64)] }])?;
        mr.write_u64(0, round)?;
        vqp.post_send(&[send(round, &[mr.sge(0, 8)])])?;
        // The answer comes by the same VQP: two completions, of the SEND and of the receive.
        let mut answered = false;
        while !answered {
            let mut wcs = [Wc::default(); 2];
            let taken = vqp.wait_cq(&mut wcs, None)?;
            for wc in &wcs[..taken] {
                answered |= wc.succeeded()?.opcode == WcOpcode::Recv;
            }
        }
        assert_eq!(mr.read_u64(64)?, round);
    }
    Ok(())
}

fn send<'a>(wr_id: u64, sges: &'a [elver::Sge]) -> SendWr<'a> {
    let payload = Payload::Sges(sges);
    SendWr { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, payload, dest: None }
}
