//! What the orchestrator and a container's `elver-init` say to each other, and `elver-init` and a
//! runtime: a line of JSON a message, over a Unix stream.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;

use elver::Gid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::{Connections, DESTINATIONS_MAX, RuntimeKind};
use crate::gids;
use crate::schedule::{Found, ProcessId, RequestId};

/// Destinations that are told of an INIT process, and that a request may want: more are not looked at, so that what a
/// container tells of itself fits into a line.
pub const CONNECTIONS_MAX: usize = 2 * DESTINATIONS_MAX;

/// Children of an INIT process that are told of: those of requests beyond have ended, or are told of when they have.
pub const CHILDREN_MAX: usize = 256;

/// The longest line that either side takes, in bytes. What a [`crate::Config`] may have fits.
pub const LINE_MAX: usize = 1 << 20;

/// Where the container's directory of sockets is in it.
pub const SOCKETS: &str = "/run/elver/faas";

/// The socket of [`Order`]s and [`Report`]s, in that directory.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Where the node's socket is in a container.
pub const NODE_SOCKET: &str = "/run/elver/node/elverd.sock";

/// The directory of that, which is mounted: a socket that is mounted itself is the one of a node that ends.
pub const NODE_DIRECTORY: &str = "/run/elver/node";

/// Where our own programs are in a container.
pub const PROGRAMS: &str = "/opt/elver";

/// The module `elver` for Python, among the programs.
pub const MODULE: &str = "elver.abi3.so";

/// Where functions' code is in a container, each in a directory of its name.
pub const CODE: &str = "/var/task";

/// The region that functions are in, as their names and their environment have it.
pub const REGION: &str = "local";

/// The socket of a process's Runtime API, in the directory of sockets.
pub fn api_socket(process: ProcessId) -> String {
    format!("api-{}.sock", process.0)
}

/// What an INIT process is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spawn {
    /// Its number.
    pub process: ProcessId,
    /// The request that it is started for.
    pub first: RequestId,
    /// The function's name.
    pub function: String,
    /// How its program speaks with us.
    pub runtime: RuntimeKind,
    /// `module.function`, or a program.
    pub handler: String,
    /// The Python in the container.
    pub python: PathBuf,
    /// What to make ready.
    #[serde(with = "gids")]
    pub destinations: Vec<Gid>,
    /// Sessions to keep ready for children.
    pub sessions: u32,
    /// Most of those, when many children have one at once.
    pub sessions_max: u32,
    /// QPs that each session has beside those to the destinations.
    pub unassigned_qps: u32,
    /// What its connections go over.
    pub connections: Connections,
    /// Its environment.
    pub environment: BTreeMap<String, String>,
    /// Most memory that it may map, in bytes.
    pub memory_max: u64,
}

/// What the orchestrator orders of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Start an INIT process.
    Spawn(Spawn),
    /// Fork one for a request.
    Fork {
        /// The INIT process.
        process: ProcessId,
        /// The request.
        request: RequestId,
        /// What it wants to be connected to, beside the function's destinations.
        #[serde(with = "gids")]
        destinations: BTreeSet<Gid>,
    },
    /// Kill the child that has a request.
    KillChild {
        /// The INIT process.
        process: ProcessId,
        /// The request.
        request: RequestId,
    },
    /// Kill an INIT process and its children.
    KillProcess {
        /// The INIT process.
        process: ProcessId,
    },
}

/// What a container tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// It is there, or there again, with these INIT processes.
    Hello {
        /// Those that have not ended.
        processes: Vec<Found>,
    },
    /// An INIT process has its connections ready.
    Connected {
        /// The INIT process.
        process: ProcessId,
        /// To what.
        #[serde(with = "gids")]
        connections: BTreeSet<Gid>,
    },
    /// A child has ended, or a process that has threads is done with a request.
    ChildEnded {
        /// The INIT process.
        process: ProcessId,
        /// The request that was its.
        request: RequestId,
        /// How it ended.
        why: String,
    },
    /// A process that has threads lost a request: it could not take it, or not answer it.
    RequestLost {
        /// The INIT process.
        process: ProcessId,
        /// The request.
        request: RequestId,
        /// How it was lost.
        why: String,
    },
    /// An INIT process has threads, which a child would not have: it runs itself what it is told to fork for.
    HasThreads {
        /// The INIT process.
        process: ProcessId,
    },
    /// An INIT process has ended, or could not be started.
    ProcessEnded {
        /// The INIT process.
        process: ProcessId,
        /// How it ended.
        why: String,
    },
}

/// What `elver-init` orders of a runtime that forks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeOrder {
    /// Fork for a request, which wants connections to these destinations. One that has threads runs it itself.
    Fork(RequestId, #[serde(with = "gids")] BTreeSet<Gid>),
    /// Kill the child that has it.
    Kill(RequestId),
}

/// What a runtime that forks tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeReport {
    /// It is connected to these destinations: what the handler can write too, and is to be GIDs.
    Connected(BTreeSet<String>),
    /// A child has ended, with `why`; or it is done with the request itself, where it has threads.
    Ended(RequestId, String),
    /// It lost a request that it runs itself, with `why`: it could not take it, or not answer it. It goes on.
    Lost(RequestId, String),
    /// It has threads, and runs itself what it is told to fork for, one request after the other.
    HasThreads,
    /// It takes orders from here on.
    Serving,
}

/// Writes a message as a line.
///
/// # Errors
/// What the system says of the stream.
pub fn send(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads a message; `None` at the stream's end.
///
/// # Errors
/// What the system says of the stream, and `InvalidData` for a line that is too long or no message.
pub fn receive<T: DeserializeOwned>(stream: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    stream.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        let what = format!("a line of more than {LINE_MAX} bytes, or cut short");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ENVIRONMENT_MAX, HANDLER_MAX, PROCESSES_MAX};

    #[test]
    fn a_line_that_is_too_long_is_told() {
        let mut line = Vec::new();
        let why = "x".repeat(LINE_MAX);
        send(&mut line, &RuntimeReport::Ended(RequestId(1), why)).unwrap();
        let error = receive::<RuntimeReport>(&mut line.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_longest_order_and_report_fit_into_a_line() {
        let longest = Gid([0xff; 16]);
        let name = "f".repeat(64);
        let spawn = Order::Spawn(Spawn {
            process: ProcessId(u64::MAX),
            first: RequestId(u64::MAX),
            function: name.clone(),
            runtime: RuntimeKind::Awslambdaric,
            handler: "\u{1}".repeat(HANDLER_MAX),
            python: "/".repeat(4096).into(),
            destinations: vec![longest; DESTINATIONS_MAX],
            sessions: u32::MAX,
            sessions_max: u32::MAX,
            unassigned_qps: u32::MAX,
            connections: Connections::Leased,
            environment: [("A".into(), "\u{1}".repeat(ENVIRONMENT_MAX))].into(),
            memory_max: u64::MAX,
        });
        let connections = (0..CONNECTIONS_MAX).map(|i| {
            let mut gid = longest;
            gid.0[15] = i as u8;
            gid
        });
        let found = Found {
            process: ProcessId(u64::MAX),
            function: name,
            connections: connections.collect(),
            takes_orders: false,
            has_threads: false,
            children: (0..CHILDREN_MAX as u64).map(|n| RequestId(u64::MAX - n)).collect(),
        };
        let hello = Report::Hello { processes: vec![found; PROCESSES_MAX] };
        assert!(serde_json::to_vec(&spawn).unwrap().len() < LINE_MAX);
        assert!(serde_json::to_vec(&hello).unwrap().len() < LINE_MAX);
    }
}
