//! The exchange over TCP that tells each end of the other: lines of JSON, bounded in length and in
//! time.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::perf::endpoint::Offer;
use crate::perf::load::{Op, Transport};

/// Longest line in bytes.
const LINE_MAX: usize = 4096;
/// How long an end waits for the other's line, all of it.
const LINE_WAIT: Duration = Duration::from_secs(60);
/// What the two ends must agree on.
pub(crate) const VERSION: u32 = 1;

/// The client's first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) op: Op,
    pub(crate) transport: Transport,
    pub(crate) size: u32,
    pub(crate) depth: u32,
    pub(crate) mtu: Option<u32>,
    pub(crate) offer: Offer,
}

/// The server's first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Welcome {
    Offer(Offer),
    Refused(String),
}

/// The client's last line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Done {
    pub(crate) done: bool,
}

/// The server's last line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Summary {
    /// Messages that arrived.
    pub(crate) received: u64,
    /// Packets that the server's device sent again.
    pub(crate) retransmits: u64,
}

pub(crate) struct Exchange {
    reader: BufReader<TcpStream>,
    peer: SocketAddr,
    line_wait: Duration,
}

impl Exchange {
    pub(crate) fn connect(server: SocketAddr) -> Result<Exchange> {
        let stream = TcpStream::connect_timeout(&server, LINE_WAIT).with_context(|| {
            format!("no server answers at {server}; start one there with `elver perf server`")
        })?;
        Exchange::over(stream, server)
    }

    pub(crate) fn over(stream: TcpStream, peer: SocketAddr) -> Result<Exchange> {
        stream.set_write_timeout(Some(LINE_WAIT))?;
        stream.set_nodelay(true)?;
        Ok(Exchange { reader: BufReader::new(stream), peer, line_wait: LINE_WAIT })
    }

    pub(crate) fn send(&mut self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let peer = self.peer;
        self.reader.get_mut().write_all(&bytes).with_context(|| format!("{peer} is gone"))
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let (mut line, mut ended) = (Vec::new(), false);
        let peer = self.peer;
        // Of the whole line: who sends a byte now and then keeps nobody from the next client.
        let until = Instant::now() + self.line_wait;
        while !ended {
            let left = until.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "{peer} sent no whole line in {:?}", self.line_wait);
            self.reader.get_ref().set_read_timeout(Some(left))?;
            let bytes = match self.reader.fill_buf() {
                Ok([]) => bail!("{peer} closed the exchange"),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).with_context(|| format!("{peer} sent no line")),
            };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            ended = end.is_some();
            let taken = end.map_or(bytes.len(), |end| end + 1);
            line.extend_from_slice(&bytes[..taken]);
            self.reader.consume(taken);
            ensure!(line.len() <= LINE_MAX, "{peer} sent a line of more than {LINE_MAX} bytes");
        }
        let told = || format!("{peer} sent {:?}", String::from_utf8_lossy(&line));
        serde_json::from_slice(&line).with_context(told)
    }

    /// Whether the peer has sent something, or is gone, without waiting for it.
    pub(crate) fn is_readable(&mut self) -> Result<bool> {
        if !self.reader.buffer().is_empty() {
            return Ok(true);
        }
        let stream = self.reader.get_ref();
        stream.set_nonblocking(true)?;
        let looked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        Ok(!looked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// Bytes of a line that never ends, for as long as somebody hears them.
    fn trickle(mut stream: TcpStream) {
        while stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_line_that_comes_byte_by_byte_has_no_more_time_than_another() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        let trickling = thread::spawn(move || trickle(stranger));
        let mut exchange = Exchange::over(stream, peer).unwrap();
        exchange.line_wait = Duration::from_millis(100);
        let Err(why) = exchange.receive::<Done>() else { panic!("there is no line") };
        assert!(why.to_string().contains("sent no"), "{why:#}");
        drop(exchange);
        trickling.join().unwrap();
    }

    #[test]
    fn lines_that_come_together_are_told_apart() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        sender.write_all(b"{\"done\":true}\n{\"done\":false}\n").unwrap();
        let mut exchange = Exchange::over(stream, peer).unwrap();
        assert!(exchange.receive::<Done>().unwrap().done);
        assert!(exchange.is_readable().unwrap());
        assert!(!exchange.receive::<Done>().unwrap().done);
        drop(sender);
        assert!(exchange.receive::<Done>().is_err());
    }
}
