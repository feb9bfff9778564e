//! `elver bench zero-copy`: echoes of messages that are copied, and of those that the receiver reads
//! from where they lie (KRCORE, section 4.5 and figure 9b).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, value_parser};
use elver_console::{Failure, say, table};
use elver_core::{Completion, ConnectOptions, VqpId, VqpInit};
use elver_node::config::Config;
use elver_testbed::node::{self, Node, Region};
use elver_testbed::node_pair::{self, Far};
use elver_testbed::sample::{Clock, Sample};
use elver_verbs::{Payload, RecvWr, SendFlags, SendOp, SendWr, WcOpcode};
use serde_json::json;

use crate::args::{RunArgs, Stage, TimeArgs};
use crate::report::contract::{self, Figures};
use crate::report::frame::Frame;

const PORT: u16 = 9;
/// Receives of each end, and receive buffers of the node's: one message is on its way at a time.
const RECEIVES: usize = 4;
const BUFFERS: u32 = 16;
/// What a message has in front of its bytes, with room to spare.
const HEADER: u32 = 256;
/// An echo that takes longer has failed.
const STALL: Duration = Duration::from_secs(60);

/// How a message gets to its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Copy,
    ZeroCopy,
}

const WAYS: [Way; 2] = [Way::Copy, Way::ZeroCopy];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Copy => "copy",
            Way::ZeroCopy => "zero-copy",
        }
    }

    /// A node that has no other way, over DC alone.
    fn config(self, size_max: u32) -> Config {
        let mut config = Config::default();
        config.transfer.rc_qps_max = 0;
        let messages = &mut config.messages;
        match self {
            Way::Copy => {
                messages.recv_buffers = BUFFERS;
                messages.recv_buffer_bytes = (size_max + HEADER).next_multiple_of(4_096);
                messages.eager_bytes_max = size_max;
            }
            Way::ZeroCopy => messages.eager_bytes_max = 0,
        }
        config
    }
}

const ZERO_COPY_EXAMPLES: &str = "\
Examples:
  sudo elver bench zero-copy
      echoes of 8 B to 1 MB, copied and read by the receiver, and where they cross
  elver bench zero-copy --sizes 4096,65536 --placement loopback --rounds 3

A message is copied from the node's buffer to the posted receive, or the receiver READs it from
where it lies at the sender (KRCORE, section 4.5 and figure 9b). The size at which both take the
same time is what `messages.eager_bytes_max` should be, as far as the receive buffers allow.";

/// Sizes by default, as figure 9b has them.
const SIZES: &str = "8,64,512,1024,4096,8192,16384,32768,65536,131072,262144,524288,1048576";

#[derive(Debug, Args)]
#[command(after_help = ZERO_COPY_EXAMPLES)]
pub struct ZeroCopyArgs {
    /// Bytes of a message.
    #[arg(long, value_delimiter = ',', default_value = SIZES, value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) sizes: Vec<u32>,
    #[command(flatten)]
    pub(crate) time: TimeArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Measures and prints.
pub(crate) fn run(args: &ZeroCopyArgs) -> Result<(), Failure> {
    let mut rows = [0, 1].map(|_| vec![Figures::default(); args.sizes.len()]);
    let ended = Frame::begin_between_nodes("zero-copy", &args.run)?.run(|stage, doing| {
        for (way, figures) in WAYS.into_iter().zip(&mut rows) {
            doing(way.name());
            let samples = measure(stage, way, &args.sizes, args.time.duration)?;
            figures.iter_mut().zip(&samples).for_each(|(row, sample)| row.push(sample));
        }
        Ok(())
    })?;
    let medians = |rows: &[Figures]| rows.iter().map(|row| row.p50_us.median()).collect::<Vec<_>>();
    let crossing = crossing(&args.sizes, &medians(&rows[0]), &medians(&rows[1]));
    let default = Config::default().messages.eager_bytes_max;
    ended.tell(
        None,
        || {
            let rows = WAYS.into_iter().zip(&rows).flat_map(|(way, figures)| {
                args.sizes.iter().zip(figures).map(move |(size, figures)| {
                    json!({
                        "name": way.name(),
                        "size": size,
                        "p50_us": contract::us(figures.p50_us.median()),
                        "p99_us": contract::us(figures.p99_us.median()),
                        "spread_us": figures.p50_us.spread(),
                    })
                })
            });
            json!({
                "rows": rows.collect::<Vec<_>>(),
                "crossing_bytes": crossing.map(f64::round),
                "eager_bytes_max": default,
            })
        },
        || {
            let rows = args.sizes.iter().enumerate().map(|(index, size)| {
                let [copy, read] = [&rows[0], &rows[1]].map(|row| &row[index].p50_us);
                let ratio = copy.median() / read.median();
                [size.to_string(), copy.text(), read.text(), format!("{ratio:.2}")]
            });
            let (copy, read) = ("copy, p50 µs [min … max]", "zero-copy, p50 µs [min … max]");
            let heads = ["bytes", copy, read, "copy/zero-copy"];
            table::print(heads, &rows.collect::<Vec<_>>(), 0);
            match crossing {
                Some(bytes) => say!("\nreading is faster from {bytes:.0} bytes on"),
                None => say!("\nreading is not faster at the largest size"),
            }
            say!(
                "messages of more than {default} bytes are read by default \
                 (messages.eager_bytes_max)"
            );
        },
    );
    Ok(())
}

/// The size from which on reading is faster, between the sizes that were measured by their
/// logarithms; none if it is not at the largest.
fn crossing(sizes: &[u32], copy: &[f64], read: &[f64]) -> Option<f64> {
    let mut points: Vec<(f64, f64)> = sizes
        .iter()
        .zip(copy.iter().zip(read))
        .map(|(size, (copy, read))| (f64::from(*size), (copy / read).ln()))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let slower = points.iter().rposition(|(_, gain)| *gain <= 0.0);
    match slower {
        None => points.first().map(|(size, _)| *size),
        Some(last) if last + 1 == points.len() => None,
        Some(last) => {
            let ((low, loss), (high, gain)) = (points[last], points[last + 1]);
            let share = -loss / (gain - loss);
            Some((low.ln() + share * (high.ln() - low.ln())).exp())
        }
    }
}

/// All sizes, one after the other, between two nodes.
fn measure(stage: Stage, way: Way, sizes: &[u32], seconds: f64) -> Result<Vec<Sample>, Failure> {
    let size_max = sizes.iter().copied().max().unwrap_or(8);
    let duration = Duration::from_secs_f64(seconds);
    node_pair::run(
        stage.pair(),
        &way.config(size_max),
        |node| Echo::open(node, size_max),
        Echo::serve,
        |node, far| {
            let mut caller = Caller::open(node, far, size_max)?;
            sizes.iter().map(|size| caller.measure(node, *size, duration)).collect()
        },
    )
}

/// The end that sends everything back, from where it was received.
struct Echo {
    vqp: VqpId,
    regions: Vec<Region>,
    size_max: u32,
}

impl Echo {
    fn open(node: &mut Node, size_max: u32) -> Result<Echo> {
        let vqp = node.vqp(VqpInit::default())?;
        node.bind(vqp, PORT)?;
        let regions = regions(node, size_max)?;
        let echo = Echo { vqp, regions, size_max };
        (0..RECEIVES).try_for_each(|slot| echo.post_recv(node, slot as u64))?;
        Ok(echo)
    }

