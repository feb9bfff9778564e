//! `elver bench stream`: bytes through streams over RB²'s rings, beside TCP on the same path. One program does
//! both: what std's `Read` and `Write` have.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum, value_parser};
use elver_console::table::{self, number};
use elver_console::{Failure, say};
use elver_stream::{Listener, ListenerOptions, Options, Stream};
use elver_testbed::pair;
use elver_testbed::sample::{Clock, Sample};
use serde_json::json;

use crate::args::{RunArgs, Stage, TimeArgs};
use crate::busy::Load;
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::{Figure, Row, Target};
use crate::ring::stage::{self, STALL};

const EXAMPLES: &str = "\
Examples:
  sudo elver bench stream
      64 bytes and back, and chunks of 1 MiB one way, between two network namespaces
  elver bench stream --placement host
      between two processes at one node, beside TCP over the loopback
  elver bench stream --designs elver-stream,tcp --rounds 3";

/// Of streams, and of TCP.
const PORT: u16 = 7;
const TCP_PORT: u16 = 18_519;
/// Bytes of a question, and of its answer.
const MESSAGE: usize = 64;
/// Bytes of a chunk of those that go one way.
const CHUNK: usize = 1 << 20;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StreamArgs {
    /// What carries the bytes.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "elver-stream,tcp,tcp-spin")]
    designs: Vec<Design>,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "latency,throughput")]
    modes: Vec<Mode>,
    /// What else runs on the two cores.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "quiet,busy")]
    loads: Vec<Load>,
    /// KiB of a stream's buffer, each way; TCP's are the system's own.
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u32).range(4..=65_536))]
    buffer_kib: u32,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Design {
    /// A stream of elver-stream's, with its options by default but for `--buffer-kib`.
    ElverStream,
    /// TCP with TCP_NODELAY, over the loopback or the same veth; reads that wait sleep in the system.
    Tcp,
    /// The same, but who waits looks again and again.
    TcpSpin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// 64 bytes there and back, one at a time: the time of both ways.
    Latency,
    /// Chunks of 1 MiB one way; the time ends when all of them are read.
    Throughput,
}

/// A row: what is measured, and what the rounds gave.
struct Measured {
    load: Load,
    design: Design,
    mode: Mode,
    per_s: Figure,
    mean_us: Figure,
    p50_us: Figure,
    p999_us: Figure,
}

/// Measures and prints.
pub(crate) fn run(args: &StreamArgs) -> Result<(), Failure> {
    let duration = Duration::from_secs_f64(args.time.duration);
    let bytes = args.buffer_kib << 10;
    let options =
        Options { send_buffer_bytes: bytes, receive_buffer_bytes: bytes, ..Options::default() };
    let mut rows = Vec::new();
    for load in &args.loads {
        for mode in &args.modes {
            rows.extend(args.designs.iter().map(|design| Measured::new(*load, *design, *mode)));
        }
    }
    let ended = Frame::begin("stream", &args.run).run(|stage, doing| {
        for row in &mut rows {
            let Measured { load, design, mode, .. } = *row;
            doing(&format!("{}, {}, {}", design.name(), mode.name(), load.name()));
            row.push(&load.beside(|| match design {
                Design::ElverStream => over_rings(stage, mode, options, duration),
                Design::Tcp => over_tcp(stage, mode, false, duration),
                Design::TcpSpin => over_tcp(stage, mode, true, duration),
            })?);
        }
        Ok(())
    })?;
    let claims = claims(&rows, ended.stage());
    ended.tell(
        Some(&claims),
        || json!({"rows": rows.iter().map(Measured::as_json).collect::<Vec<_>>()}),
        || {
            let cells: Vec<_> = rows.iter().map(Measured::cells).collect();
            let heads = [
                "design",
                "",
                "cores",
                "bytes",
                "/s [min … max]",
                "GB/s",
                "mean µs",
                "p50 µs",
                "p99.9 µs",
            ];
            table::print(heads, &cells, 3);
            say!(
                "\nlatency is of both ways; a chunk counts when it is read; busy: beside a thread on each \
                 core, which spins"
            );
        },
    );
    Ok(())
}

