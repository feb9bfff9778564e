//! One thread answers many streams, and sleeps on its session's descriptor by epoll.
//!
//! Run it beside a daemon: `cargo run --release --example echo_epoll -p elver-stream -- 1000`.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use elver::Session;
use elver_stream::{Interest, Listener, ListenerOptions, Options, Stream};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

const STREAMS: usize = 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: u32 = std::env::args().nth(1).map_or(Ok(100), |rounds| rounds.parse())?;
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || serve(&tell));
    let (gid, port) = told.recv()?;

    let session = Session::connect_default()?;
    let connect = |_| Stream::connect(&session, gid, port, Options::default(), None);
    let mut streams = (0..STREAMS).map(connect).collect::<io::Result<Vec<_>>>()?;
    for round in 0..rounds {
        for stream in &mut streams {
            stream.write_all(&round.to_le_bytes())?;
        }
        for stream in &mut streams {
            let mut answer = [0; 4];
            stream.read_exact(&mut answer)?;
            assert_eq!(answer, round.to_le_bytes());
        }
    }
    drop(streams);
    let answered = server.join().expect("the server does not panic")?;
    println!("{answered} bytes of {STREAMS} streams");
    assert_eq!(answered, u64::from(rounds) * 4 * STREAMS as u64);
    Ok(())
}

/// Answers until all streams have come and gone.
fn serve(tell: &std::sync::mpsc::Sender<(elver::Gid, u16)>) -> io::Result<u64> {
    let session = Session::connect_default().map_err(io::Error::other)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // Others' descriptors beside it, as many as one likes.
    epoll::add(&epoll, session.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let listener = Listener::bind(&session, 0, ListenerOptions::default())?;
    // Nobody waits for the channel any more if main has failed.
    let _ = tell.send((session.gid(), listener.port()));
    let (mut streams, mut accepted, mut answered) = (Vec::new(), 0, 0);
    while accepted < STREAMS || !streams.is_empty() {
        // 1. All that is there.
        while let Some(stream) = listener.try_accept()? {
            stream.set_nonblocking(true);
            streams.push(stream);
            accepted += 1;
        }
        let mut failed = Ok(());
        streams.retain_mut(|stream| match echo(stream, &mut answered) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            ended => {
                failed = ended.and(std::mem::replace(&mut failed, Ok(())));
                false
            }
        });
        failed?;
        // 2. Their peers shall wake this session, and the session its descriptor.
        let next = listener.deadline().map(|next| next.saturating_duration_since(Instant::now()));
        let mut at_most = Some(next.unwrap_or(Duration::MAX).min(Duration::from_secs(60)));
        for stream in &streams {
            let armed = stream.arm(Interest::Readable)?;
            at_most = at_most.zip(armed).map(|(one, other)| one.min(other));
        }
        let Some(at_most) = at_most else { continue };
        if session.arm().map_err(io::Error::other)? {
            // 3. Sleep.
            let at_most = Timespec::try_from(at_most).map_err(io::Error::other)?;
            let mut events = Vec::with_capacity(1);
            epoll::wait(&epoll, spare_capacity(&mut events), Some(&at_most))?;
            session.disarm().map_err(io::Error::other)?;
        }
    }
    Ok(answered)
}

/// Answers what is there; `WouldBlock` if more may come. An answer is short here, and finds room.
fn echo(stream: &mut Stream, answered: &mut u64) -> io::Result<()> {
    let mut bytes = [0; 1_024];
    loop {
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..read])?;
        *answered += read as u64;
    }
}
