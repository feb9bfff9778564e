//! `elver faas`: serverless functions in containers (docs/swift.md).

mod demo;

use std::io::Read;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use elver_console::{Failure, say, table};
use elver_faas::client::StuckContainer;
use elver_faas::state::{Programs, StateDirectory};
use elver_faas::{Config, client, orchestrator};
use elver_testbed::programs as testbed;

const EXAMPLES: &str = "\
Examples:
  sudo elver faas demo
      a Python function started cold, warm and forked, in containers, with the time of each
  sudo elver faas serve functions.toml
      take requests, and run them in containers, until Ctrl-C
  sudo elver faas invoke hello --data '{\"name\": \"world\"}'
      the function's answer; the first time from a new container, then from a fork
  sudo elver faas invoke hello --count 5
      how each of five started, and how long it took
  sudo elver faas list
      functions, and which of them have an INIT process to be forked";
const FILE: &str = "\
functions.toml:
  [owners.alice]
  uid = 60001                    # her functions run as this user of the host, and only hers
  [functions.hello]
  owner = \"alice\"
  code = \"/srv/hello\"            # a directory with hello.py, below directories that root alone can write
  handler = \"hello.handler\"      # def handler(event, context): return ...
  # runtime = \"native\"           # a program in Rust or C with the library elver-handler, which is forked
  # runtime = \"provided\"         # `bootstrap` in that directory, as AWS Lambda's provided.al2023: of the crate lambda_runtime
  # runtime = \"awslambdaric\"     # AWS's client for Python, in that directory
  # runtime = \"program\"          # any program that speaks the AWS Lambda Runtime API
  # destinations = [\"10.0.0.2\"]  # connected when a request begins: context.qps[\"10.0.0.2\"]
  # connections = \"leased\"       # each over an RC queue pair of its own, and not over those that all share
  # timeout_s = 3; concurrency_max = 100; memory_mb = 512; sessions = 4; unassigned_qps = 2
  [platform]                     # all of it may be left out
  runtime = [\"crun\"]             # or [\"runc\"], [\"podman\", \"--runtime=runc\"], [\"docker\"]
  # user_namespace = 61000       # a user of the host who is root in containers' own user namespaces
  # rootfs = \"/srv/rootfs\"       # without it, the host's /usr, read-only
  # node_socket = \"/run/elver/elverd.sock\"
  # devices = [\"/dev/infiniband/uverbs0\"] are the host's, for functions that use libibverbs by themselves
  # keep_alive_s = 600; containers_max = 16; owner_containers_max = 8; processes_max = 8; init_timeout_s = 10
  # drain_s = 10
  # container_memory_mb = 2048 limits each container, where cgroups can be made";

#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{FILE}"))]
pub(crate) struct FaasArgs {
    #[command(subcommand)]
    command: Faas,
}

#[derive(Debug, Subcommand)]
enum Faas {
    /// Starts a Python function cold, warm and forked, and shows how long each takes.
    #[command(after_help = EXAMPLES)]
    Demo(demo::DemoArgs),
    /// Takes requests and runs functions in containers, until SIGINT or SIGTERM.
    #[command(after_help = format!("{EXAMPLES}\n\n{FILE}"))]
    Serve(ServeArgs),
    /// Invokes a function, and prints its answer.
    #[command(after_help = EXAMPLES)]
    Invoke(InvokeArgs),
    /// Shows the functions that you may invoke, and their INIT processes.
    #[command(after_help = EXAMPLES)]
    List(ListArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Owners, functions and the platform, in TOML.
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Look whether the configuration is good, and end.
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Args)]
struct InvokeArgs {
    /// The function.
    name: String,
    /// The event, in JSON; - reads it from standard input.
    #[arg(long, value_name = "JSON", default_value = "null")]
    data: String,
    /// A node that the request wants to be connected to beside the function's destinations: a process that has such a
    /// connection is taken first. May be given several times.
    #[arg(long = "destination", value_name = "GID")]
    destinations: Vec<String>,
    /// So many times, one after the other, and show a table of starts and times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print a line of JSON for each, with start, launch_us, total_us and the answer.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    /// The orchestrator's directory, as platform.state says [default: $XDG_RUNTIME_DIR/elver/faas, or
    /// /run/elver/faas]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
}

impl Place {
    fn socket(&self) -> PathBuf {
        let state = self.state.clone().unwrap_or_else(StateDirectory::default_path);
        StateDirectory::front_socket(&state)
    }
}

pub(crate) fn run(args: &FaasArgs, beside: &testbed::Programs) -> Result<(), Failure> {
    match &args.command {
        Faas::Demo(args) => demo::run(args, beside),
        Faas::Serve(args) => serve(args, beside),
        Faas::Invoke(args) => invoke(args),
        Faas::List(args) => list(args),
    }
}

fn serve(args: &ServeArgs, beside: &testbed::Programs) -> Result<(), Failure> {
    let config = Config::load(&args.config)
        .map_err(|error| Failure::unusable(format!("{}: {error}", args.config.display())))?;
    if args.check {
        say!("{} functions of {} owners", config.functions.len(), config.owners.len());
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::unusable(
            "functions run as their owners' users, which takes root; run it with sudo",
        ));
    }
    let init = match &config.platform.init {
        Some(init) => init.clone(),
        None => beside.init().ok_or_else(|| {
            Failure::unusable("elver-init is not beside this program; name it as platform.init")
        })?,
    };
    let module = match &config.platform.module {
        Some(module) => Some(module.clone()),
        None => beside.module(),
    };
    let programs = Programs { init: &init, module: module.as_deref() };
    orchestrator::serve(config, &programs, |socket| say!("ready at {}", socket.display()))?;
    Ok(())
}

