//! Status and metrics for others: a small thread that asks the engine once for all who wait.
//!
//! Over a Unix socket it writes the status as one JSON object and closes. Over TCP it answers
//! `GET /metrics` with the metrics in the text form of OpenMetrics, which Prometheus reads.
//!
//! When the node ends, who is being told something is cut off at once. A recording has a second to pass on what it has
//! ([`crate::capture`]), which is all that the end of this thread may have to wait for.
#![allow(clippy::disallowed_types, reason = "how long an asker is waited for")]

mod askers;
mod requests;

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::capture::Capturer;
use crate::engine::{Notice, Outlet};
use crate::metrics;
use crate::worker::Worker;
use crate::{NodeError, Status};
use askers::Askers;
use requests::{ASKER_WAIT, Requests};

/// Time between two questions to the engine, so that those who ask without end cost it little: at least this, and so many
/// times what the last one took, up to a limit.
const APART: Duration = Duration::from_millis(2);
const APART_TIMES: u32 = 20;
const APART_MAX: Duration = Duration::from_millis(100);
/// How long nobody is served when there was no descriptor for who came.
const DEAF: Duration = Duration::from_millis(100);
/// Time until it is waited again where the system has no memory for that.
const AGAIN: Duration = Duration::from_millis(10);

/// Where status and metrics are served.
#[derive(Debug, Default)]
pub struct Observer {
    status: Option<(UnixListener, PathBuf)>,
    metrics: Option<TcpListener>,
    capture: Option<(UnixListener, PathBuf)>,
}

impl Observer {
    /// Serves nothing so far.
    pub fn new() -> Observer {
        Observer::default()
    }

    /// Serves the status over a listening Unix socket. The file at `path` is removed at the end.
    pub fn with_status(self, listener: UnixListener, path: PathBuf) -> Observer {
        Observer { status: Some((listener, path)), ..self }
    }

    /// Lets the node's user record what the node sends and receives, likewise; see [`crate::capture`].
    pub fn with_capture(self, listener: UnixListener, path: PathBuf) -> Observer {
        Observer { capture: Some((listener, path)), ..self }
    }

    /// Serves metrics over TCP.
    ///
    /// # Errors
    ///
    /// [`NodeError::Listen`] if the port is not to be had.
    pub fn with_metrics(self, address: SocketAddr) -> Result<Observer, NodeError> {
        let listener = TcpListener::bind(address).map_err(|reason| NodeError::Listen {
            address,
            what: "metrics",
            option: "metrics.listen",
            reason,
        })?;
        Ok(Observer { metrics: Some(listener), ..self })
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref()?.local_addr().ok()
    }

    pub(crate) fn start(self, outlet: Outlet) -> Result<Worker, NodeError> {
        let system = |reason| NodeError::System { call: "serving status", reason };
        let sockets =
            [&self.status, &self.capture].map(|one| one.as_ref().map(|(one, _)| one.as_fd()));
        for listener in
            sockets.into_iter().chain([self.metrics.as_ref().map(AsFd::as_fd)]).flatten()
        {
            rustix::io::ioctl_fionbio(listener, true).map_err(|error| system(error.into()))?;
        }
        Worker::start("elver-observer", move |stop, wake| {
            self.serve(stop, wake, &outlet);
            for (_, path) in [&self.status, &self.capture].into_iter().flatten() {
                // Somebody may have tidied up already.
                let _ = fs::remove_file(path);
            }
        })
        .map_err(system)
    }

