//! `elver bench programs`: perftest and rsockets by `elver run`, beside UCX's own shared memory, `elver perf` and TCP.
//! Programs that know nothing of Elver, as their distribution has them.

mod pair;
mod perftest;
mod rstream;
mod ucx;

use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};
use elver_console::{Failure, say, table};
use elver_perf::device::{DeviceArgs, IdleMode};
use elver_perf::perf::{self, Load, Mode, Op, Transport};
use elver_soft::UDP_PORT;
use elver_testbed::programs::Programs;
use elver_testbed::sample::Sample;
use serde_json::{Value, json};

use self::pair::Way;
use self::perftest::Test;
use self::rstream::{Bytes, Stream};
use self::ucx::Rival;
use crate::args::{RunArgs, Stage, wants};
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::{Figure, Row, Target};

const EXAMPLES: &str = "\
Examples:
  elver bench programs
      perftest between two processes of one user, directly and by packets, beside UCX's shared memory; and
      librdmacm's rsockets beside TCP
  sudo elver bench programs --placement netns
      the same by packets between two network namespaces, beside `elver perf`
  elver bench programs --only read-lat,ucx-get --rounds 3 --json

Needs Debian's perftest, rdmacm-utils and ucx-utils, and the library that `cargo xtask preload` makes or the package has.";

/// How much slower than UCX's shared memory a way by verbs may be, and than `elver perf` between hosts.
const UCX_RATIO_MAX: f64 = 1.5;
const PERF_RATIO_MAX: f64 = 1.3;
/// Seconds of a round of `elver perf`.
const PERF_SECONDS: f64 = 0.3;
/// The row of `elver perf`.
const PERF: &str = "elver-perf-read";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProgramsArgs {
    /// Only these rows: read-lat, write-lat, send-lat, write-bw, write-rate, ucx-put, ucx-get, ucx-am, elver-perf-read,
    /// rsocket-lat, rsocket-bw, tcp-lat, tcp-bw.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    run: RunArgs,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Perftest(Test),
    Ucx(Rival),
    Perf,
    Rstream(Stream),
}

/// A row: what is measured and how its data goes, and what the rounds gave.
struct Measured {
    what: What,
    way: Way,
    figure: Figure,
}

/// Measures and prints.
pub(crate) fn run(args: &ProgramsArgs, programs: &Programs) -> Result<(), Failure> {
    let stage = args.run.placement.unwrap_or(Stage::Host);
    let run = RunArgs { placement: Some(stage), ..args.run.clone() };
    let mut rows = rows(stage, &args.only)?;
    let ended = Frame::begin("programs", &run).run(|_, doing| {
        for row in &mut rows {
            doing(&format!("{}, {}", row.what.name(), row.way.name()));
            row.figure.push(measure(row.what, row.way, programs.own())?);
        }
        Ok(())
    })?;
    let claims = claims(&rows);
    ended.tell(
        Some(&claims),
        || json!({"rows": rows.iter().map(Measured::as_json).collect::<Vec<_>>()}),
        || {
            let cells: Vec<_> = rows.iter().map(Measured::cells).collect();
            table::print(["row", "way", "", "median [min … max]"], &cells, 3);
            say!(
                "\nread-lat: there and back; other latencies: half of a round trip, as each program tells them; \
                 both ends are pinned, each to a core of its own"
            );
        },
    );
    Ok(())
}

/// All that this placement has, or those that are wanted.
fn rows(stage: Stage, only: &[String]) -> Result<Vec<Measured>, Failure> {
    let ways: &[Way] = match stage {
        Stage::Host => &[Way::Direct, Way::Packets],
        Stage::Netns => &[Way::Netns],
        Stage::Loopback => {
            return Err(Failure::unusable(
                "`bench programs` is between processes of one host, `--placement host`, or as root between \
                 namespaces, `--placement netns`",
            ));
        }
    };
    let mut all = Vec::new();
    for way in ways {
        all.extend(Test::value_variants().iter().map(|test| (What::Perftest(*test), *way)));
        all.extend(streams(false).map(|stream| (stream, *way)));
    }
    let kernel = if stage == Stage::Netns { Way::Netns } else { Way::Loopback };
    all.extend(streams(true).map(|stream| (stream, kernel)));
    match stage {
        Stage::Netns => all.push((What::Perf, Way::Netns)),
        _ => all.extend(Rival::value_variants().iter().map(|one| (What::Ucx(*one), Way::Memory))),
    }
    all.retain(|(what, _)| wants(only, &what.name()));
    if all.is_empty() {
        let what = format!("no row of this placement is called {}", only.join(" or "));
        return Err(Failure::unusable(what));
    }
    Ok(all
        .into_iter()
        .map(|(what, way)| Measured { what, way, figure: Figure::default() })
        .collect())
}

/// What `rstream` sends, by rsockets or by TCP.
fn streams(tcp: bool) -> impl Iterator<Item = What> {
    let what = move |bytes: &Bytes| What::Rstream(Stream { bytes: *bytes, tcp });
    Bytes::value_variants().iter().map(what)
}

