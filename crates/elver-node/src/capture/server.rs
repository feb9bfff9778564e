//! The node's side of a capture: lets the node's user in, has the device record, and passes it on.
#![allow(clippy::disallowed_types, reason = "how long who asks is waited for")]

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use elver_soft::record::{self, LinkType, TapReader};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::names::Names;
use super::{BUFFER_BYTES_MAX, CaptureOptions};
use crate::engine::{Notice, Outlet};
use crate::worker::Worker;

/// Bytes of the longest request that is read.
const REQUEST_BYTES_MAX: usize = 512;
/// How long who asks may take to say what is wanted, and who ends to take the rest.
const ASKER_WAIT: Duration = Duration::from_secs(1);
/// Time between two looks for packets: the engine wakes nobody for them.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes that are written at once.
const CHUNK_BYTES: usize = 128 << 10;
/// Of the time that the engine takes to say whose packets these are, so many times pass before it is asked
/// again.
const NAMES_APART: u32 = 20;

/// Captures of a node, one at a time.
#[derive(Default)]
pub(crate) struct Capturer {
    running: Option<Running>,
}

struct Running {
    worker: Worker,
    /// Its own, to see whether who asked has gone.
    stream: UnixStream,
}

impl Running {
    /// Whether it still records for somebody. Who has gone was served, though its thread may not have heard of it.
    fn is_wanted(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::empty())];
        let is_looked_at = poll(&mut fds, Some(&Timespec::default())).is_ok();
        let is_open = !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
        !self.worker.has_ended() && is_looked_at && is_open
    }
}

impl Capturer {
    /// Serves one who connected, on a thread of his own.
    pub(crate) fn serve(&mut self, stream: UnixStream, outlet: &Outlet) -> io::Result<()> {
        // The socket's mode keeps others out already; but who has a socket may have been given it.
        let peer = elver_portal::peer_of(&stream)?;
        if peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw() {
            return refuse(&stream, "only the node's own user and root may record what it sends");
        }
        if self.running.as_ref().is_some_and(Running::is_wanted) {
            return refuse(&stream, "the node is being recorded already; end that first");
        }
        // Its thread is waited for: the engine has one tap.
        self.running = None;
        let (outlet, own) = (outlet.clone(), stream.try_clone()?);
        let worker = Worker::start("elver-capture", move |stop, wake| {
            // That who asked has gone concerns nobody else.
            let _ = serve(&stream, &outlet, stop, wake);
            // There is another descriptor of it.
            let _ = stream.shutdown(Shutdown::Both);
        })?;
        self.running = Some(Running { worker, stream: own });
        Ok(())
    }
}

fn refuse(mut stream: &UnixStream, text: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(ASKER_WAIT))?;
    stream.write_all(format!("{text}\n").as_bytes())
}

fn serve(
    stream: &UnixStream,
    outlet: &Outlet,
    stop: &AtomicBool,
    wake: &OwnedFd,
) -> io::Result<()> {
    let options = match read_request(stream) {
        Ok(options) => options,
        Err(error) => return refuse(stream, &format!("a capture cannot be asked for so: {error}")),
    };
    if options.buffer_bytes > BUFFER_BYTES_MAX {
        return refuse(stream, &format!("buffer_bytes is at most {BUFFER_BYTES_MAX}"));
    }
    let (tap, reader) = record::tap(options.buffer_bytes as usize, options.snap_bytes);
    let Some((link, device)) = outlet.ask(|answer| Notice::Tap { tap, answer }) else {
        return refuse(stream, "the node's engine does not answer; it is busy or ending");
    };
    stream.set_nonblocking(true)?;
    let mut out = Vec::with_capacity(CHUNK_BYTES + (64 << 10));
    let program = concat!("elverd ", env!("CARGO_PKG_VERSION"));
    record::begin(&mut out, link, &device, program, options.snap_bytes);
    let names = Names::default();
    let mut recording =
        Recording { stream, reader, link, out, names, packets: 0, named_until: None };
    let passed = recording.pass_on(outlet, stop, wake);
    // An engine that is ending records nothing any more.
    let _ = outlet.ask(|answer| Notice::Untap { answer });
    passed?;
    recording.end(outlet, wake)
}