    fn serve(&self, stop: &AtomicBool, wake: &OwnedFd, outlet: &Outlet) {
        let mut engine = Asked { outlet, wake, next: None, latest: None };
        let mut capturer = Capturer::default();
        let (mut askers, mut requests) = (Askers::default(), Requests::default());
        while !stop.load(Ordering::Relaxed) {
            let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
            let status = self.status.iter().filter(|_| askers.has_room());
            fds.extend(status.map(|(one, _)| PollFd::new(one, PollFlags::IN)));
            fds.extend(self.metrics.iter().map(|one| PollFd::new(one, PollFlags::IN)));
            fds.extend(self.capture.iter().map(|(one, _)| PollFd::new(one, PollFlags::IN)));
            fds.extend(requests.sockets().map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN)));
            fds.extend(askers.sockets().map(|one| PollFd::from_borrowed_fd(one, PollFlags::OUT)));
            let next = engine.next.filter(|_| askers.wait());
            let due = requests.due().into_iter().chain(askers.due()).chain(next).min();
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    // The system has no memory for it now.
                    std::thread::sleep(AGAIN);
                    continue;
                }
            }
            // That an asker goes away or takes too long concerns nobody else.
            let mut failed = false;
            if let Some((listener, _)) = &self.status {
                failed |= askers.take_in(listener).is_err();
            }
            if let Some(listener) = &self.metrics {
                match listener.accept() {
                    Ok((stream, _)) => drop(requests.add(stream, Instant::now())),
                    Err(error) => failed |= error.kind() != io::ErrorKind::WouldBlock,
                }
            }
            let now = Instant::now();
            let asked: Vec<_> = std::iter::from_fn(|| requests.next(now)).collect();
            // All who are here by now are told the same.
            engine.latest = None;
            if askers.wait() && engine.next.is_none_or(|next| next <= now) {
                let text = engine.status().and_then(|status| {
                    let mut text = serde_json::to_vec(&*status)?;
                    text.push(b'\n');
                    Ok(text)
                });
                askers.tell(text.ok(), Instant::now());
            }
            askers.go_on(Instant::now());
            answer_all(asked, &mut engine, stop);
            if let Some((listener, _)) = &self.capture {
                match listener.accept() {
                    Ok((stream, _)) => drop(capturer.serve(stream, outlet)),
                    Err(error) => failed |= error.kind() != io::ErrorKind::WouldBlock,
                }
            }
            if failed {
                let deaf = Timespec::try_from(DEAF).unwrap_or_default();
                // Interrupted, it tries again the sooner.
                let _ = poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&deaf));
            }
        }
    }
}

/// The engine, which is not asked too often.
struct Asked<'a> {
    outlet: &'a Outlet,
    /// There is something to be read of it once the node ends.
    wake: &'a OwnedFd,
    /// When it is asked again at the earliest.
    next: Option<Instant>,
    /// What it has answered since that was last forgotten.
    latest: Option<Rc<Status>>,
}

impl Asked<'_> {
    fn status(&mut self) -> io::Result<Rc<Status>> {
        if let Some(latest) = &self.latest {
            return Ok(latest.clone());
        }
        if let Some(next) = self.next {
            let left = next.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            // Interrupted, it asks the sooner.
            let _ = poll(&mut [PollFd::new(self.wake, PollFlags::IN)], Some(&left));
        }
        let asked = Instant::now();
        let status = self.outlet.ask(|answer| Notice::Status { answer });
        let answered = Instant::now();
        self.next = Some(answered + apart(answered - asked));
        let status = Rc::new(status.ok_or(io::ErrorKind::TimedOut)?);
        Ok(self.latest.insert(status).clone())
    }
}

/// How long the engine is left alone after an answer.
fn apart(took: Duration) -> Duration {
    (took * APART_TIMES).clamp(APART, APART_MAX)
}

/// Answers all, until the node ends.
fn answer_all(asked: Vec<(TcpStream, Vec<u8>)>, engine: &mut Asked<'_>, stop: &AtomicBool) {
    for (stream, request) in asked {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        drop(answer_http(&stream, &request, engine));
    }
}

fn answer_http(mut stream: &TcpStream, request: &[u8], engine: &mut Asked<'_>) -> io::Result<()> {
    let is_local = stream.local_addr()?.ip().to_canonical().is_loopback();
    let mut words = request.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (code, kind, body) = match (method, path) {
        _ if is_local && !names_this_host(request) => {
            ("421 Misdirected Request", "text/plain", "ask for it by its address\n".to_string())
        }
        (b"GET", b"/metrics") => {
            ("200 OK", metrics::CONTENT_TYPE, metrics::encode(&*engine.status()?))
        }
        (b"GET", _) => ("404 Not Found", "text/plain", "ask for /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", "text/plain", "GET it\n".to_string()),
    };
    let answer = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n\
         {body}",
        body.len()
    );
    write_in_time(answer.as_bytes(), Instant::now() + ASKER_WAIT, |bytes, left| {
        let mut fds =
            [PollFd::new(stream, PollFlags::OUT), PollFd::new(engine.wake, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::try_from(left).unwrap_or_default()))?;
        if !fds[1].revents().is_empty() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        stream.write(bytes)
    })
}

/// Whether a request, if it says whom it is for, says an address or `localhost`: the page of a
/// stranger's that points its name here (DNS rebinding) has a browser say that name.
fn names_this_host(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let host = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim().to_string())
    });
    let Some(host) = host else { return true };
    host.parse::<SocketAddr>().is_ok()
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        || host.rsplit_once(':').map_or(&*host, |(name, _)| name).eq_ignore_ascii_case("localhost")
}

