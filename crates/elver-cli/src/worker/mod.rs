//! Processes that `elver demo` and the benchmarks start: this program again, with a task. What they
//! have to say goes out as lines of JSON; the end of their standard input ends them.

mod abroad;
pub(crate) mod client;
pub(crate) mod member;
mod process;
pub(crate) mod program;
mod sink;
mod target;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use elver::{AccessFlags, Gid, RemoteAddr, Session, SessionOptions};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::pair::Seat;

pub(crate) use process::Worker;

/// The longest that one step of a worker may take.
pub(crate) const STEP: Duration = Duration::from_secs(10);
/// Bytes that a target offers: the first half to be read, the other one to be written.
pub(crate) const OFFERED: u64 = 2 << 20;
/// Seed of the bytes in the first half.
pub(crate) const SEED: u64 = 1;

/// What a worker is started with.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The task, in JSON.
    task: String,
}

/// What a worker does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Task {
    /// Offers memory and answers messages.
    Target { at: Place },
    /// Times a way to connect.
    Connects { at: Place, to: Known, way: String, repeats: u32 },
    /// Moves bytes to and fro and compares them.
    Traffic { at: Place, to: Known, seed: u64 },
    /// READs and compares until it is told to end.
    Steady { at: Place, to: Known },
    /// READs without end, with many VQPs and regions: it is there to be killed.
    Victim { at: Place, to: Known },
    /// READs until its VQP has moved to an RC QP.
    Hot { at: Place, to: Known, repeats: u32 },
    /// From the first call into the library to the first READ.
    First { at: Place, to: Known },
    /// As first, but begins when it is told.
    Storm { at: Place, to: Known },
    /// Takes messages, and does nothing with them.
    Sink { at: Place },
    /// A meta server, and hosts with their memory, from an address on.
    Abroad { at: Place, meta: IpAddr, first: Ipv4Addr, hosts: u32 },
    /// As first, from the program's begin.
    Program { at: Place, to: Known },
    /// Connects to a TCP server that echoes.
    TcpProgram { at: Place, server: SocketAddr },
    /// One of a crowd: connects again and again as it is asked. One that is alone never sleeps.
    Member { at: Place, alone: bool },
}

impl Task {
    fn place(&self) -> &Place {
        match self {
            Task::Target { at }
            | Task::Connects { at, .. }
            | Task::Traffic { at, .. }
            | Task::Steady { at, .. }
            | Task::Victim { at, .. }
            | Task::Hot { at, .. }
            | Task::First { at, .. }
            | Task::Storm { at, .. }
            | Task::Sink { at }
            | Task::Abroad { at, .. }
            | Task::Program { at, .. }
            | Task::TcpProgram { at, .. }
            | Task::Member { at, .. } => at,
        }
    }
}

/// Where a worker finds its node, and where it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) socket: PathBuf,
    pub(crate) seat: Seat,
}

/// What must be known of a target.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) gid: [u8; 16],
    pub(crate) port: u16,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

impl Known {
    pub(crate) fn gid(&self) -> Gid {
        Gid(self.gid)
    }

    pub(crate) fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr + offset, rkey: self.rkey }
    }
}

impl Place {
    fn attach(&self) -> Result<Session> {
        self.attach_with(SessionOptions::default())
    }

    fn attach_with(&self, options: SessionOptions) -> Result<Session> {
        Ok(Session::connect_with(Some(&self.socket), options)?)
    }
}

/// Runs a worker.
pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let task: Task = serde_json::from_str(&args.task)
        .map_err(|error| Failure::unusable(format!("this is no task: {error}")))?;
    let done = match &task {
        // Nobody hears them any more when they have begun: what goes wrong they say to people.
        Task::Target { at } => return Ok(target::run(at)?),
        Task::Sink { at } => return Ok(sink::run(at)?),
        Task::Abroad { at: _, meta, first, hosts } => {
            return Ok(abroad::run(*meta, *first, *hosts)?);
        }
        Task::Program { at, to } => program::read(at, to),
        Task::TcpProgram { at: _, server } => program::echo(*server),
        Task::Connects { at, to, way, repeats } => client::connects(at, to, way, *repeats),
        Task::Traffic { at, to, seed } => client::traffic(at, to, *seed),
        Task::Steady { at, to } => client::steady(at, to),
        Task::Victim { at, to } => client::victim(at, to),
        Task::Hot { at, to, repeats } => client::hot(at, to, *repeats),
        Task::First { at, to } => client::first(at, to),
        Task::Storm { at, to } => client::storm(at, to),
        Task::Member { at, alone } => member::run(at, *alone),
    };
    done.or_else(|error| tell(&Failed { failed: format!("{error:#}") })).map_err(Failure::Failed)
}

/// The last thing that a worker tells which failed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failed {
    failed: String,
}

/// Tells the parent something.
fn tell(what: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(what)? + "\n";
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(line.as_bytes()).and_then(|()| out.flush())?)
}

/// A byte that says where it belongs.
pub(crate) fn pattern(seed: u64, at: u64) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(151)) as u8
}

/// The bytes from `at` on.
pub(crate) fn patterned(seed: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| pattern(seed, at)).collect()
}

/// Access for everybody.
const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Ends this process when its parent closes its standard input or dies.
fn end_with_parent() -> Result<()> {
    std::thread::Builder::new()
        .name("parent".into())
        .spawn(|| {
            // Whatever comes first: its end, or an error, which is an end too.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(0);
        })
        .context("cannot start a thread")?;
    Ok(())
}
