//! `elver faas demo`: two functions of one owner, started in all ways that there are.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;
use elver_console::{Failure, say, table};
use elver_faas::client;
use elver_faas::schedule::Start;
use elver_faas::state::StateDirectory;
use elver_testbed::orchestrator::Orchestrator;
use elver_testbed::programs::Programs;

/// What the functions are: a package of some size to import, and little to do.
const HANDLERS: &str = "\
import asyncio, decimal, json, os

def square(event, context):
    return event * event

def cube(event, context):
    return event ** 3
";

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// How often each start is tried; the median is shown.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// The OCI runtime.
    #[arg(long, default_value = "crun")]
    runtime: String,
    /// Print a line of JSON for each start tried, with start, launch_us and total_us.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &DemoArgs, programs: &Programs) -> Result<(), Failure> {
    Orchestrator::check(programs, &args.runtime)?;
    let directory = Orchestrator::place()?;
    write(directory.path(), &args.runtime)?;
    let mut times: BTreeMap<Start, Vec<(u128, u128)>> = BTreeMap::new();
    for _ in 0..args.count {
        // An orchestrator that ends takes its containers with it, so that the next one begins cold.
        let config = directory.path().join("functions.toml");
        let orchestrator = Orchestrator::start(programs.own(), &config)?;
        let asked = [
            ("square", Start::Cold),
            ("cube", Start::Warm),
            ("square", Start::Fork),
            ("cube", Start::Fork),
        ];
        for (function, expected) in asked {
            let socket = StateDirectory::front_socket(&directory.path().join("state"));
            let invoked = client::invoke(&socket, function, b"12".to_vec())?;
            let answer = String::from_utf8_lossy(&invoked.body);
            let right = if function == "square" { "144" } else { "1728" };
            ensure_right(invoked.start == expected && answer == right, function, &answer)?;
            let took = (invoked.launch.as_micros(), invoked.total.as_micros());
            times.entry(invoked.start).or_default().push(took);
            if args.json {
                let (start, (launch_us, total_us)) = (invoked.start, took);
                say!("{{\"start\":\"{start}\",\"launch_us\":{launch_us},\"total_us\":{total_us}}}");
            }
        }
        orchestrator.end()?;
    }
    if !args.json {
        show(&times);
    }
    Ok(())
}

fn ensure_right(right: bool, function: &str, answer: &str) -> Result<()> {
    ensure!(right, "{function} started otherwise than it should, or answered {answer}");
    Ok(())
}

fn name(start: Start) -> &'static str {
    match start {
        Start::Cold => "cold: a new container",
        Start::Warm => "warm: a new process in it",
        Start::Fork => "fork: a child of one",
        Start::Reuse => "reuse: one that waits",
    }
}

fn show(times: &BTreeMap<Start, Vec<(u128, u128)>>) {
    let median = |mut values: Vec<u128>| {
        values.sort_unstable();
        values[values.len() / 2].to_string()
    };
    let mut rows = Vec::new();
    for (start, took) in times {
        let (launch, total) = took.iter().copied().unzip();
        rows.push([name(*start).to_string(), median(launch), median(total)]);
    }
    table::print(["a Python function", "until it runs, µs", "until it answers, µs"], &rows, 1);
}

fn write(directory: &Path, runtime: &str) -> Result<()> {
    let code = directory.join("code");
    std::fs::create_dir(&code).with_context(|| format!("cannot make {}", code.display()))?;
    std::fs::set_permissions(&code, Permissions::from_mode(0o755))?;
    std::fs::write(code.join("powers.py"), HANDLERS)?;
    let mut text = format!(
        "[platform]\nruntime = [{runtime:?}]\nstate = {:?}\n[owners.demo]\nuid = 60999\n",
        directory.join("state")
    );
    for function in ["square", "cube"] {
        text += &format!(
            "[functions.{function}]\nowner = \"demo\"\ncode = {code:?}\nhandler = \"powers.{function}\"\n"
        );
    }
    std::fs::write(directory.join("functions.toml"), text)?;
    Ok(())
}
