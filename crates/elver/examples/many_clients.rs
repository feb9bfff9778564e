//! One server and many clients, of whom it knows nothing beforehand: a bound VQP gets the messages of all,
//! and each comes with a VQP back to its sender.
//!
//! Run it beside a daemon: `cargo run -p elver --example many_clients`.

use std::sync::mpsc::channel;

use elver::{
    AccessFlags, Completed, Error, Gid, Mr, Payload, RecvWr, SendFlags, SendOp, SendWr, Session,
    Vqp, VqpOptions, Wc, WcOpcode,
};

const CLIENTS: u64 = 8;
const REQUESTS: u64 = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (tell, told) = channel();
    let server = std::thread::spawn(move || -> Result<u64, Error> {
        let session = Session::connect_default()?;
        let bound = session.create_vqp(VqpOptions::default())?;
        let port = bound.qbind(0)?;
        let mr = session.alloc(64 * 64, AccessFlags::LOCAL_WRITE)?;
        let place = |slot| mr.sge(slot * 64, 64);
        (0..64).try_for_each(|slot| bound.post_recv(&[receive(slot, &[place(slot)])]))?;
        let _ = tell.send((session.gid(), port));
        let (mut served, mut sum) = (0, 0);
        while served < CLIENTS * REQUESTS + 1 {
            for message in bound.wait_msgs(None)? {
                let slot = message.wc.wr_id;
                sum += mr.read_u64(slot * 64)?;
                mr.write_u64(slot * 64, sum)?;
                if let Err(error) = answer(&message.source, &mr, slot) {
                    // That one client has gone is not the end for the others.
                    println!("a client is not answered: {error}");
                }
                bound.post_recv(&[receive(slot, &[place(slot)])])?;
                served += 1;
            }
        }
        Ok(sum)
    });
    let (gid, port) = told.recv()?;
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| std::thread::spawn(move || ask(gid, port, number))).collect();
    std::thread::spawn(move || ask_and_go(gid, port)).join().expect("nor does this one")?;
    for client in clients {
        client.join().expect("a client does not panic")?;
    }
    let sum = server.join().expect("the server does not panic")?;
    assert_eq!(sum, REQUESTS * CLIENTS * (CLIENTS - 1) / 2);
    println!("{CLIENTS} clients, {REQUESTS} requests each: the sum is {sum}");
    Ok(())
}

/// Sends the sum so far, and waits until the memory is free for the next message: the answer has gone.
fn answer(client: &Vqp, mr: &Mr, slot: u64) -> Result<(), Error> {
    client.post_send(&[send(slot, &[mr.sge(slot * 64, 8)])])?;
    let mut wcs = [Wc::default()];
    client.wait_cq(&mut wcs, None)?;
    wcs[0].succeeded()?;
    Ok(())
}

/// A client that sends a zero, and is gone before it is answered.
fn ask_and_go(gid: Gid, port: u16) -> Result<(), Error> {
    let session = Session::connect_default()?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(gid, port)?;
    let mr = session.alloc(64, AccessFlags::LOCAL_WRITE)?;
    vqp.post_send(&[send(0, &[mr.sge(0, 8)])])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, None)?;
    wcs[0].succeeded()?;
    Ok(())
}

/// A client: sends its number, and waits for the sum so far.
fn ask(gid: Gid, port: u16, number: u64) -> Result<(), Error> {
    let session = Session::connect_default()?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(gid, port)?;
    let mr = session.alloc(128, AccessFlags::LOCAL_WRITE)?;
    let mut before = 0;
    for request in 0..REQUESTS {
        mr.write_u64(0, number)?;
        vqp.post_recv(&[receive(request, &[mr.sge(64, 64)])])?;
        vqp.post_send(&[send(request, &[mr.sge(0, 8)])])?;
        // Two completions: of the SEND, and of the receive that the answer fills.
        let mut answered = false;
        while !answered {
            let mut wcs = [Wc::default(); 2];
            let taken = vqp.wait_cq(&mut wcs, None)?;
            for wc in &wcs[..taken] {
                answered |= wc.succeeded()?.opcode == WcOpcode::Recv;
            }
        }
        let sum = mr.read_u64(64)?;
        assert!(sum >= before + number);
        before = sum;
    }
    Ok(())
}

fn receive<'a>(wr_id: u64, sges: &'a [elver::Sge]) -> RecvWr<'a> {
    RecvWr { wr_id, sges }
}

fn send<'a>(wr_id: u64, sges: &'a [elver::Sge]) -> SendWr<'a> {
    let payload = Payload::Sges(sges);
    SendWr { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, payload, dest: None }
}