    fn serve(node: &mut Node, echo: &mut Echo) -> Result<()> {
        let mut completions = node::blank::<RECEIVES>();
        let found = node.taken(&mut completions);
        for completion in &completions[..found] {
            node::succeeded(completion)?;
            let slot = completion.wc.wr_id;
            match completion.source {
                Some(sender) => {
                    let region = &echo.regions[slot as usize];
                    send(node, sender, region, completion.wc.byte_len, slot)?;
                }
                None => echo.post_recv(node, slot)?,
            }
        }
        Ok(())
    }

    fn post_recv(&self, node: &mut Node, slot: u64) -> Result<()> {
        let sges = [self.regions[slot as usize].sge(self.size_max)];
        node.post_recv(self.vqp, &[RecvWr { wr_id: slot, sges: &sges }])
    }
}

/// The end that measures.
struct Caller {
    vqp: VqpId,
    out: Region,
    back: Vec<Region>,
}

impl Caller {
    fn open(node: &mut Node, far: &Far, size_max: u32) -> Result<Caller> {
        let vqp = node.vqp(VqpInit::default())?;
        node.connect(vqp, far.meta, PORT, ConnectOptions::default())?;
        let back = regions(node, size_max)?;
        Ok(Caller { vqp, out: node.region(u64::from(size_max))?, back })
    }

    fn measure(&mut self, node: &mut Node, size: u32, duration: Duration) -> Result<Sample> {
        let mut sample = Sample::new()?;
        let mut clock = Clock::new(duration);
        let mut turn = 0;
        while clock.goes_on(&mut sample) {
            turn = (turn + 1) % RECEIVES;
            let sges = [self.back[turn].sge(size)];
            node.post_recv(self.vqp, &[RecvWr { wr_id: 0, sges: &sges }])?;
            let start = Instant::now();
            send(node, self.vqp, &self.out, size, 0)?;
            let (mut sent, mut came) = (false, None);
            while !sent || came.is_none() {
                let mut completions = node::blank::<2>();
                let found = node.take(&mut completions);
                for completion in &completions[..found] {
                    node::succeeded(completion)?;
                    if is_receive(completion) {
                        came = Some(start.elapsed());
                    } else {
                        sent = true;
                    }
                }
                ensure!(start.elapsed() < STALL, "no echo of {size} bytes came");
            }
            came.into_iter().for_each(|took| sample.record(took));
        }
        clock.finish(&mut sample);
        Ok(sample)
    }
}

fn is_receive(completion: &Completion) -> bool {
    completion.wc.opcode == WcOpcode::Recv
}

fn regions(node: &mut Node, bytes: u32) -> Result<Vec<Region>> {
    (0..RECEIVES).map(|_| node.region(u64::from(bytes))).collect()
}

fn send(node: &mut Node, vqp: VqpId, region: &Region, bytes: u32, wr_id: u64) -> Result<()> {
    let sges = [region.sge(bytes)];
    let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
    node.post(vqp, &[SendWr { wr_id, op, flags, payload: Payload::Sges(&sges), dest: None }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossing_lies_between_the_sizes() {
        let sizes = [1024, 4096, 16_384];
        let at = crossing(&sizes, &[10.0, 10.0, 40.0], &[20.0, 20.0, 20.0]).unwrap();
        assert!((8_191.0..8_193.0).contains(&at), "{at}");
        assert_eq!(crossing(&sizes, &[1.0; 3], &[2.0; 3]), None);
        assert_eq!(crossing(&sizes, &[2.0; 3], &[1.0; 3]), Some(1024.0));
    }
}
