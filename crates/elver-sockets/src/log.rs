//! What became of connections: counts, and a line for each where the user asks for it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

use crate::own::Own;
use crate::tuple::{Side, Tuple};

/// Names the file that lines are written to; `-` is the standard error.
pub(crate) const LOG_VARIABLE: &str = "ELVER_STREAMS_LOG";

/// Why a connection stays with TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    OtherHost,
    NoPeer,
    Crowded,
    NameTaken,
    NoNode,
    Refused,
    Late,
    Ended,
    Forked,
    OutOfBand,
    Descriptor,
    Shared,
    Watched,
    Stdio,
    Passed,
    Protocol,
    Spliced,
    ZeroCopy,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::OtherHost => "the peer is on another host",
            Why::NoPeer => "the peer's end has no such library",
            Why::Crowded => "too many look for their peers at once",
            Why::NameTaken => "another process has the connection's name",
            Why::NoNode => "no node can be reached",
            Why::Refused => "the nodes made no stream",
            Why::Late => "the peer's end did not come in time",
            Why::Ended => "it has ended, and another may have its addresses",
            Why::Forked => "the process forked before it was agreed",
            Why::OutOfBand => "it has urgent data",
            Why::Descriptor => "its descriptor is too high",
            Why::Shared => "its socket may be another's as well",
            Why::Watched => "an epoll has it by a copy that was closed",
            Why::Stdio => "it was opened as a file of stdio",
            Why::Passed => "it was passed to another process",
            Why::Protocol => "the kernel puts a protocol above it",
            Why::Spliced => "it was joined to a pipe",
            Why::ZeroCopy => "it sends without copies",
        })
    }
}

/// What this process has seen.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    carried: u64,
    read: u64,
    written: u64,
    stayed: BTreeMap<Why, u64>,
}

impl Counts {
    /// A connection goes by a stream from here on.
    pub(crate) fn carried(&mut self, tuple: &Tuple, side: Side) {
        self.carried += 1;
        line(format_args!("{tuple} {side:?}: by a stream from here on"));
    }

    /// One ended that did.
    pub(crate) fn ended(&mut self, tuple: &Tuple, read: u64, written: u64) {
        self.read += read;
        self.written += written;
        line(format_args!("{tuple} ended: read {read} and written {written} bytes by the stream"));
    }

    /// A connection stays with TCP.
    pub(crate) fn stayed(&mut self, tuple: &Tuple, side: Side, why: Why, text: &str) {
        *self.stayed.entry(why).or_default() += 1;
        let gap = if text.is_empty() { "" } else { ": " };
        line(format_args!("{tuple} {side:?}: by TCP, since {why}{gap}{text}"));
    }

    /// Says it all, if there was anything.
    pub(crate) fn tell(&self) {
        let Counts { carried, read, written, stayed } = self;
        if *carried == 0 && stayed.is_empty() {
            return;
        }
        let all: u64 = stayed.values().sum();
        let whys: Vec<_> =
            stayed.iter().map(|(why, count)| format!("{count}, since {why}")).collect();
        let whys = if whys.is_empty() { String::new() } else { format!(" ({})", whys.join("; ")) };
        line(format_args!(
            "connections carried: {carried}, read {read} and written {written} bytes; by TCP: {all}{whys}"
        ));
    }
}

/// Writes a line, if anybody wants it.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    static FILE: OnceLock<Option<Own>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let name = std::env::var_os(LOG_VARIABLE).filter(|name| !name.is_empty())?;
        let name = if name == "-" { "/dev/stderr".into() } else { name };
        // Nobody waits for who should read it.
        let mut file = OpenOptions::new();
        let file = file.append(true).create(true).custom_flags(libc::O_NONBLOCK).open(name).ok()?;
        Some(Own::new(file.into()))
    });
    if let Some(file) = file {
        // One write, so that lines of several processes do not mix. A full disk is no reason to end.
        let text = format!("elver-sockets[{}]: {text}\n", std::process::id());
        let _ = rustix::io::write(file, text.as_bytes());
    }
}