fn invoke(args: &InvokeArgs) -> Result<(), Failure> {
    let event = event(&args.data)?;
    let mut rows = Vec::new();
    for _ in 0..args.count.unwrap_or(1) {
        let socket = args.place.socket();
        let invoked =
            client::invoke_towards(&socket, &args.name, &args.destinations, event.clone())?;
        let (launch_us, total_us) = (invoked.launch.as_micros(), invoked.total.as_micros());
        let answer = String::from_utf8_lossy(&invoked.body).into_owned();
        if args.json {
            let parsed = serde_json::from_slice(&invoked.body)
                .unwrap_or(serde_json::Value::from(answer.as_str()));
            say!(
                "{}",
                serde_json::json!({
                    "function": args.name, "start": invoked.start, "launch_us": launch_us as u64,
                    "total_us": total_us as u64, "is_error": invoked.is_error, "answer": parsed,
                })
            );
        } else if args.count.is_some() {
            rows.push([invoked.start.to_string(), launch_us.to_string(), total_us.to_string()]);
        } else {
            say!("{answer}");
        }
        if invoked.is_error {
            return Err(Failure::handed_on(
                1,
                format!("{} answered with an error: {answer}", args.name),
            ));
        }
    }
    if !rows.is_empty() {
        table::print(["start", "launch µs", "total µs"], &rows, 1);
    }
    Ok(())
}

fn event(data: &str) -> Result<Vec<u8>, Failure> {
    let mut event = data.as_bytes().to_vec();
    if data == "-" {
        event.clear();
        std::io::stdin().read_to_end(&mut event).context("cannot read standard input")?;
    }
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&event) {
        return Err(Failure::unusable(format!(
            "the event is no JSON: {error}; quote it, as in --data '\"text\"'"
        )));
    }
    Ok(event)
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let listing = client::list(&args.place.socket())?;
    if args.json {
        say!("{}", serde_json::to_string(&listing)?);
        return Ok(());
    }
    let mut rows = Vec::new();
    for name in &listing.functions {
        let of_function = listing.processes.iter().filter(|row| row.function == *name);
        let before = rows.len();
        rows.extend(of_function.map(|row| {
            let state = if row.is_started { "can be forked" } else { "starts" };
            [
                name.clone(),
                row.owner.clone(),
                format!("{}/{}", row.container.0, row.process.0),
                state.to_string(),
                row.requests.to_string(),
                row.connections.len().to_string(),
            ]
        }));
        if rows.len() == before {
            let none = || "-".to_string();
            rows.push([name.clone(), none(), none(), "starts cold".into(), none(), none()]);
        }
    }
    let heads = ["function", "owner", "container/process", "state", "requests", "connections"];
    table::print(heads, &rows, 4);
    for stuck in &listing.stuck {
        let StuckContainer { container, owner, tries, why } = stuck;
        say!(
            "container {} of {owner} counts, and has not ended in {tries} tries: {why}",
            container.0
        );
    }
    Ok(())
}
