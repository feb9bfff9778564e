//! `elver bench start`: Python functions in containers that start cold, warm and forked, without RDMA and
//! with one READ, over a connection that they make themselves or that their INIT process made (Swift,
//! section 5.3 and figure 7).

mod verbs;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use elver_console::{Failure, say, table};
use elver_faas::client;
use elver_faas::schedule::Start;
use elver_faas::state::StateDirectory;
use elver_testbed::orchestrator::Orchestrator;
use elver_testbed::programs::Programs;
use elver_testbed::scratch::Scratch;
use serde_json::{Value, json};

use crate::args::{RunArgs, Stage};
use crate::host::{Client, Host};
use crate::report::contract;
use crate::report::frame::Frame;
use crate::report::rows::{Figure, Row, Target};
use verbs::Device;

const EXAMPLES: &str = "\
Examples:
  sudo elver bench start --rounds 5
      a function's cold, warm and fork starts, by who made its connection
  sudo elver bench start --runtime runc --json
      the same with another OCI runtime, as JSON
  cargo xtask lab run faas-start --verbose
      all schemes on a machine without RDMA, by rxe of User Mode Linux

schemes:
  baseline   the handler has no RDMA
  libibverbs each process opens a device of the kernel's by pyverbs, and connects a queue pair to itself;
             left out where there is no such device
  krcore     each process opens a session of its own and connects: a virtual queue pair
  swift      the INIT process connects and prepares sessions while it imports the handler, and each
             child takes one over
  swift-leased  as swift, and each connection has an RC queue pair of its own, as the paper's have:
             connections = \"leased\"
Times are from the request's arrival at the orchestrator: until the handler's process takes the request
(launch), and until its answer (total). The handler's own time from its first line to the completion of
a READ of 8 bytes from a node of this host, or from itself by libibverbs, is control.";

/// What the functions are: packages of some size to import, and one READ.
const HANDLERS: &str = "\
import asyncio, decimal, json, time

def plain(event, context):
    return 0.0

def reads(event, context):
    begun = time.perf_counter_ns()
    qp = context.qps[event['to']]
    qp.read(context.mr, 0, 8, event['address'], event['rkey'], timeout=10)
    return (time.perf_counter_ns() - begun) / 1000
";

/// The user that the functions run as.
const UID: u32 = 60_998;
/// Fork starts for each cold one.
const FORKS: usize = 20;
/// Swift's goals here: the most that a fork start may take, the most of it that is RDMA's, and the most
/// that a cold and a warm start may take beside one without RDMA.
const FORK_US_MAX: f64 = 7_000.0;
const FORK_CONTROL_MAX: f64 = 0.01;
const COLD_RATIO_MAX: f64 = 1.01;
const WARM_RATIO_MAX: f64 = 1.03;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StartArgs {
    /// The OCI runtime.
    #[arg(long, default_value = "crun")]
    runtime: String,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Who makes the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Baseline,
    Libibverbs,
    Krcore,
    Swift,
    SwiftLeased,
}

const SCHEMES: [Scheme; 5] =
    [Scheme::Baseline, Scheme::Libibverbs, Scheme::Krcore, Scheme::Swift, Scheme::SwiftLeased];
const STARTS: [Start; 3] = [Start::Cold, Start::Warm, Start::Fork];

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::Baseline => "baseline",
            Scheme::Libibverbs => "libibverbs",
            Scheme::Krcore => "krcore",
            Scheme::Swift => "swift",
            Scheme::SwiftLeased => "swift-leased",
        }
    }

    fn handler(self) -> &'static str {
        match self {
            Scheme::Baseline => "handlers.plain",
            Scheme::Libibverbs => "verbs.reads",
            Scheme::Krcore | Scheme::Swift | Scheme::SwiftLeased => "handlers.reads",
        }
    }

    /// Of what a function of this scheme is configured with.
    fn lines(self, to: &str, device: Option<&Device>) -> String {
        let providers = device.map_or("", |device| &device.providers);
        match self {
            Scheme::Baseline => String::new(),
            Scheme::Libibverbs => format!("environment = {{ RDMAV_DRIVERS = {providers:?} }}\n"),
            Scheme::Krcore => format!("destinations = [{to:?}]\nsessions = 0\n"),
            Scheme::Swift => format!("destinations = [{to:?}]\n"),
            Scheme::SwiftLeased => {
                format!("destinations = [{to:?}]\nconnections = \"leased\"\n")
            }
        }
    }
}

