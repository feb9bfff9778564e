//! The end that posts, polls and measures.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use elver_console::Failure;
use elver_soft::{SoftConfig, SoftDevice};
use elver_testbed::sample::Sample;
use elver_verbs::{Device, Memory, Mtu, Payload, SendFlags, SendOp, SendWr, Wc, WcStatus};
use hdrhistogram::Histogram;

use crate::device::{self, IdleMode};
use crate::perf::endpoint::{Endpoint, Role};
use crate::perf::exchange::{Done, Exchange, Hello, Summary, VERSION, Welcome};
use crate::perf::live::Live;
use crate::perf::load::{Load, Op, Transport};

/// What came out.
pub struct Measured {
    /// Operations that completed.
    pub ops: u64,
    /// The time that they took.
    pub seconds: f64,
    /// Nanoseconds: of an operation in sync mode, of a batch from its post to its completion in
    /// async mode.
    pub latency: Histogram<u64>,
    /// Packets that were sent again.
    pub retransmits: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Messages that arrived, where the transport may lose some.
    pub delivered: Option<u64>,
}

impl Measured {
    /// The measurement, of which every operation succeeded: a QP that broke measured nothing that may be compared.
    ///
    /// # Errors
    ///
    /// Operations that failed.
    pub fn whole(self) -> Result<Measured, Failure> {
        if self.errors > 0 {
            return Err(Failure::Failed(anyhow!(
                "{} operations failed behind {} that did not: the QP broke; measure again where both ends have a core",
                self.errors,
                self.ops
            )));
        }
        Ok(self)
    }
}

impl TryFrom<Measured> for Sample {
    type Error = Failure;

    fn try_from(measured: Measured) -> Result<Sample, Failure> {
        let Measured { latency, seconds, ops, .. } = measured.whole()?;
        Ok(Sample::measured(latency, seconds, ops))
    }
}

/// Longest latency that the histogram tells apart: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// An operation that takes longer than this has failed.
const STALL: Duration = Duration::from_secs(60);
/// Empty polls between two looks at the clock for a stall.
const STALL_POLLS: u32 = 1 << 16;
/// The share of the duration that is run before the measurement, and its bound.
const WARM_UP: f64 = 0.1;
const WARM_UP_MAX: Duration = Duration::from_millis(200);

/// Measures against a server.
pub fn measure_remote(
    config: SoftConfig,
    server: SocketAddr,
    load: &Load,
    idle: IdleMode,
) -> Result<Measured> {
    let mut device = SoftDevice::open(config)?;
    let mut exchange = Exchange::connect(server)?;
    let mut endpoint = Endpoint::open(&mut device, load, Role::Client)?;
    let offer = endpoint.offer(&device)?;
    let Load { op, transport, size, depth, .. } = *load;
    let mtu = load.mtu.map(Mtu::bytes);
    exchange.send(&Hello { version: VERSION, op, transport, size, depth, mtu, offer })?;
    match exchange.receive()? {
        Welcome::Offer(peer) => endpoint.connect(&mut device, &peer)?,
        Welcome::Refused(why) => bail!("the server refused: {why}"),
    }
    let mut measured = run(&mut device, &endpoint, load, idle, |_| Ok(()))?;
    exchange.send(&Done { done: true })?;
    let summary: Summary = exchange.receive()?;
    measured.retransmits += summary.retransmits;
    if matches!(load.transport, Transport::Uc | Transport::Ud) && load.op != Op::Write {
        measured.delivered = Some(summary.received);
    }
    endpoint.close(&mut device)?;
    Ok(measured)
}

/// Measures between two QPs of one device.
pub fn measure_process(mut device: SoftDevice, load: &Load, idle: IdleMode) -> Result<Measured> {
    let device = &mut device;
    let mut server = Endpoint::open(device, load, Role::Server)?;
    let mut client = Endpoint::open(device, load, Role::Client)?;
    let (theirs, ours) = (server.offer(device)?, client.offer(device)?);
    server.connect(device, &ours)?;
    client.connect(device, &theirs)?;
    let two_sided = matches!(load.op, Op::Send | Op::WriteImm);
    let measured = run(device, &client, load, idle, |device| {
        if two_sided {
            server.serve(device)?;
        }
        Ok(())
    })?;
    client.close(device)?;
    server.close(device)?;
    Ok(measured)
}

