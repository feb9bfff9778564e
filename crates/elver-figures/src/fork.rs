//! `elver bench fork`: what a child has of a session that its parent prepared (Swift, sections 3.4 and
//! 4.1.3), beside one that it opens itself; and what a fork costs the parent that prepared many.

use std::io::{PipeWriter, Read, Write, pipe};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, value_parser};
use elver::{
    AccessFlags, Completed, Destination, HeirState, Heirs, Mr, Payload, PrepareOptions, RemoteAddr,
    SendFlags, SendOp, SendWr, Session, Vqp, VqpOptions, Wc,
};
use elver_console::{Failure, table};
use elver_testbed::programs::Programs;
use elver_testbed::sample::Sample;
use serde_json::json;

use crate::args::RunArgs;
use crate::host::{Client, Host};
use crate::report::contract::{self, Figures};
use crate::report::frame::Frame;
use crate::report::rows::{Row, Target};

const EXAMPLES: &str = "\
Examples:
  elver bench fork
      a child's first READ by a session that it took over, and by one that it opened; a fork beside
      1,000 regions and connections

The child's time counts from its return from fork to the completion of its READ of 8 bytes.";

/// Children of each kind in a round.
const CHILDREN: usize = 100;
/// Forks of each kind in a round.
const FORKS: usize = 200;
/// Bytes of each region, which the plain fork's process has touched too.
const REGION: usize = 4_096;
/// Bytes that a child registers.
const MR: u64 = 32 << 10;
const STALL: Duration = Duration::from_secs(60);
/// The most that a child's first READ, and a fork, may take: Swift's goals here.
const READ_US_MAX: f64 = 30.0;
const FORK_RATIO_MAX: f64 = 1.2;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ForkArgs {
    /// Regions and prepared connections of the parent whose fork is measured.
    #[arg(long, default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=1_500))]
    pub(crate) objects: u32,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// What is measured, in the table's order.
const ROWS: [&str; 5] =
    ["take", "read-inherited", "read-new-session", "fork-plain", "fork-with-objects"];

/// Measures and prints.
pub(crate) fn run(args: &ForkArgs, programs: &Programs) -> Result<(), Failure> {
    let mut figures = ROWS.map(|_| Figures::default());
    let ended = Frame::begin("fork", &args.run).run(|_, doing| {
        let host = Host::start(programs, true)?;
        doing("children and forks");
        let samples = host.client.run(|session, client| measure(session, client, args.objects))?;
        figures.iter_mut().zip(&samples).for_each(|(row, sample)| row.push(sample));
        Ok(())
    })?;
    let [_, inherited, new, plain, with] = &figures;
    let claims = [
        Row {
            name: "a child's first READ, inherited".into(),
            unit: "µs",
            ours: inherited.p50_us.clone(),
            baseline: None,
            target: Target::AtMost(READ_US_MAX),
        },
        Row {
            name: "the same, beside a new session's".into(),
            unit: "µs",
            ours: inherited.p50_us.clone(),
            baseline: Some(("new session", new.p50_us.clone())),
            target: Target::None,
        },
        Row {
            name: format!("a fork with {} regions and connections", args.objects),
            unit: "µs",
            ours: with.p50_us.clone(),
            baseline: Some(("plain fork", plain.p50_us.clone())),
            target: Target::AtMost(FORK_RATIO_MAX),
        },
    ];
    let rows = || ROWS.into_iter().zip(&figures);
    ended.tell(
        Some(&claims),
        || {
            let rows = rows().map(|(name, figures)| {
                json!({
                    "name": name,
                    "p50_us": contract::us(figures.p50_us.median()),
                    "p99_us": contract::us(figures.p99_us.median()),
                    "spread_us": figures.p50_us.spread(),
                })
            });
            json!({"rows": rows.collect::<Vec<_>>(), "objects": args.objects})
        },
        || {
            let rows = rows().map(|(name, figures)| {
                let [p50, p99, _] = figures.texts();
                [name.to_string(), p50, p99]
            });
            let heads = ["what", "p50 µs [min … max]", "p99 µs"];
            table::print(heads, &rows.collect::<Vec<_>>(), 2);
        },
    );
    Ok(())
}

fn measure(session: &Session, client: &Client, objects: u32) -> Result<[Sample; ROWS.len()]> {
    let (to, read) = (client.to.gid(), client.to.remote(0));
    let mut memory = vec![1u8; objects as usize * REGION];
    let plain = forks()?;
    // SAFETY: nobody else uses the bytes, which outlive the regions.
    let regions = memory.chunks_exact_mut(REGION).map(|bytes| unsafe {
        session.register(bytes.as_mut_ptr(), REGION as u64, AccessFlags::LOCAL_WRITE)
    });
    let regions: Vec<Mr> = regions.collect::<Result<_, _>>().context("registering memory")?;
    let many = session.prepare(objects, &[Destination::new(to)], PrepareOptions::default())?;
    let with = forks()?;
    drop((many, regions));
    let heirs = session.prepare(2, &[Destination::new(to)], PrepareOptions::default())?;
    let (mut take, mut inherited, mut new) = (Sample::new()?, Sample::new()?, Sample::new()?);
    for _ in 0..CHILDREN {
        let heir = free(&heirs)?;
        let [took, whole] = child(|since| {
            let heir = heirs.take(heir)?;
            let took = since.elapsed();
            let mr = heir.mr.as_ref().context("it has no region")?;
            first_read(&heir.vqps[0], mr, read)?;
            Ok([took, since.elapsed()])
        })?;
        take.add(took);
        inherited.add(whole);
        let [_, whole] = child(|since| {
            let session = client.session()?;
            let mr = session.alloc(MR, AccessFlags::LOCAL_WRITE)?;
            let vqp = session.create_vqp(VqpOptions::default())?;
            vqp.qconnect(to, 0)?;
            let took = since.elapsed();
            first_read(&vqp, &mr, read)?;
            Ok([took, since.elapsed()])
        })?;
        new.add(whole);
    }
    Ok([take, inherited, new, plain, with])
}

/// A session that a child may take.
fn free(heirs: &Heirs) -> Result<u32> {
    let begun = Instant::now();
    loop {
        // Both: what the last child left is not still going while the next is measured.
        let all = (0..heirs.len()).all(|heir| heirs.state(heir) == Some(HeirState::Free));
        if let Some(heir) = heirs.first_free().filter(|_| all) {
            return Ok(heir);
        }
        ensure!(begun.elapsed() < STALL, "no session came back within {STALL:?}");
        std::thread::yield_now();
    }
}

fn first_read(vqp: &Vqp, mr: &Mr, from: RemoteAddr) -> Result<()> {
    let sges = [mr.sge(0, 8)];
    let (op, payload) = (SendOp::Read(from), Payload::Sges(&sges));
    let read = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
    vqp.post_send(&[read])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, Some(STALL))?;
    wcs[0].succeeded()?;
    Ok(())
}

