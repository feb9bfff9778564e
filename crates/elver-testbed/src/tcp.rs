//! TCP between the same ends: what a user takes who has no verbs.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use elver_console::Failure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, connect, recv, send,
    socket_with, sockopt,
};
use rustix::time::Timespec;

use crate::meet::{Meet, Target};
use crate::pair::{self, End, Placement};
use crate::sample::{Clock, Sample};
use crate::seat::pin;

/// Port of the servers.
pub const PORT: u16 = 18_518;
/// Bytes of the echo.
const ECHO: usize = 8;
/// How long one end waits for the other.
const STALL: Duration = Duration::from_secs(60);
/// How long one of many clients looks before it sleeps: as long as the client library does.
const SPIN: Duration = Duration::from_micros(200);
/// Core of a server that has a thread of its own.
const SERVER_CORE: usize = 1;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4_096;
/// Connections that the server looks at in one round: those that came first have sent first.
const LOOKS: usize = 4;

/// Connects to the first echo of 8 bytes, `clients` of them under way at any time, both sides
/// spinning on sockets that do not block.
///
/// # Errors
///
/// What failed at either end; somebody who is not root, between namespaces.
pub fn connects(placement: Placement, clients: u32, duration: Duration) -> Result<Sample, Failure> {
    let (_, sample) = pair::run(
        placement,
        |end, client| {
            let listener = listen((end.own, PORT).into())?;
            client.begin();
            let mut waiting = VecDeque::new();
            while !client.is_gone() {
                serve(&listener, &mut waiting, &mut drop)?;
            }
            Ok(())
        },
        |end| ask((end.peer, PORT).into(), clients, duration),
    )?;
    Ok(sample)
}

/// Connects of this thread's host to a server on another.
///
/// # Errors
///
/// What the system says, or an echo that is another.
pub fn ask(server: SocketAddr, clients: u32, duration: Duration) -> Result<Sample> {
    let mut sample = Sample::new()?;
    let mut flights: Vec<Flight> =
        (0..clients).map(|_| Flight::begin(server)).collect::<Result<_>>()?;
    let mut clock = Clock::new(duration);
    while clock.goes_on(&mut sample) {
        for flight in &mut flights {
            if flight.progress()? {
                sample.record(flight.since.elapsed());
                *flight = Flight::begin(server)?;
            }
        }
    }
    clock.finish(&mut sample);
    Ok(sample)
}

/// From connect to echo, once. Who is not alone on its core lets others have it, and sleeps in the
/// end.
///
/// # Errors
///
/// What the system says, or an echo that is another.
pub fn connect_once(server: SocketAddr, alone: bool) -> Result<Duration> {
    let mut flight = Flight::begin(server)?;
    while !flight.progress()? {
        if !alone {
            flight.wait()?;
        }
    }
    Ok(flight.since.elapsed())
}

/// Answers on a socket that listens, on a thread and a core of its own, while `job` runs.
///
/// # Errors
///
/// What the job says, or the system.
pub fn while_serving<T>(listener: &TcpListener, job: impl FnOnce() -> Result<T>) -> Result<T> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            pin(SERVER_CORE);
            let mut waiting = VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                serve(listener, &mut waiting, &mut drop)?;
            }
            Ok(())
        });
        let done = job();
        stop.store(true, Ordering::Relaxed);
        let served = serving.join().map_err(|_| anyhow!("the server's thread panicked"))?;
        // What the server says explains why the clients failed.
        served.and(done)
    })
}

