//! What is measured: as it is asked for, and as it was checked.

use clap::{Args, ValueEnum, value_parser};
use elver_console::Failure;
use elver_verbs::Mtu;
use serde::{Deserialize, Serialize};

/// Bytes of what an atomic changes.
const ATOMIC_BYTES: u32 = 8;

/// What is measured.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// Transport service.
    #[arg(long, value_enum, default_value_t = Transport::Rc)]
    pub transport: Transport,
    /// Bytes of a message; atomics have 8.
    #[arg(long, default_value_t = 8)]
    pub size: u32,
    /// One operation at a time for latency, or many for rate.
    #[arg(long, value_enum, default_value_t = Mode::Sync)]
    pub mode: Mode,
    /// Operations outstanding in async mode.
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u32).range(1..=8192))]
    pub depth: u32,
    /// Operations posted in one call in async mode; the last of them is signalled.
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u32).range(1..=8192))]
    pub batch: u32,
    /// Seconds to measure for.
    #[arg(long, default_value_t = 2.0)]
    pub duration: f64,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; by default the largest that both ends carry.
    #[arg(long)]
    pub mtu: Option<u32>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "a doc comment would be the help of a value whose name says it")]
pub enum Op {
    Read,
    Write,
    WriteImm,
    Send,
    FetchAdd,
    CmpSwp,
}

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "a doc comment would be the help of a value whose name says it")]
pub enum Transport {
    Rc,
    Uc,
    Ud,
    Dc,
}

/// How many are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "a doc comment would be the help of a value whose name says it")]
pub enum Mode {
    Sync,
    Async,
}

/// What is measured, checked.
#[derive(Clone, Debug)]
pub struct Load {
    /// The operation.
    pub op: Op,
    /// The transport service.
    pub transport: Transport,
    /// Bytes of a message.
    pub size: u32,
    /// How many are under way.
    pub mode: Mode,
    /// Operations outstanding.
    pub depth: u32,
    /// Operations posted in one call.
    pub batch: u32,
    /// Seconds to measure for.
    pub duration: f64,
    /// The path MTU that is asked for.
    pub mtu: Option<Mtu>,
    /// Whether a terminal is told what has come so far.
    pub is_told: bool,
}

impl Load {
    /// Checks a combination of arguments.
    ///
    /// # Errors
    ///
    /// [`Failure::Unusable`] for what the transport does not have, or sizes and depths out of range.
    pub fn new(op: Op, args: &LoadArgs) -> Result<Load, Failure> {
        let transport = args.transport;
        let one_sided_reply = matches!(op, Op::Read | Op::FetchAdd | Op::CmpSwp);
        let allowed = match transport {
            Transport::Rc | Transport::Dc => true,
            Transport::Uc => !one_sided_reply,
            Transport::Ud => op == Op::Send,
        };
        if !allowed {
            return Err(Failure::unusable(format!(
                "{transport:?} has no {op:?}: READ and atomics need rc or dc, WRITE rc, dc or uc"
            )));
        }
        let size = args.size;
        if matches!(op, Op::FetchAdd | Op::CmpSwp) && size != ATOMIC_BYTES {
            return Err(Failure::unusable(format!(
                "--size {size}: an atomic is of {ATOMIC_BYTES} bytes; leave it out"
            )));
        }
        if size > 1 << 30 {
            return Err(Failure::unusable(format!("--size {size} is more than 1 GiB")));
        }
        if !(args.duration > 0.0 && args.duration <= 86_400.0) {
            let duration = args.duration;
            return Err(Failure::unusable(format!(
                "--duration {duration:?}: it must be above 0 and at most a day, 86400 seconds"
            )));
        }
        let mtu = match args.mtu {
            None => None,
            Some(bytes) => Some(Mtu::from_bytes(bytes).ok_or_else(|| {
                Failure::unusable(format!("--mtu {bytes} is none of 256, 512, 1024, 2048, 4096"))
            })?),
        };
        let most = mtu.unwrap_or(Mtu::Mtu4096).bytes();
        if transport == Transport::Ud && size > most {
            return Err(Failure::unusable(format!(
                "--size {size}: a UD message is one packet, of {most} bytes at most with this MTU; take that or less, or \
                 --transport rc or dc"
            )));
        }
        let (depth, batch) = match args.mode {
            Mode::Sync => (1, 1),
            Mode::Async => (args.depth, args.batch.min(args.depth)),
        };
        Ok(Load {
            op,
            transport,
            size,
            mode: args.mode,
            depth,
            batch,
            duration: args.duration,
            mtu,
            is_told: false,
        })
    }
}