/// Posts and polls for as long as the load says. `beside` runs once for every batch that completes
/// and every empty poll.
fn run<M: Memory>(
    device: &mut SoftDevice,
    endpoint: &Endpoint<M>,
    load: &Load,
    idle: IdleMode,
    mut beside: impl FnMut(&mut SoftDevice) -> Result<()>,
) -> Result<Measured> {
    let sges = [endpoint.sge()];
    let remote = endpoint.remote;
    let op = match load.op {
        Op::Read => SendOp::Read(remote),
        Op::Write => SendOp::Write(remote),
        Op::WriteImm => SendOp::WriteWithImm(remote, 0),
        Op::Send => SendOp::Send,
        Op::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
        Op::CmpSwp => SendOp::CompareSwap { remote, compare: 0, swap: 0 },
    };
    let batch = load.batch as usize;
    let wr = |signaled| SendWr {
        wr_id: 0,
        op,
        flags: if signaled { SendFlags::SIGNALED } else { SendFlags::empty() },
        payload: Payload::Sges(&sges),
        dest: endpoint.dest,
    };
    let wrs: Vec<SendWr<'_>> = (0..batch).map(|index| wr(index + 1 == batch)).collect();
    let window = (load.depth as usize / batch).max(1);

    let duration = Duration::from_secs_f64(load.duration);
    let warm_up = duration.mul_f64(WARM_UP).min(WARM_UP_MAX);
    let mut latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    let mut posted_at = vec![Instant::now(); window];
    let (mut posted, mut completed) = (0usize, 0usize);
    let mut wcs = [Wc::default(); 32];
    let mut empty = 0u32;
    let mut measuring = false;
    let mut start = Instant::now();
    let mut end = start + warm_up;
    let mut now = start;
    let mut live = Live::begin(load, start + warm_up);
    let (mut first, mut errors) = (0usize, 0u64);
    let before = device.counters().retransmits;
    loop {
        while posted - completed < window && now < end {
            posted_at[posted % window] = now;
            device.post_send(endpoint.qp, &wrs).map_err(|(_, error)| error).context("post_send")?;
            posted += 1;
        }
        let found = device.poll_cq(endpoint.cq, &mut wcs)?;
        beside(device)?;
        if found == 0 {
            empty += 1;
            device::idle(device, idle, empty);
            if empty.is_multiple_of(STALL_POLLS) && posted_at[completed % window].elapsed() > STALL
            {
                bail!("nothing completed for {} s", STALL.as_secs());
            }
            continue;
        }
        empty = 0;
        now = Instant::now();
        for wc in &wcs[..found] {
            if wc.status != WcStatus::Success {
                errors += 1;
                if errors == 1 {
                    eprintln!("elver: an operation failed: {}", wc.status);
                }
                continue;
            }
            let since = now - posted_at[completed % window];
            latency.saturating_record(since.as_nanos() as u64);
            completed += 1;
        }
        live.completed(now, (completed - first) * batch);
        if errors == 0 && (now < end || posted != completed) {
            continue;
        }
        if measuring {
            break;
        }
        // Nothing of the warm-up is told, also where it is all that there was.
        measuring = true;
        latency.reset();
        first = completed;
        start = Instant::now();
        now = start;
        end = start + duration;
        if errors > 0 {
            break;
        }
    }
    Ok(Measured {
        ops: ((completed - first) * batch) as u64,
        seconds: (now - start).as_secs_f64(),
        latency,
        retransmits: device.counters().retransmits - before,
        errors,
        delivered: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::load::Mode;

    /// READs of which none can succeed: the server's key is another.
    fn refused() -> Result<Measured> {
        let load = Load {
            op: Op::Read,
            transport: Transport::Rc,
            size: 8,
            mode: Mode::Async,
            depth: 32,
            batch: 4,
            duration: 0.01,
            mtu: None,
            is_told: false,
        };
        let mut device = SoftDevice::open(SoftConfig::for_address([127, 79, 0, 1].into()))?;
        let mut server = Endpoint::open(&mut device, &load, Role::Server)?;
        let mut client = Endpoint::open(&mut device, &load, Role::Client)?;
        let (theirs, ours) = (server.offer(&device)?, client.offer(&device)?);
        server.connect(&mut device, &ours)?;
        client.connect(&mut device, &theirs)?;
        client.remote.rkey ^= 1 << 20;
        run(&mut device, &client, &load, IdleMode::Spin, |_| Ok(()))
    }

    #[test]
    fn what_failed_or_was_flushed_is_no_operation_and_makes_no_sample() {
        let measured = refused().expect("the run ends by itself");
        assert!(measured.errors > 0);
        assert_eq!((measured.ops, measured.latency.len()), (0, 0));
        let Err(Failure::Failed(why)) = Sample::try_from(measured) else {
            panic!("it was taken for a figure")
        };
        assert!(why.to_string().contains("operations failed"), "{why:#}");
    }
}