fn over_rings(
    stage: Stage,
    mode: Mode,
    options: Options,
    duration: Duration,
) -> Result<Sample, Failure> {
    stage::run(
        stage.into(),
        |session, _, client| {
            let allowed =
                ListenerOptions { buffer_bytes_max: 1 << 30, ..ListenerOptions::default() };
            let listener = Listener::bind(session, PORT, allowed)?;
            client.begin();
            let stream = listener.accept(STALL)?;
            stream.set_read_timeout(STALL)?;
            serve(&stream, mode)?;
            // The client has all of it, and may be gone.
            let _ = stream.finish(STALL);
            Ok(())
        },
        |session, peer| {
            let stream = Stream::connect(session, peer, PORT, options, STALL)?;
            stream.set_read_timeout(STALL)?;
            ask(&stream, mode, duration, || Ok(stream.shutdown(Shutdown::Write)?))
        },
    )
}

fn over_tcp(stage: Stage, mode: Mode, spins: bool, duration: Duration) -> Result<Sample, Failure> {
    let prepare = |stream: &TcpStream| -> Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(spins)?;
        stream.set_write_timeout(STALL)?;
        Ok(stream.set_read_timeout(STALL)?)
    };
    let (_, sample) = pair::run(
        stage.pair(),
        |end, client| {
            let listener = TcpListener::bind((end.own, TCP_PORT))?;
            client.begin();
            let (stream, _) = client.accept(&listener)?;
            prepare(&stream)?;
            serve(Looking { stream: &stream, spins }, mode)
        },
        |end| {
            let stream = TcpStream::connect((end.peer, TCP_PORT))?;
            prepare(&stream)?;
            ask(Looking { stream: &stream, spins }, mode, duration, || {
                Ok(stream.shutdown(Shutdown::Write)?)
            })
        },
    )?;
    Ok(sample)
}

/// A socket, which is looked at again and again if it does not wait. One that waits says by the same error that its
/// time is over.
struct Looking<'a> {
    stream: &'a TcpStream,
    spins: bool,
}

impl Looking<'_> {
    fn look(
        &mut self,
        mut what: impl FnMut(&mut &TcpStream) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        let mut in_vain = None;
        loop {
            match what(&mut self.stream) {
                Err(error) if self.spins && error.kind() == ErrorKind::WouldBlock => {
                    let since = in_vain.get_or_insert_with(Instant::now);
                    if Some(since.elapsed()) > STALL {
                        return Err(error);
                    }
                    thread::yield_now();
                }
                done => return done,
            }
        }
    }
}

impl Read for Looking<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.look(|stream| stream.read(buf))
    }
}

impl Write for Looking<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.look(|stream| stream.write(buf))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// Answers until the other end ends; of a flow, says behind its end that all is read.
fn serve(mut stream: impl Read + Write, mode: Mode) -> Result<()> {
    match mode {
        Mode::Latency => {
            let mut message = [0; MESSAGE];
            loop {
                match stream.read_exact(&mut message) {
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                    read => read?,
                }
                stream.write_all(&message)?;
            }
        }
        Mode::Throughput => {
            let mut chunk = vec![0; CHUNK];
            while stream.read(&mut chunk)? > 0 {}
            stream.write_all(&[1])?;
            Ok(stream.flush()?)
        }
    }
}

/// Asks, or sends a flow, and ends.
fn ask(
    mut stream: impl Read + Write,
    mode: Mode,
    duration: Duration,
    end: impl FnOnce() -> Result<()>,
) -> Result<Sample> {
    let mut clock = Clock::new(duration);
    let mut sample = Sample::new()?;
    match mode {
        Mode::Latency => {
            let (question, mut answer) = ([7; MESSAGE], [0; MESSAGE]);
            while clock.goes_on(&mut sample) {
                let began = Instant::now();
                stream.write_all(&question)?;
                stream.read_exact(&mut answer)?;
                sample.record(began.elapsed());
            }
            if answer != question {
                bail!("the answer is another one");
            }
            clock.finish(&mut sample);
            end()?;
        }
        Mode::Throughput => {
            let chunk = vec![7; CHUNK];
            while clock.goes_on(&mut sample) {
                let began = Instant::now();
                stream.write_all(&chunk)?;
                sample.record(began.elapsed());
            }
            end()?;
            stream.read_exact(&mut [0])?;
            clock.finish(&mut sample);
        }
    }
    Ok(sample)
}