fn measure(what: What, way: Way, elver: &Path) -> Result<f64, Failure> {
    match what {
        What::Perftest(test) => test.measure(way, elver),
        What::Ucx(rival) => rival.measure(),
        What::Rstream(stream) => stream.measure(way, elver),
        What::Perf => {
            let load = Load {
                op: Op::Read,
                transport: Transport::Rc,
                size: 8,
                mode: Mode::Sync,
                depth: 1,
                batch: 1,
                duration: PERF_SECONDS,
                mtu: None,
                is_told: false,
            };
            let idle = IdleMode::Spin;
            let device = DeviceArgs { idle, no_offload: false, loss: 0.0, udp_port: UDP_PORT };
            let measured = perf::measure_pair(&load, Stage::Netns.pair(), &device, None)?;
            Ok(Sample::try_from(measured)?.us(50.0))
        }
    }
}

impl What {
    fn name(self) -> String {
        match self {
            What::Perftest(test) => test.name(),
            What::Ucx(rival) => rival.name(),
            What::Perf => PERF.into(),
            What::Rstream(stream) => stream.name(),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            What::Perftest(test) => test.unit(),
            What::Ucx(_) | What::Perf => "µs",
            What::Rstream(stream) => stream.bytes.unit(),
        }
    }
}

impl Measured {
    fn as_json(&self) -> Value {
        let [min, max] = self.figure.spread();
        json!({
            "row": self.what.name(),
            "way": self.way.name(),
            "unit": self.what.unit(),
            "median": contract::us(self.figure.median()),
            "min": contract::us(min),
            "max": contract::us(max),
        })
    }

    fn cells(&self) -> [String; 4] {
        let unit = self.what.unit().to_string();
        [self.what.name(), self.way.name().into(), unit, self.figure.text()]
    }
}

/// What is promised of processes of one host, and of two hosts.
fn claims(rows: &[Measured]) -> Vec<Row> {
    let found = |what, way| rows.iter().find(|row| row.what == what && row.way == way);
    let mut claims = Vec::new();
    for test in Test::value_variants() {
        if let Some(row) = found(What::Perftest(*test), Way::Direct) {
            claims.push(Row {
                name: format!("{}, directly", test.words()),
                unit: test.unit(),
                ours: row.figure.clone(),
                baseline: None,
                target: test.target(),
            });
        }
    }
    let beside = [
        (Test::WriteLat, Way::Direct, What::Ucx(Rival::Put), Way::Memory, UCX_RATIO_MAX),
        (Test::ReadLat, Way::Direct, What::Ucx(Rival::Get), Way::Memory, UCX_RATIO_MAX),
        (Test::SendLat, Way::Direct, What::Ucx(Rival::Am), Way::Memory, UCX_RATIO_MAX),
        (Test::ReadLat, Way::Netns, What::Perf, Way::Netns, PERF_RATIO_MAX),
    ];
    for (test, way, rival, its_way, most) in beside {
        let ours = found(What::Perftest(test), way);
        let Some((ours, rival)) = ours.zip(found(rival, its_way)) else { continue };
        claims.push(Row {
            name: format!("{} beside {}", test.words(), rival.what.name()),
            unit: test.unit(),
            ours: ours.figure.clone(),
            baseline: Some((rival.way.name(), rival.figure.clone())),
            target: Target::AtMost(most),
        });
    }
    for (ours, theirs) in streams(false).zip(streams(true)) {
        let baseline = rows.iter().find(|row| row.what == theirs);
        let ours = rows.iter().filter(|row| row.what == ours && row.way != Way::Packets);
        claims.extend(ours.zip(baseline).map(|(ours, tcp)| Row {
            name: format!("{} beside {}", ours.what.name(), tcp.what.name()),
            unit: ours.what.unit(),
            ours: ours.figure.clone(),
            baseline: Some((tcp.way.name(), tcp.figure.clone())),
            target: Target::None,
        }));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rows: &[Measured]) -> Vec<String> {
        rows.iter().map(|row| format!("{} {}", row.what.name(), row.way.name())).collect()
    }

    #[test]
    fn each_placement_has_its_rows() {
        let Ok(host) = rows(Stage::Host, &[]) else { panic!("a host has rows") };
        let host = names(&host);
        assert_eq!(host.len(), 19, "{host:?}");
        for row in
            ["read-lat direct", "rsocket-bw packets", "ucx-am shared memory", "tcp-lat loopback"]
        {
            assert!(host.iter().any(|name| name == row), "{host:?}");
        }
        let Ok(hosts) = rows(Stage::Netns, &["read-lat".into(), PERF.into()]) else {
            panic!("two hosts have rows")
        };
        assert_eq!(names(&hosts), ["read-lat netns", "elver-perf-read netns"]);
        assert!(rows(Stage::Loopback, &[]).is_err());
        assert!(rows(Stage::Netns, &["ucx-get".into()]).is_err());
    }

    #[test]
    fn claims_compare_what_was_measured() {
        let Ok(mut all) = rows(Stage::Host, &[]) else { panic!("a host has rows") };
        all.iter_mut()
            .for_each(|row| row.figure.push(if row.way == Way::Memory { 2.0 } else { 1.0 }));
        let claims = claims(&all);
        let met: Vec<_> = claims.iter().map(|claim| claim.as_json()["met"].clone()).collect();
        // 0.6, 1.0 and 1.5 us at most; 10 GB/s and 3 M/s at least; three ratios; and two of which nothing is promised.
        let promised = json!([false, true, true, false, false, true, true, true, null, null]);
        assert_eq!(json!(met), promised);
        all.retain(|row| row.way != Way::Memory);
        assert_eq!(super::claims(&all).len(), 7);
    }
}
