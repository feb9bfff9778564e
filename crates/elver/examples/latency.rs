//! What a round trip takes by each way of waiting: an 8-byte READ at the host's own node, posted and waited
//! for, one at a time. Prints the median of each, and its ratio to the blocking wait.
//!
//! Run it beside a daemon that nothing else uses, on a machine with two cores or more:
//! `cargo run --release -p elver --example latency --features tokio [-- ROUNDS]`.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use elver::tokio::AsyncSession;
use elver::{
    AccessFlags, Completed, Error, Mr, Payload, SendFlags, SendOp, SendWr, Session, SessionOptions,
    Vqp, VqpOptions, Wc,
};
use rustix::event::epoll;

/// Rounds of one way before the next has its turn, so that all of them see the same machine.
const TURN: usize = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(20_000), |rounds| rounds.parse::<usize>())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let context = runtime.enter();
    let session = AsyncSession::new(Session::connect_default()?)?;
    drop(context);
    let side = Side::new(session)?;
    let blocking: [(&str, Wait); 3] = [
        ("blocking wait", |_, vqp, wcs| vqp.wait_cq(wcs, None).map(drop)),
        ("wait over all", |side, vqp, wcs| {
            side.session.session().wait_ready(None)?;
            vqp.poll_cq(wcs).map(drop)
        }),
        ("epoll", Side::by_epoll),
    ];
    let mut samples = [const { Vec::new() }; 4];
    for _ in 0..rounds.div_ceil(TURN) {
        for ((_, wait), samples) in blocking.iter().zip(&mut samples) {
            for _ in 0..TURN.min(rounds) {
                let (began, mut wcs) = (Instant::now(), [Wc::default()]);
                side.post()?;
                wait(&side, &side.vqp, &mut wcs)?;
                samples.push(began.elapsed());
                wcs[0].succeeded()?;
            }
        }
        runtime.block_on(async {
            for _ in 0..TURN.min(rounds) {
                let (began, mut wcs) = (Instant::now(), [Wc::default()]);
                side.post()?;
                side.session.wait_cq(&side.vqp, &mut wcs).await?;
                samples[3].push(began.elapsed());
                wcs[0].succeeded()?;
            }
            Ok::<_, Error>(())
        })?;
    }
    let names = blocking.map(|(name, _)| name).into_iter().chain(["tokio"]);
    let medians = samples.map(|mut samples| {
        samples.sort_unstable();
        samples[samples.len() / 2].as_secs_f64() * 1e6
    });
    println!("{:14} {:>8} {:>6}", "way", "µs", "ratio");
    for (name, median) in names.zip(medians) {
        println!("{name:14} {median:8.2} {:6.2}", median / medians[0]);
    }
    Ok(())
}

type Wait = fn(&Side, &Vqp, &mut [Wc]) -> Result<(), Error>;

struct Side {
    session: AsyncSession,
    vqp: Vqp,
    mr: Mr,
    set: std::os::fd::OwnedFd,
    spin: Duration,
}

impl Side {
    fn new(session: AsyncSession) -> Result<Side, Box<dyn std::error::Error>> {
        let inner = session.session();
        let vqp = inner.create_vqp(VqpOptions::default())?;
        vqp.qconnect(inner.gid(), 0)?;
        let mr = inner.alloc(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, inner, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        Ok(Side { session, vqp, mr, set, spin: SessionOptions::default().spin })
    }

    fn post(&self) -> Result<(), Error> {
        let sges = [self.mr.sge(64, 8)];
        let (op, payload) = (SendOp::Read(self.mr.remote(0)), Payload::Sges(&sges));
        let read = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
        Ok(self.vqp.post_send(&[read])?)
    }

    /// Looks for as long as a blocking wait does, and then sleeps in an epoll set.
    fn by_epoll(&self, vqp: &Vqp, wcs: &mut [Wc]) -> Result<(), Error> {
        let session = self.session.session();
        match vqp.wait_cq(wcs, Some(self.spin)) {
            Err(Error::TimedOut) => {}
            taken => return taken.map(drop),
        }
        while vqp.poll_cq(wcs)? == 0 {
            if session.arm()? {
                let mut events = [const { MaybeUninit::uninit() }; 1];
                // An interruption is as good as an event.
                let _ = epoll::wait(&self.set, &mut events[..], None);
                session.disarm()?;
            }
        }
        Ok(())
    }
}