/// What the rounds of one kind of start gave, in microseconds.
#[derive(Debug, Default)]
struct Times {
    launch: Figure,
    control: Figure,
    total: Figure,
}

/// Measures and prints.
pub(crate) fn run(args: &StartArgs, programs: &Programs) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::unusable("containers are made as root here; run it with sudo"));
    }
    Orchestrator::check(programs, &args.runtime)?;
    let device = Device::find(Path::new("/"));
    let is_measured = |scheme: Scheme| scheme != Scheme::Libibverbs || device.is_ok();
    let mut times: [[Times; STARTS.len()]; SCHEMES.len()] = Default::default();
    let on_host = RunArgs { placement: Some(Stage::Host), ..args.run.clone() };
    let ended = Frame::begin("start", &on_host).run(|_, doing| {
        let host = Host::start(programs, false)?;
        for (scheme, times) in SCHEMES.into_iter().zip(&mut times) {
            if !is_measured(scheme) {
                continue;
            }
            doing(scheme.name());
            let device = device.as_ref().ok().filter(|_| scheme == Scheme::Libibverbs);
            let place = Place::make(scheme, &host.client, &args.runtime, device)?;
            place.measure(programs.own(), times)?;
        }
        Ok(())
    })?;
    let of = |scheme: Scheme, start: Start| {
        let at = STARTS.iter().position(|other| *other == start).unwrap_or(0);
        &times[scheme as usize][at]
    };
    let (base, swift) = (Scheme::Baseline, Scheme::Swift);
    let fork = of(swift, Start::Fork);
    let mut share = Figure::default();
    share.push(fork.control.median() / fork.total.median());
    let row = |name: &str, unit, ours: &Figure, baseline: Option<&Figure>, target| Row {
        name: name.into(),
        unit,
        ours: ours.clone(),
        baseline: baseline.map(|figure| ("baseline", figure.clone())),
        target,
    };
    let beside = |start, most| {
        let (ours, without) = (&of(swift, start).total, &of(base, start).total);
        row(&format!("{start} start, swift"), "µs", ours, Some(without), Target::AtMost(most))
    };
    let claims = [
        row("fork start, swift", "µs", &fork.total, None, Target::AtMost(FORK_US_MAX)),
        row("its part that is RDMA's", "", &share, None, Target::AtMost(FORK_CONTROL_MAX)),
        beside(Start::Cold, COLD_RATIO_MAX),
        beside(Start::Warm, WARM_RATIO_MAX),
    ];
    let rows = || {
        let schemes = SCHEMES.into_iter().zip(&times).filter(|(scheme, _)| is_measured(*scheme));
        schemes.flat_map(|(scheme, times)| {
            STARTS.into_iter().zip(times).map(move |(start, times)| (start, scheme, times))
        })
    };
    ended.tell(
        Some(&claims),
        || {
            let rows = rows().map(|(start, scheme, times)| {
                json!({
                    "start": start, "scheme": scheme.name(),
                    "launch_us": contract::us(times.launch.median()),
                    "control_us": contract::us(times.control.median()),
                    "total_us": contract::us(times.total.median()),
                    "spread_us": times.total.spread(),
                })
            });
            let mut told = json!({"rows": rows.collect::<Vec<_>>(), "runtime": args.runtime});
            if let Err(why) = &device {
                told["left_out"] = json!([{"scheme": Scheme::Libibverbs.name(), "why": why}]);
            }
            told
        },
        || {
            let rows = rows().map(|(start, scheme, Times { launch, control, total })| {
                let texts = [launch, control, total].map(Figure::text);
                let [launch, control, total] = texts;
                [start.to_string(), scheme.name().into(), launch, control, total]
            });
            let heads = ["start", "scheme", "launch µs [min … max]", "control µs", "total µs"];
            table::print(heads, &rows.collect::<Vec<_>>(), 2);
            if let Err(why) = &device {
                say!("{} is left out: {why}", Scheme::Libibverbs.name());
            }
        },
    );
    Ok(())
}

