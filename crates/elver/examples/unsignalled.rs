//! Many WRITEs and few completions: a signalled WR tells that it and all before it have been done.
//!
//! Run it beside a daemon: `cargo run -p elver --example unsignalled`.

use elver::{
    AccessFlags, Completed, Error, Payload, SendFlags, SendOp, SendWr, Session, Sge, VqpOptions, Wc,
};

const WRITES: u64 = 100_000;
/// WRs that the queue holds.
const QUEUE: u32 = 256;
/// One in so many is signalled: at most half of the queue, so that one half is filled while the other
/// is worked on.
const BATCH: u64 = 64;

fn main() -> Result<(), Error> {
    let session = Session::connect_default()?;
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let mr = session.alloc(8192, rights)?;
    let vqp = session.create_vqp(VqpOptions { max_send_wr: QUEUE, ..VqpOptions::default() })?;
    vqp.qconnect(session.gid(), 0)?;

    let sges = [mr.sge(0, 8)];
    let mut wcs = [Wc::default(); 16];
    let (mut posted, mut done) = (0, 0);
    while done < WRITES {
        // A batch at a time, while there is room for one.
        while posted < WRITES && posted - done + BATCH <= u64::from(QUEUE) {
            let batch: Vec<_> = (posted..posted + BATCH.min(WRITES - posted))
                .map(|number| write(number, &sges, mr.remote(4096)))
                .collect();
            vqp.post_send(&batch)?;
            posted += batch.len() as u64;
        }
        let taken = vqp.wait_cq(&mut wcs, None)?;
        for wc in &wcs[..taken] {
            // Errors come for unsignalled ones too.
            done = wc.succeeded()?.wr_id + 1;
        }
    }
    println!("{WRITES} WRITEs, {} completions", WRITES.div_ceil(BATCH));

    // Without a signalled one the queue fills for good, and the refusal says what to do.
    let all: Vec<_> = (0..u64::from(QUEUE) + 1)
        .map(|number| SendWr { flags: SendFlags::empty(), ..write(number, &sges, mr.remote(4096)) })
        .collect();
    if let Err(failed) = vqp.post_send(&all) {
        println!("{} were posted: {failed}", failed.posted);
    }
    Ok(())
}

fn write<'a>(number: u64, sges: &'a [Sge], to: elver::RemoteAddr) -> SendWr<'a> {
    let last = number % BATCH == BATCH - 1 || number == WRITES - 1;
    let flags = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
    SendWr { wr_id: number, op: SendOp::Write(to), flags, payload: Payload::Sges(sges), dest: None }
}