/// Streams beside TCP: three times as good on one host, and never worse than half of it on busy cores. Beside a TCP
/// that looks as they do nothing is promised.
fn claims(rows: &[Measured], stage: Stage) -> Vec<Row> {
    let ours = rows.iter().filter(|row| row.design == Design::ElverStream);
    let beside = |row: &Measured, (design, rival): (Design, &'static str)| {
        let Measured { load, mode, .. } = *row;
        let mut rivals = rows.iter().filter(|other| other.design == design);
        let tcp = rivals.find(|other| other.load == load && other.mode == mode)?;
        let what = match mode {
            Mode::Latency => "64 B and back",
            Mode::Throughput => "chunks of 1 MiB",
        };
        let target = match load {
            _ if design != Design::Tcp => Target::None,
            Load::Busy => Target::AtLeast(0.5),
            Load::Quiet if stage == Stage::Host => Target::AtLeast(3.0),
            Load::Quiet => Target::None,
        };
        let busy = if load == Load::Busy { ", busy" } else { "" };
        let name = format!("elver-stream{busy}: {what}");
        let (ours, baseline) = (row.per_s.clone(), Some((rival, tcp.per_s.clone())));
        Some(Row { name, unit: "/s", ours, baseline, target })
    };
    let rivals = [(Design::Tcp, "tcp"), (Design::TcpSpin, "tcp-spin")];
    ours.flat_map(|row| rivals.iter().filter_map(move |rival| beside(row, *rival))).collect()
}

impl Measured {
    fn new(load: Load, design: Design, mode: Mode) -> Measured {
        let none = Figure::default();
        let [per_s, mean_us, p50_us, p999_us] = [none.clone(), none.clone(), none.clone(), none];
        Measured { load, design, mode, per_s, mean_us, p50_us, p999_us }
    }

    fn push(&mut self, sample: &Sample) {
        self.per_s.push(sample.per_s());
        if self.mode == Mode::Latency {
            self.mean_us.push(sample.mean_us());
            self.p50_us.push(sample.us(50.0));
            self.p999_us.push(sample.us(99.9));
        }
    }

    /// Bytes of what is counted.
    fn size(&self) -> usize {
        match self.mode {
            Mode::Latency => MESSAGE,
            Mode::Throughput => CHUNK,
        }
    }

    fn gb_per_s(&self, per_s: f64) -> f64 {
        per_s * self.size() as f64 / 1e9
    }

    fn as_json(&self) -> serde_json::Value {
        let thousandth = |value: f64| (value * 1e3).round() / 1e3;
        let mut row = json!({
            "design": self.design.name(),
            "mode": self.mode.name(),
            "cores": self.load.name(),
            "size": self.size(),
            "per_s": self.per_s.median().round(),
            "per_s_spread": self.per_s.spread().map(f64::round),
        });
        match self.mode {
            Mode::Latency => {
                let us = |figure: &Figure| contract::us(figure.median());
                row["lat_us"] = json!({
                    "mean": us(&self.mean_us),
                    "mean_spread": self.mean_us.spread().map(contract::us),
                    "p50": us(&self.p50_us),
                    "p999": us(&self.p999_us),
                });
            }
            Mode::Throughput => {
                row["gb_per_s"] = thousandth(self.gb_per_s(self.per_s.median())).into();
                let spread = self.per_s.spread();
                row["gb_per_s_spread"] =
                    json!(spread.map(|per_s| thousandth(self.gb_per_s(per_s))));
            }
        }
        row
    }

    fn cells(&self) -> [String; 9] {
        let latency = |figure: &Figure| match self.mode {
            Mode::Latency => number(figure.median()),
            Mode::Throughput => String::new(),
        };
        let rate = match self.mode {
            Mode::Latency => String::new(),
            Mode::Throughput => number(self.gb_per_s(self.per_s.median())),
        };
        let (design, mode) = (self.design.name().to_string(), self.mode.name().to_string());
        let [mean, p50, p999] = [&self.mean_us, &self.p50_us, &self.p999_us].map(latency);
        let (load, size) = (self.load.name().to_string(), self.size().to_string());
        [design, mode, load, size, self.per_s.text(), rate, mean, p50, p999]
    }
}

impl Design {
    fn name(self) -> &'static str {
        match self {
            Design::ElverStream => "elver-stream",
            Design::Tcp => "tcp",
            Design::TcpSpin => "tcp-spin",
        }
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Latency => "latency",
            Mode::Throughput => "throughput",
        }
    }
}