/// An orchestrator's files, and what its functions are asked.
struct Place {
    directory: Scratch,
    event: Vec<u8>,
}

impl Place {
    fn make(
        scheme: Scheme,
        client: &Client,
        runtime: &str,
        device: Option<&Device>,
    ) -> Result<Place> {
        let directory = Orchestrator::place()?;
        let code = directory.path().join("code");
        std::fs::create_dir(&code)?;
        std::fs::set_permissions(&code, Permissions::from_mode(0o755))?;
        std::fs::write(code.join("handlers.py"), HANDLERS)?;
        std::fs::write(code.join("verbs.py"), verbs::HANDLER)?;
        let (to, remote) = (client.to.gid().to_string(), client.to.remote(0));
        let state = directory.path().join("state");
        let socket = client.socket();
        let devices: Vec<_> = device.iter().map(|device| &device.file).collect();
        let mut text = format!(
            "[platform]\nruntime = [{runtime:?}]\nstate = {state:?}\nnode_socket = {socket:?}\n\
             devices = {devices:?}\n\
             [owners.bench]\nuid = {UID}\n"
        );
        for function in ["first", "second"] {
            text += &format!(
                "[functions.{function}]\nowner = \"bench\"\ncode = {code:?}\nhandler = \"{}\"\n{}",
                scheme.handler(),
                scheme.lines(&to, device)
            );
        }
        std::fs::write(directory.path().join("functions.toml"), text)?;
        let event = match device {
            Some(Device { name, gid_index, .. }) => json!({"device": name, "gid_index": gid_index}),
            None => json!({"to": to, "address": remote.addr, "rkey": remote.rkey}),
        };
        Ok(Place { directory, event: event.to_string().into_bytes() })
    }

    /// Starts functions in all ways; of forks the median is kept.
    fn measure(&self, elver: &Path, times: &mut [Times; STARTS.len()]) -> Result<()> {
        let config = self.directory.path().join("functions.toml");
        let orchestrator = Orchestrator::start(elver, &config)?;
        let [cold, warm, fork] = times;
        self.invoke("first", Start::Cold)?.add_to(cold);
        self.invoke("second", Start::Warm)?.add_to(warm);
        let mut forks = Times::default();
        for _ in 0..FORKS {
            self.invoke("first", Start::Fork)?.add_to(&mut forks);
        }
        fork.launch.push(forks.launch.median());
        fork.control.push(forks.control.median());
        fork.total.push(forks.total.median());
        orchestrator.end()
    }

    fn invoke(&self, function: &str, expected: Start) -> Result<Invoked> {
        let invoked = client::invoke(&self.socket(), function, self.event.clone())?;
        let answer = String::from_utf8_lossy(&invoked.body);
        ensure!(!invoked.is_error, "{function} answered with an error: {answer}");
        ensure!(invoked.start == expected, "{function} started {}, not {expected}", invoked.start);
        let control_us = serde_json::from_slice::<Value>(&invoked.body)?.as_f64();
        let control_us = control_us.with_context(|| format!("{function} answered {answer}"))?;
        let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
        Ok(Invoked { launch_us: us(invoked.launch), control_us, total_us: us(invoked.total) })
    }

    fn socket(&self) -> PathBuf {
        StateDirectory::front_socket(&self.directory.path().join("state"))
    }
}

/// What one request took.
struct Invoked {
    launch_us: f64,
    control_us: f64,
    total_us: f64,
}

impl Invoked {
    fn add_to(&self, times: &mut Times) {
        times.launch.push(self.launch_us);
        times.control.push(self.control_us);
        times.total.push(self.total_us);
    }
}