/// What was asked for: a line.
fn read_request(mut stream: &UnixStream) -> io::Result<CaptureOptions> {
    stream.set_nonblocking(false)?;
    let limit = Instant::now() + ASKER_WAIT;
    let mut request = Vec::new();
    let mut byte = [0];
    loop {
        let left = limit.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut byte)? == 0 || byte == [b'\n'] {
            break;
        }
        request.push(byte[0]);
        if request.len() > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(serde_json::from_slice(&request)?)
}

/// A capture under way.
struct Recording<'a> {
    stream: &'a UnixStream,
    reader: TapReader,
    link: LinkType,
    /// What was recorded and is not written.
    out: Vec<u8>,
    names: Names,
    packets: u64,
    /// Until then the engine is not asked whose packets these are.
    named_until: Option<Instant>,
}

impl Recording<'_> {
    /// Passes on what is recorded, until who asked has enough or the node ends.
    fn pass_on(&mut self, outlet: &Outlet, stop: &AtomicBool, wake: &OwnedFd) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.fill(outlet);
            let wait = if self.out.is_empty() { Some(LOOK) } else { None };
            let heard = PollFlags::IN | PollFlags::RDHUP;
            if self.wait(wake, heard, wait)?.intersects(heard) {
                return Ok(());
            }
            self.write()?;
        }
        Ok(())
    }

    /// The rest: what is still in the ring, and what there was in all.
    fn end(&mut self, outlet: &Outlet, wake: &OwnedFd) -> io::Result<()> {
        let limit = Instant::now() + ASKER_WAIT;
        let mut is_last = false;
        self.named_until = None;
        loop {
            self.fill(outlet);
            if self.out.is_empty() {
                if is_last {
                    return Ok(());
                }
                is_last = true;
                let (packets, lost) = (self.packets, self.reader.lost());
                let all = packets + lost;
                record::statistics(&mut self.out, record::unix_ns(), all, lost);
            }
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.wait(wake, PollFlags::empty(), Some(left))?;
            self.write()?;
        }
    }

    /// Takes packets until there is enough to write.
    fn fill(&mut self, outlet: &Outlet) {
        if self.reader.is_empty() || self.out.len() >= CHUNK_BYTES {
            return;
        }
        // After the packets that wait here, so that the VQPs that they are of are known by now.
        let asked = Instant::now();
        if self.named_until.is_none_or(|until| asked >= until) {
            if let Some(names) = outlet.ask(|answer| Notice::Names { answer }) {
                self.names.learn(&names);
            }
            self.named_until = Some(asked + (asked.elapsed() * NAMES_APART).max(LOOK));
        }
        while self.out.len() < CHUNK_BYTES
            && let Some(packet) = self.reader.take()
        {
            let name = self.names.of(self.link, packet.direction, packet.bytes);
            record::packet(&mut self.out, &packet, name);
            self.packets += 1;
        }
    }

    /// Writes what can be written at once.
    fn write(&mut self) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            if written == self.out.len() {
                break Ok(());
            }
            match (&mut &*self.stream).write(&self.out[written..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.out.drain(..written);
        result
    }

    /// Sleeps until there is room to write, what is `heard` of who asked, the node ends, or the time has
    /// passed.
    fn wait(
        &self,
        wake: &OwnedFd,
        heard: PollFlags,
        at_most: Option<Duration>,
    ) -> io::Result<PollFlags> {
        let room = if self.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        let stream = PollFd::from_borrowed_fd(self.stream.as_fd(), heard | room);
        let mut fds = [stream, PollFd::new(wake, PollFlags::IN)];
        let timeout = at_most.and_then(|wait| Timespec::try_from(wait).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(fds[0].revents()),
            Err(error) => Err(error.into()),
        }
    }
}
