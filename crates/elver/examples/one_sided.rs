//! A store that its clients read and write by themselves: the process that owns the memory does nothing.
//!
//! Run it beside a daemon: `cargo run -p elver --example one_sided`.

use elver::{
    AccessFlags, Completed, Error, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Session, Sge,
    Vqp, VqpOptions, Wc,
};

fn main() -> Result<(), Error> {
    // The owner: memory with the rights that peers shall have. Its address and key are all that they
    // need, by whatever way they get to know them.
    let owner = Session::connect_default()?;
    let rights = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_ATOMIC;
    let store = owner.alloc(64 * 1024, rights)?;
    store.write(0, b"a record")?;
    let (gid, record, counter) = (owner.gid(), store.remote(0), store.remote(4096));

    // A client. Its VQP needs no port: nobody gets a message.
    let client = Session::connect_default()?;
    let vqp = client.create_vqp(VqpOptions::default())?;
    vqp.qconnect(gid, 0)?;
    let local = client.alloc(4096, AccessFlags::LOCAL_WRITE)?;

    run(&vqp, SendOp::Read(record), &[local.sge(0, 8)])?;
    let mut bytes = [0; 8];
    local.read(0, &mut bytes)?;
    assert_eq!(&bytes, b"a record");

    local.write(0, b"another!")?;
    run(&vqp, SendOp::Write(record), &[local.sge(0, 8)])?;

    // Atomics put the old value into the local memory.
    for before in 0..3 {
        run(&vqp, SendOp::FetchAdd { remote: counter, add: 1 }, &[local.sge(64, 8)])?;
        assert_eq!(local.read_u64(64)?, before);
    }

    // What the owner has not allowed fails alone, and says so.
    let elsewhere = RemoteAddr { rkey: record.rkey ^ 1, ..record };
    if let Err(refused) = run(&vqp, SendOp::Read(elsewhere), &[local.sge(0, 8)]) {
        println!("a wrong key: {refused}");
    }

    store.read(0, &mut bytes)?;
    println!("the owner finds {:?} and {}", String::from_utf8_lossy(&bytes), store.read_u64(4096)?);
    Ok(())
}

/// Posts a WR and waits for its end.
fn run(vqp: &Vqp, op: SendOp, sges: &[Sge]) -> Result<Wc, Error> {
    let payload = Payload::Sges(sges);
    let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
    vqp.post_send(&[wr])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, None)?;
    wcs[0].succeeded()
}
