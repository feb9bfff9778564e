//! `elver bench calls`: the calls of the control path that ask nobody (the arXiv version of KRCORE,
//! table 2): of a node in the process, and of a process through its daemon.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use elver::{AccessFlags, ConnectOptions, Policy, Session, VqpOptions};
use elver_console::{Failure, table};
use elver_core::VqpInit;
use elver_node::config::Config;
use elver_testbed::node::Node;
use elver_testbed::node_pair::{self, Far};
use elver_testbed::programs::Programs;
use elver_testbed::sample::Sample;
use serde_json::json;

use crate::args::{RunArgs, Stage};
use crate::host::{Client, Host};
use crate::report::contract::{self, Figures};
use crate::report::frame::Frame;

const EXAMPLES: &str = "\
Examples:
  elver bench calls
      queue, qconnect, qbind and qreg_mr of 4 MB: what KRCORE's arXiv version has in its table 2";

/// Repetitions of a call in a round.
const REPEATS: usize = 200;
/// Of those that register memory: what is given back is kept until leases have run out.
const REGISTRATIONS: usize = 20;
const PORT: u16 = 7;
/// Bytes that are registered.
const MR: usize = 4 << 20;
const STALL: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CallsArgs {
    #[command(flatten)]
    run: RunArgs,
}

/// The calls, in the table's order.
const CALLS: [&str; 5] = ["queue", "qconnect-rc", "qconnect-dccache", "qbind", "qreg-mr-4mb"];
const PLACES: [&str; 2] = ["node", "daemon"];

/// Measures and prints.
pub(crate) fn run(args: &CallsArgs, programs: &Programs) -> Result<(), Failure> {
    let mut rows = PLACES.map(|place| (place, CALLS.map(|_| Figures::default())));
    let ended = Frame::begin("calls", &args.run).run(|stage, doing| {
        for (place, figures) in &mut rows {
            doing(place);
            let samples = match *place {
                "node" => in_the_node(stage)?,
                _ => through_a_daemon(programs)?,
            };
            figures.iter_mut().zip(&samples).for_each(|(row, sample)| row.push(sample));
        }
        Ok(())
    })?;
    let table = rows.iter().flat_map(|(place, figures)| {
        CALLS.into_iter().zip(figures).map(move |(call, figures)| (call, *place, figures))
    });
    ended.tell(
        None,
        || {
            let rows = table.clone().map(|(call, place, figures)| {
                json!({
                    "name": call,
                    "through": place,
                    "p50_us": contract::us(figures.p50_us.median()),
                    "p99_us": contract::us(figures.p99_us.median()),
                })
            });
            json!({"rows": rows.collect::<Vec<_>>()})
        },
        || {
            let rows = table.clone().map(|(call, place, figures)| {
                let [p50, p99, _] = figures.texts();
                [call.to_string(), place.to_string(), p50, p99]
            });
            let heads = ["call", "through", "p50 µs [min … max]", "p99 µs"];
            table::print(heads, &rows.collect::<Vec<_>>(), 2);
        },
    );
    Ok(())
}

type Samples = [Sample; CALLS.len()];

fn samples() -> Result<Samples> {
    Ok([Sample::new()?, Sample::new()?, Sample::new()?, Sample::new()?, Sample::new()?])
}

/// Calls of the core by the thread that drives it.
fn in_the_node(stage: Stage) -> Result<Samples, Failure> {
    let run = |node: &mut Node, far: &Far| {
        node.link_to(far.meta, PORT)?;
        node.learn(&[far.idle], || {})?;
        let mut samples = samples()?;
        let [queue, by_rc, by_dc, bind, reg] = &mut samples;
        for _ in 0..REPEATS {
            let start = Instant::now();
            let vqp = node.vqp(VqpInit::default())?;
            queue.add(start.elapsed());
            for (sample, gid) in [(&mut *by_rc, far.meta), (&mut *by_dc, far.idle)] {
                let start = Instant::now();
                let via =
                    node.begin_connect(vqp, gid, PORT, elver_core::ConnectOptions::default())?;
                sample.add(start.elapsed());
                ensure!(via.is_some(), "a connect that was at hand was not");
            }
            let start = Instant::now();
            node.bind(vqp, 0)?;
            bind.add(start.elapsed());
            node.destroy(vqp)?;
            node.poll();
        }
        for _ in 0..REGISTRATIONS {
            reg.add(node.reg_and_dereg(MR as u64)?);
        }
        Ok(samples)
    };
    node_pair::run(stage.pair(), &Config::default(), |_| Ok(()), |_, ()| Ok(()), run)
}

/// Calls of a process to its daemon.
fn through_a_daemon(programs: &Programs) -> Result<Samples, Failure> {
    let host = Host::start(programs, true)?;
    Ok(host.client.run(through_a_session)?)
}

fn through_a_session(session: &Session, client: &Client) -> Result<Samples> {
    let mut samples = samples()?;
    let [queue, by_rc, by_dc, bind, reg] = &mut samples;
    let options = ConnectOptions { policy: Policy::Shared, uncached: false };
    for _ in 0..REPEATS {
        let start = Instant::now();
        let vqp = session.create_vqp(VqpOptions::default())?;
        queue.add(start.elapsed());
        // The idle node has an RC QP to its meta server, which is this one; the own node has none.
        for (sample, gid) in [(&mut *by_rc, client.idle), (&mut *by_dc, client.to.gid())] {
            let start = Instant::now();
            vqp.qconnect_start(gid, PORT, options)?.wait(Some(STALL)).context("qconnect")?;
            sample.add(start.elapsed());
        }
        let start = Instant::now();
        vqp.qbind(0)?;
        bind.add(start.elapsed());
    }
    // Memory that the process has, and has touched.
    let mut bytes = vec![1u8; MR];
    for _ in 0..REGISTRATIONS {
        let start = Instant::now();
        // SAFETY: `bytes` is not used by anybody else, and outlives the region.
        let mr = unsafe {
            session.register(
                bytes.as_mut_ptr(),
                MR as u64,
                AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
            )?
        };
        reg.add(start.elapsed());
        mr.deregister()?;
    }
    Ok(samples)
}
