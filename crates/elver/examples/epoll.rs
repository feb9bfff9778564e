//! A session beside other descriptors in one epoll set.
//!
//! Run it beside a daemon: `cargo run -p elver --example epoll`.

use std::mem::MaybeUninit;

use elver::{
    AccessFlags, Completed, Payload, Ready, SendFlags, SendOp, SendWr, Session, VqpOptions, Wc,
};
use rustix::event::epoll;

const SESSION: u64 = 1;
const PIPE: u64 = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::connect_default()?;
    let mr = session.alloc(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(session.gid(), 0)?;

    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let (reader, writer) = std::io::pipe()?;
    let watch = |fd: &dyn std::os::fd::AsFd, name| {
        epoll::add(&set, fd.as_fd(), epoll::EventData::new_u64(name), epoll::EventFlags::IN)
    };
    watch(&session, SESSION)?;
    watch(&reader, PIPE)?;

    let sges = [mr.sge(64, 8)];
    let read = |wr_id| {
        let (op, payload) = (SendOp::Read(mr.remote(0)), Payload::Sges(&sges));
        vqp.post_send(&[SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None }])
    };
    read(0)?;
    let mut completed = 0;
    let mut running = true;
    while running {
        // Take all there is; only then ask to be woken for what comes next.
        for ready in session.poll_ready()? {
            let Ready::Vqp(vqp) = ready else { continue };
            let mut wcs = [Wc::default(); 8];
            let taken = vqp.poll_cq(&mut wcs)?;
            for wc in &wcs[..taken] {
                completed += 1;
                match wc.succeeded()?.wr_id {
                    99 => std::io::Write::write_all(&mut &writer, b"x")?,
                    wr_id => read(wr_id + 1)?,
                }
            }
        }
        if !session.arm()? {
            continue; // something came meanwhile
        }
        let mut events = [const { MaybeUninit::uninit() }; 8];
        let (ready, _) = epoll::wait(&set, &mut events[..], None)?;
        running = !ready.iter().any(|event| event.data.u64() == PIPE);
        session.disarm()?;
    }
    println!("{completed} READs by epoll, until the pipe said that it is enough");
    Ok(())
}
