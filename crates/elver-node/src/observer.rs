//! Status and metrics for others: a small thread that serves one of them at a time.
//!
//! Over a Unix socket it writes the status as one JSON object and closes. Over TCP it answers
//! `GET /metrics` with the metrics in the text form of OpenMetrics, which Prometheus reads.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::engine::{Notice, Outlet};
use crate::metrics;
use crate::slow::Worker;
use crate::{NodeError, Status};

/// Bytes of the longest request that is read.
const REQUEST_BYTES_MAX: usize = 4_096;
/// How long one asker may take.
const ASKER_WAIT: Duration = Duration::from_millis(500);

/// Where status and metrics are served.
#[derive(Debug, Default)]
pub struct Observer {
    status: Option<(UnixListener, PathBuf)>,
    metrics: Option<TcpListener>,
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

    /// Serves metrics over TCP.
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
        for listener in [self.status.as_ref().map(|(one, _)| one.as_fd())]
            .into_iter()
            .chain([self.metrics.as_ref().map(AsFd::as_fd)])
            .flatten()
        {
            rustix::io::ioctl_fionbio(listener, true).map_err(|error| system(error.into()))?;
        }
        Worker::start("elver-observer", move |stop, wake| {
            self.serve(stop, wake, &outlet);
            if let Some((_, path)) = &self.status {
                // Somebody may have tidied up already.
                let _ = fs::remove_file(path);
            }
        })
        .map_err(system)
    }

    fn serve(&self, stop: &AtomicBool, wake: &OwnedFd, outlet: &Outlet) {
        while !stop.load(Ordering::Relaxed) {
            let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
            fds.extend(self.status.iter().map(|(one, _)| PollFd::new(one, PollFlags::IN)));
            fds.extend(self.metrics.iter().map(|one| PollFd::new(one, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            // That an asker goes away or takes too long concerns nobody else.
            if let Some((listener, _)) = &self.status
                && let Ok((stream, _)) = listener.accept()
            {
                let _ = tell_status(&stream, outlet);
            }
            if let Some(listener) = &self.metrics
                && let Ok((stream, _)) = listener.accept()
            {
                let _ = answer_http(&stream, outlet);
            }
        }
    }
}

fn tell_status(mut stream: &UnixStream, outlet: &Outlet) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(ASKER_WAIT))?;
    let mut text = serde_json::to_vec(&ask(outlet)?)?;
    text.push(b'\n');
    stream.write_all(&text)
}

fn answer_http(mut stream: &TcpStream, outlet: &Outlet) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(ASKER_WAIT))?;
    let request = read_request(stream)?;
    let mut words = request.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (code, kind, body) = match (method, path) {
        (b"GET", b"/metrics") => ("200 OK", metrics::CONTENT_TYPE, metrics::encode(&ask(outlet)?)),
        (b"GET", _) => ("404 Not Found", "text/plain", "ask for /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", "text/plain", "GET it\n".to_string()),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The head of a request, as far as it comes in time.
fn read_request(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let limit = Instant::now() + ASKER_WAIT;
    let mut request = Vec::new();
    let mut bytes = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = limit.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => request.extend_from_slice(&bytes[..count]),
        }
    }
    Ok(request)
}

fn ask(outlet: &Outlet) -> io::Result<Status> {
    outlet.ask(|answer| Notice::Status { answer }).ok_or(io::ErrorKind::TimedOut.into())
}