/// One end's part of a full mesh: opens `targets`, each to the own end or to the peer's, and serves
/// what comes, until both ends have all their echoes.
///
/// # Errors
///
/// What the system says, or a peer that did not get ready or sent something else.
pub fn mesh_end(end: End, targets: &[Target], meet: &Meet) -> Result<Duration> {
    let listener = listen((end.own, PORT).into())?;
    meet.wait()?;
    let start = Instant::now();
    let mut waiting = VecDeque::new();
    // Both keep what they have: a mesh is of use while it stands.
    let (mut kept, mut served) = (Vec::with_capacity(targets.len()), Vec::new());
    let mut flights = Vec::with_capacity(targets.len());
    for target in targets {
        let address = if *target == Target::Own { end.own } else { end.peer };
        flights.push(Flight::begin((address, PORT).into())?);
        serve(&listener, &mut waiting, &mut |stream| served.push(stream))?;
    }
    let mut finish = None;
    loop {
        serve(&listener, &mut waiting, &mut |stream| served.push(stream))?;
        let mut index = 0;
        while index < flights.len() {
            if flights[index].progress()? {
                kept.push(flights.swap_remove(index));
            } else {
                index += 1;
            }
        }
        if flights.is_empty() && finish.is_none() {
            finish = Some(start.elapsed());
            meet.done();
        }
        if let Some(took) = finish
            && meet.all_done()
        {
            return Ok(took);
        }
        if start.elapsed() > STALL {
            bail!("the mesh was not complete within {} s", STALL.as_secs());
        }
    }
}

/// A socket that listens, and does not block.
///
/// # Errors
///
/// What the system says: the address is not this host's, or somebody listens there.
pub fn listen(at: SocketAddr) -> Result<TcpListener> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &at).with_context(|| format!("cannot listen on TCP {at}"))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Accepts who knocks, and answers those that came first; an answered connection goes to `served`.
fn serve(
    listener: &TcpListener,
    waiting: &mut VecDeque<OwnedFd>,
    served: &mut impl FnMut(OwnedFd),
) -> Result<()> {
    match accept_with(listener, SocketFlags::NONBLOCK) {
        Ok(stream) => {
            sockopt::set_tcp_nodelay(&stream, true)?;
            waiting.push_back(stream);
        }
        Err(Errno::AGAIN | Errno::CONNABORTED) => {}
        Err(error) => return Err(error.into()),
    }
    let mut buf = [0; ECHO];
    for _ in 0..waiting.len().min(LOOKS) {
        let Some(stream) = waiting.pop_front() else { break };
        match recv(&stream, &mut buf, RecvFlags::empty()) {
            Ok((_, len)) if len > 0 => {
                // The client may be gone: the benchmark has ended.
                let _ = send(&stream, &buf[..len], SendFlags::NOSIGNAL);
                served(stream);
            }
            Err(Errno::AGAIN) => waiting.push_back(stream),
            _ => {}
        }
    }
    Ok(())
}

/// A connection on its way to its first echo.
struct Flight {
    stream: OwnedFd,
    since: Instant,
    sent: bool,
}

impl Flight {
    fn begin(server: SocketAddr) -> Result<Flight> {
        let since = Instant::now();
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let stream = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
        sockopt::set_tcp_nodelay(&stream, true)?;
        // It closes with a reset: else its port would be held for a minute.
        sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        match connect(&stream, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Flight { stream, since, sent: false }),
            Err(error) => Err(error).with_context(|| format!("connect to TCP {server}")),
        }
    }

    /// Lets others run until there may be more to do.
    fn wait(&self) -> Result<()> {
        if self.since.elapsed() < SPIN {
            std::thread::yield_now();
            return Ok(());
        }
        let flags = if self.sent { PollFlags::IN } else { PollFlags::OUT };
        let timeout = Timespec::try_from(STALL)?;
        match poll(&mut [PollFd::new(&self.stream, flags)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Goes on as far as it can; whether the echo is there.
    fn progress(&mut self) -> Result<bool> {
        if !self.sent {
            match send(&self.stream, &[7; ECHO], SendFlags::NOSIGNAL) {
                Ok(_) => self.sent = true,
                Err(Errno::AGAIN | Errno::NOTCONN) => {}
                Err(error) => return Err(error).context("a TCP connection failed"),
            }
        }
        if !self.sent {
            ensure!(self.since.elapsed() < STALL, "a TCP connection was not made");
            return Ok(false);
        }
        let mut buf = [0; ECHO];
        match recv(&self.stream, &mut buf, RecvFlags::empty()) {
            Ok((_, 0)) => bail!("a TCP connection was closed"),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) if self.since.elapsed() < STALL => Ok(false),
            Err(error) => Err(error).context("a TCP connection failed"),
        }
    }
}
