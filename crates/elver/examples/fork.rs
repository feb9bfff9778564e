//! A server that forks for each request: the children have their connections at once, and give them back by ending.
//!
//! Run it beside a daemon: `cargo run -p elver --example fork [REQUESTS]`.

use std::io::{Read, Write, pipe};
use std::time::Instant;

use elver::{
    AccessFlags, Completed, Destination, Error, Heirs, Payload, PrepareOptions, RemoteAddr,
    SendFlags, SendOp, SendWr, Session, Wc,
};

/// Children at once, of which each needs a session.
const SESSIONS: u32 = 4;

fn main() -> Result<(), Error> {
    let requests = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100);

    // The store: here the parent's own memory, elsewhere a peer's.
    let parent = Session::connect_default()?;
    let store = parent.alloc(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;

    // Before any request: connections that children will have.
    let to = [Destination::new(parent.gid())];
    let heirs = parent.prepare(SESSIONS, &to, PrepareOptions::default())?;

    let mut slowest = 0;
    for request in 0..requests {
        store.write_u64(0, request)?;
        // One that has come back from its last child, which ended a moment ago.
        let heir = loop {
            if let Some(heir) = heirs.first_free() {
                break heir;
            }
            std::thread::yield_now();
        };
        let (mut told, mut tells) = pipe().map_err(system("pipe"))?;
        // SAFETY: this process has one thread, so that its child is whole; the child ends by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let begun = Instant::now();
            let answer = serve(&heirs, heir, store.remote(0));
            let line = match answer {
                Ok(value) => format!("{value} {}", begun.elapsed().as_micros()),
                Err(error) => error.to_string(),
            };
            let written = tells.write_all(line.as_bytes());
            // SAFETY: it ends the child alone.
            unsafe { libc::_exit(i32::from(written.is_err())) };
        }
        drop(tells);
        let mut line = String::new();
        told.read_to_string(&mut line).map_err(system("reading a child's answer"))?;
        // SAFETY: the child is this process's; what it ended with is in its answer.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        let (value, took) = line.split_once(' ').unwrap_or_default();
        assert_eq!(value, request.to_string(), "a child said {line:?}");
        slowest = slowest.max(took.parse().unwrap_or(u64::MAX));
    }
    println!("{requests} children READ what they should, each within {slowest} µs of its fork");
    Ok(())
}

/// What a child does: takes the session over that is meant for it, and READs.
fn serve(heirs: &Heirs, heir: u32, from: RemoteAddr) -> Result<u64, Error> {
    let heir = heirs.take(heir)?;
    let (vqp, Some(mr)) = (&heir.vqps[0], &heir.mr) else {
        return Err(Error::Invalid { what: "the sessions were prepared without a region" });
    };
    let sges = [mr.sge(0, 8)];
    let (op, payload) = (SendOp::Read(from), Payload::Sges(&sges));
    vqp.post_send(&[SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None }])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, None)?;
    wcs[0].succeeded()?;
    mr.read_u64(0)
}

fn system(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |reason| Error::System { call, reason }
}