/// How long so many forks take, to their return in the parent; the children end at once.
fn forks() -> Result<Sample> {
    let mut sample = Sample::new()?;
    for _ in 0..FORKS {
        let begun = Instant::now();
        // SAFETY: the child ends at once and touches nothing.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: it ends the child alone.
            unsafe { libc::_exit(0) };
        }
        sample.add(begun.elapsed());
        wait_for(pid)?;
    }
    Ok(sample)
}

/// What a child tells that does this: two times from its return from the fork on.
fn child(does: impl FnOnce(Instant) -> Result<[Duration; 2]>) -> Result<[Duration; 2]> {
    let (mut told, tells) = pipe()?;
    // SAFETY: the child does what it is there for, tells it, and ends by `_exit`. No other thread of this
    // process holds what it needs: they wait.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ended = does(Instant::now());
        let code = i32::from(tell(tells, ended).is_err());
        // SAFETY: it ends the child alone.
        unsafe { libc::_exit(code) };
    }
    drop(tells);
    let mut text = String::new();
    told.read_to_string(&mut text)?;
    wait_for(pid)?;
    let times: Vec<u64> = text.split(' ').filter_map(|ns| ns.parse().ok()).collect();
    match times[..] {
        [one, two] => Ok([one, two].map(Duration::from_nanos)),
        _ => bail!("a child said {text:?}"),
    }
}

fn tell(mut to: PipeWriter, ended: Result<[Duration; 2]>) -> std::io::Result<()> {
    match ended {
        Ok([one, two]) => write!(to, "{} {}", one.as_nanos(), two.as_nanos()),
        Err(error) => write!(to, "{error:#}"),
    }
}

fn wait_for(pid: i32) -> Result<()> {
    ensure!(pid > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the child is this process's, and `status` is valid for what is written.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    ensure!(waited == pid, "waitpid: {}", std::io::Error::last_os_error());
    (status == 0).then_some(()).ok_or_else(|| anyhow!("a child ended with status {status:#x}"))
}
