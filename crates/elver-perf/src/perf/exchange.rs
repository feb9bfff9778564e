//! The exchange over TCP that tells each end of the other: lines of JSON, bounded in length and in
//! time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::perf::endpoint::Offer;
use crate::perf::load::{Op, Transport};

/// Longest line in bytes.
const LINE_MAX: u64 = 4096;
/// How long an end waits for the other's line.
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
}

impl Exchange {
    pub(crate) fn connect(server: SocketAddr) -> Result<Exchange> {
        let stream = TcpStream::connect_timeout(&server, LINE_WAIT).with_context(|| {
            format!("no server answers at {server}; start one there with `elver perf server`")
        })?;
        Exchange::over(stream, server)
    }

    pub(crate) fn over(stream: TcpStream, peer: SocketAddr) -> Result<Exchange> {
        stream.set_read_timeout(Some(LINE_WAIT))?;
        stream.set_write_timeout(Some(LINE_WAIT))?;
        stream.set_nodelay(true)?;
        Ok(Exchange { reader: BufReader::new(stream), peer })
    }

    pub(crate) fn send(&mut self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let peer = self.peer;
        self.reader.get_mut().write_all(&bytes).with_context(|| format!("{peer} is gone"))
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let peer = self.peer;
        let read = self
            .reader
            .by_ref()
            .take(LINE_MAX)
            .read_line(&mut line)
            .with_context(|| format!("{peer} sent no line"))?;
        if read == 0 {
            bail!("{peer} closed the exchange");
        }
        ensure!(line.ends_with('\n'), "{peer} sent a line of more than {LINE_MAX} bytes");
        serde_json::from_str(&line).with_context(|| format!("{peer} sent {line:?}"))
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
        Ok(!looked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock))
    }
}
