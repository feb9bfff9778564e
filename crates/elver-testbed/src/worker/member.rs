//! One process of a crowd: it connects again and again, one connect at a time.

use std::io::BufRead;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver::{ConnectOptions, Gid, Session, SessionOptions, VqpOptions};
use elver_verbs::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::sample::{Sample, WARM_UP};
use crate::tcp;
use crate::ways::{Before, Way, core_via};
use crate::worker::client::connect_in_the_end;
use crate::worker::task::{Place, STEP};
use crate::worker::tell::tell;

/// Any port: no message is sent.
const PORT: u16 = 7;

/// How a crowd connects, and for how long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// How, and to whom.
    pub to: To,
    /// Seconds to measure for.
    pub seconds: f64,
}

/// The way, and where it leads.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum To {
    /// To a TCP server that echoes.
    Tcp(SocketAddr),
    /// To a node.
    Node {
        /// A row of `bench connect`.
        way: String,
        /// The node's GID.
        gid: [u8; 16],
    },
}

/// Connects of a member that began after the warm-up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tally {
    /// Latencies in nanoseconds, and how often each was seen.
    pub counts: Vec<(u64, u64)>,
    /// When the last of them ended, by the monotonic clock.
    pub ended_ns: u64,
}

/// Tells that it is there; takes an order, and tells when it is ready; takes the time to begin at,
/// and tells what it saw.
pub(super) fn run(at: &Place, alone: bool) -> Result<()> {
    tell(&true)?;
    let order: Order = hear()?;
    let duration = Duration::from_secs_f64(order.seconds);
    match &order.to {
        To::Tcp(server) => {
            let connect = || tcp::connect_once(*server, alone);
            repeat(duration, connect)
        }
        To::Node { way, gid } => {
            let way = Way::named(way).with_context(|| format!("{way} is no way to connect"))?;
            // Who shares its core must let the others have it.
            let options = SessionOptions::default();
            let options = if alone { SessionOptions { spin: STEP, ..options } } else { options };
            let session = at.attach_with(options)?;
            if way.before != Before::Ignored {
                // So that the peer is known, and what wants an RC QP finds it.
                let vqp = session.create_vqp(VqpOptions::default())?;
                connect_in_the_end(&vqp, Gid(*gid), PORT, ConnectOptions::default())?;
            }
            repeat(duration, || connect(&session, way, Gid(*gid)))
        }
    }
}

/// One connect of a new VQP.
fn connect(session: &Session, way: &Way, gid: Gid) -> Result<Duration> {
    let vqp = session.create_vqp(VqpOptions::default())?;
    let since = Instant::now();
    let via = connect_in_the_end(&vqp, gid, PORT, way.options_of_a_process());
    let took = since.elapsed();
    way.check(core_via(via.with_context(|| way.name)?))?;
    Ok(took)
}

fn repeat(duration: Duration, mut once: impl FnMut() -> Result<Duration>) -> Result<()> {
    tell(&true)?;
    let begin = Time(hear()?);
    let warm = begin.saturating_add_ns(duration.mul_f64(WARM_UP).as_nanos() as u64);
    let end = warm.saturating_add_ns(duration.as_nanos() as u64);
    let lead = Duration::from_nanos(begin.ns_since(elver_node::now()));
    ensure!(lead < STEP, "asked to begin in {lead:?}");
    std::thread::sleep(lead);
    let mut sample = Sample::new()?;
    loop {
        let since = elver_node::now();
        let took = once()?;
        let now = elver_node::now();
        if since >= warm {
            sample.record(took);
            // Also who had no turn in all the time connects once.
            if now >= end {
                return tell(&Tally { counts: sample.counts(), ended_ns: now.0 });
            }
        }
    }
}

/// What the parent asks next.
fn hear<T: DeserializeOwned>() -> Result<T> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        bail!("the benchmark has ended");
    }
    Ok(serde_json::from_str(&line)?)
}
