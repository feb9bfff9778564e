//! The tests themselves.

use std::time::Instant;

use anyhow::{Result, ensure};
use elver_console::Failure;
use elver_verbs::{RemoteAddr, SendFlags, SendOp, Wc};

use crate::peers::{PeerQp, PeerTransport, RECV, Role, Session};
use crate::perftest::args::{PeerTest, PerftestArgs};
use crate::perftest::message::RateReport;
use crate::perftest::script::Agreed;

/// In a test of the rate, every so many operations one asks for a completion, as perftest's.
const SIGNAL_INTERVAL: u32 = 100;
/// Bytes of a MB, as perftest counts them.
const MB: f64 = 1_048_576.0;

/// What a test does.
pub(crate) struct Load {
    pub(crate) test: PeerTest,
    pub(crate) size: u32,
    pub(crate) iters: u32,
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
}

impl Load {
    /// Checks a combination of arguments.
    pub(crate) fn new(args: &PerftestArgs) -> Result<Load, Failure> {
        let (test, transport) = (args.test, args.connection);
        let allowed = match transport {
            PeerTransport::Rc => true,
            PeerTransport::Uc => !test.reads(),
            PeerTransport::Ud => test == PeerTest::SendLat,
        };
        if !allowed {
            return Err(Failure::unusable(format!(
                "{transport:?} has no such operation: READs need RC, WRITEs RC or UC"
            )));
        }
        let size = args.size.unwrap_or(if test.is_rate() { 65_536 } else { 2 });
        if size == 0 || size > 1 << 30 {
            return Err(Failure::unusable(format!("--size {size} is not 1 byte to 1 GiB")));
        }
        let usual = if test == PeerTest::WriteBw { 5000 } else { 1000 };
        let iters = args.iters.unwrap_or(usual);
        Ok(Load { test, size, iters, tx_depth: args.tx_depth, rx_depth: args.rx_depth.min(iters) })
    }

    /// Sends that are outstanding at most.
    pub(crate) fn sends(&self) -> u32 {
        match self.test {
            PeerTest::WriteBw | PeerTest::ReadBw => self.tx_depth,
            // A ping-pong's send is outstanding until its acknowledgement came, which may be
            // after the next message.
            PeerTest::ReadLat | PeerTest::SendLat => 16,
        }
    }

    /// Receives posted ahead.
    pub(crate) fn receives(&self) -> u32 {
        if self.test == PeerTest::SendLat { self.rx_depth } else { 0 }
    }
}

/// WRITEs or READs, many at once.
pub(crate) fn rate(
    session: &mut Session,
    qp: &PeerQp,
    load: &Load,
    remote: RemoteAddr,
    agreed: &Agreed,
) -> Result<RateReport> {
    let Load { test, size, iters, tx_depth, .. } = *load;
    let every = SIGNAL_INTERVAL.min(tx_depth);
    let steps = Steps::new(size, agreed);
    let mut wcs = [Wc::default(); 16];
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < iters {
        while posted < iters && posted - done < tx_depth {
            let offset = steps.offset(posted);
            let remote = RemoteAddr { addr: remote.addr.wrapping_add(offset), ..remote };
            let op =
                if test == PeerTest::ReadBw { SendOp::Read(remote) } else { SendOp::Write(remote) };
            posted += 1;
            let signalled = posted % every == 0 || posted == iters;
            let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
            qp.post(&mut session.device, op, offset, flags)?;
        }
        let found =
            session.poll(qp.cq, &mut wcs, || format!("{done} of {iters} operations done"))?;
        // Each completion stands for those before it; the last for what is left.
        done = (done + found as u32 * every).min(iters);
    }
    let seconds = start.elapsed().as_secs_f64();
    let messages = f64::from(iters) / seconds;
    Ok(RateReport {
        size: size.into(),
        iters: iters.into(),
        peak: 0.0,
        average: messages * f64::from(size) / MB,
        messages: messages / 1e6,
    })
}

/// Where the accesses of a test of the rate go: small ones walk around, line by line.
struct Steps {
    step: u64,
    count: u64,
}

impl Steps {
    fn new(size: u32, agreed: &Agreed) -> Steps {
        let size = u64::from(size);
        if size > agreed.cycle / 2 {
            return Steps { step: 0, count: 1 };
        }
        let step = size.div_ceil(agreed.line).max(1) * agreed.line;
        Steps { step, count: (agreed.cycle / step).max(1) }
    }

    fn offset(&self, index: u32) -> u64 {
        u64::from(index) % self.count * self.step
    }
}

/// READs, one at a time. Gives the nanoseconds of each.
pub(crate) fn read_latency(
    session: &mut Session,
    qp: &PeerQp,
    load: &Load,
    remote: RemoteAddr,
) -> Result<Vec<u64>> {
    let iters = load.iters;
    let mut times = Vec::with_capacity(iters as usize);
    let mut wcs = [Wc::default(); 1];
    for done in 0..iters {
        let start = Instant::now();
        qp.post(&mut session.device, SendOp::Read(remote), 0, SendFlags::SIGNALED)?;
        session.poll(qp.cq, &mut wcs, || format!("{done} of {iters} READs done"))?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

/// SENDs to and fro, the client first. Gives the nanoseconds of each way, which is half a round.
pub(crate) fn send_latency(session: &mut Session, qp: &PeerQp, load: &Load) -> Result<Vec<u64>> {
    let Load { iters, rx_depth, .. } = *load;
    let mut times = Vec::with_capacity(iters as usize);
    let mut wcs = [Wc::default(); 8];
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    let mut last: Option<Instant> = None;
    // The client may be one message ahead of what it received.
    let ahead = u32::from(session.role == Role::Client);
    while sent < iters || received < iters {
        if posted < iters && posted < received + ahead && posted - sent < load.sends() {
            qp.post(&mut session.device, SendOp::Send, 0, SendFlags::SIGNALED)?;
            let now = Instant::now();
            if let Some(last) = last.replace(now) {
                times.push((now - last).as_nanos() as u64 / 2);
            }
            posted += 1;
        }
        let found = session.poll(qp.cq, &mut wcs, || {
            format!("{sent} messages sent and {received} received of {iters} each way")
        })?;
        for wc in &wcs[..found] {
            if wc.wr_id != RECV {
                sent += 1;
                continue;
            }
            received += 1;
            ensure!(
                received <= iters,
                "the peer sends more than {iters} messages: give both one -n"
            );
            if received + rx_depth <= iters {
                qp.post_receives(&mut session.device, 1)?;
            }
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use elver_verbs::Mtu;

    #[test]
    fn small_accesses_walk_around_and_large_ones_stay() {
        let agreed = Agreed { version: String::new(), mtu: Mtu::Mtu1024, cycle: 4096, line: 64 };
        let steps = Steps::new(65, &agreed);
        assert_eq!((steps.offset(0), steps.offset(1), steps.offset(31)), (0, 128, 31 * 128));
        assert_eq!(steps.offset(32), 0);
        assert_eq!(Steps::new(1, &agreed).offset(63), 63 * 64);
        assert_eq!(Steps::new(2048, &agreed).offset(1), 2048);
        assert_eq!(Steps::new(2049, &agreed).offset(7), 0);
    }
}