/// Writes all bytes until then, or fails: also to one who takes a byte now and then.
fn write_in_time(
    mut bytes: &[u8],
    limit: Instant,
    mut write: impl FnMut(&[u8], Duration) -> io::Result<usize>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = limit.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match write(bytes, left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_left_alone_the_longer_the_more_an_answer_cost() {
        for (took, left) in [(0, 2), (1, 20), (4, 80), (50, 100)] {
            assert_eq!(apart(Duration::from_millis(took)), Duration::from_millis(left));
        }
    }

    /// Each was told by itself, and the engine left alone in between: who came behind a crowd waited for all of it.
    #[test]
    fn all_who_wait_are_told_at_once_and_who_does_not_read_holds_nobody_up() {
        use std::io::Read;
        use std::os::unix::net::UnixStream;
        use std::sync::atomic::AtomicU32;
        const ASKERS: usize = 100;
        let path = std::env::temp_dir().join(format!("elver-observer-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let (outlet, mut inlet) = crate::engine::channel().unwrap();
        let observer = Observer::new().with_status(listener, path.clone());
        let worker = observer.start(outlet).unwrap();
        let (are_here, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let asked = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let Some(Notice::Status { answer }) = inlet.next() else {
                        std::thread::yield_now();
                        continue;
                    };
                    while !are_here.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                    // More than a socket takes that nobody reads.
                    let status = Status { version: "x".repeat(1 << 20), ..Status::default() };
                    let _ = answer.try_send(status);
                }
            });
            let connect = |_| UnixStream::connect(&path).unwrap();
            let mut askers: Vec<_> = (0..ASKERS).map(connect).collect();
            are_here.store(true, Ordering::Release);
            // The others do not read at all.
            for asker in &mut askers[ASKERS - 2..] {
                let mut text = String::new();
                asker.read_to_string(&mut text).unwrap();
                assert!(text.ends_with("}\n"), "{} bytes", text.len());
            }
            is_over.store(true, Ordering::Release);
        });
        assert!((1..10).contains(&asked.into_inner()));
        drop(worker);
    }

    /// All who had asked were answered first, half a second each.
    #[test]
    fn nobody_is_answered_when_the_node_ends() {
        use std::io::Read;
        let (outlet, _inlet) = crate::engine::channel().unwrap();
        outlet.close();
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let mut engine = Asked { outlet: &outlet, wake: &wake, next: None, latest: None };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = || {
            let asker = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let stream = listener.accept().unwrap().0;
            stream.set_nonblocking(true).unwrap();
            (asker, stream)
        };
        let request = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        let heard = |mut asker: TcpStream| {
            let mut text = String::new();
            asker.read_to_string(&mut text).unwrap();
            text
        };
        let (asker, stream) = connected();
        answer_all(vec![(stream, request.clone())], &mut engine, &AtomicBool::new(false));
        assert!(heard(asker).starts_with("HTTP/1.1 404"));
        let (asker, stream) = connected();
        answer_all(vec![(stream, request.clone())], &mut engine, &AtomicBool::new(true));
        assert_eq!(heard(asker), "");
        // It ends while one is being answered.
        rustix::io::write(&wake, &1u64.to_ne_bytes()).unwrap();
        let (_asker, stream) = connected();
        let cut_off = answer_http(&stream, &request, &mut engine).unwrap_err();
        assert_eq!(cut_off.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[test]
    fn one_who_takes_little_is_not_waited_for() {
        let mut taken = 0;
        let limit = Instant::now() + Duration::from_millis(1);
        let written = write_in_time(&vec![0; 1 << 24], limit, |_, _| {
            taken += 1;
            Ok(1)
        });
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(taken < 1 << 24);
        write_in_time(b"abc", Instant::now() + ASKER_WAIT, |_, _| Ok(1)).unwrap();
    }

    #[test]
    fn a_name_of_a_strangers_is_none_of_this_host() {
        let request = |host: &str| format!("GET /metrics HTTP/1.1\r\n{host}\r\n\r\n").into_bytes();
        for good in ["", "Host: 127.0.0.1:4792", "host: localhost", "Host: [::1]:80", "Host: [::1]"]
        {
            assert!(names_this_host(&request(good)), "{good}");
        }
        for bad in ["Host: evil.example:4792", "HOST: evil.example", "Host: 127.0.0.1.evil.example"]
        {
            assert!(!names_this_host(&request(bad)), "{bad}");
        }
    }
}
