//! A real kernel RDMA stack on a machine without one: `cargo xtask lab`.
//!
//! Guests are User Mode Linux or a stock Debian kernel under qemu, both with rxe and siw. A scenario
//! (`lab/scenarios/NAME`) is a script that runs in them and, if it wants, a program on the host at the other end of
//! their wire. Nothing here needs privileges. CONTRIBUTING.md, "The lab", says how to use it.

mod addresses;
mod archive;
mod cache;
mod config;
mod devices;
mod guest;
mod host;
mod job;
mod packages;
mod play;
mod progress;
mod run;
mod scenario;
mod shell;
mod signals;
mod stock;
mod switch;
mod tap;
mod uml;
mod unpacked;
mod userland;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use self::cache::Cache;
use self::config::Config;
use self::guest::Kernel;
use self::scenario::Scenario;
pub use self::unpacked::unpacked;

/// A real kernel RDMA stack on a machine without one.
#[derive(Parser)]
#[command(name = "cargo xtask lab")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists scenarios and engines.
    List,
    /// Fetches and builds what guests need, if it is not in the cache.
    Build {
        #[arg(long, default_value = "all")]
        engine: String,
    },
    /// Runs scenarios; fails if one fails.
    Run {
        /// Names of scenarios, or all.
        #[arg(required = true)]
        names: Vec<String>,
        #[arg(long, default_value = "uml")]
        engine: String,
        /// A line of JSON for each run.
        #[arg(long)]
        json: bool,
        /// Shows what guests and programs said even if all is well.
        #[arg(long, short)]
        verbose: bool,
        /// Keeps each run's files in DIR/SCENARIO-ENGINE. What failed is kept in the cache anyway.
        #[arg(long, value_name = "DIR")]
        keep: Option<PathBuf>,
    },
    /// A guest with rxe and siw, and a shell in it.
    Shell {
        #[arg(long, default_value = "uml")]
        engine: String,
    },
    /// The part of a run that is in a network namespace.
    #[command(hide = true)]
    Inside {
        name: String,
        #[arg(long)]
        engine: String,
        run: PathBuf,
    },
}

/// `cargo xtask lab …`; `arguments` start with "lab".
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    match command(Arguments::parse_from(arguments).command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(command: Command) -> Result<ExitCode> {
    let config = Config::read()?;
    let cache = Cache::open()?;
    match command {
        Command::List => list(&config)?,
        Command::Build { engine } => {
            for engine in config.engines(&engine)? {
                Kernel::build(&cache, &config, engine)?;
                println!("{} is ready in {}", engine.name, cache.directory.display());
            }
        }
        Command::Run { names, engine, json, verbose, keep } => {
            let mut how = How { json, verbose, keep, failed: false };
            signals::handle()?;
            run(&config, &cache, &names, &engine, &mut how)?;
            if how.failed {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Shell { engine } => shell::shell(&cache, &config, config.engines(&engine)?[0])?,
        Command::Inside { name, engine, run } => {
            signals::handle()?;
            run::inside(&cache, &config, &engine, &name, &run)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(config: &Config) -> Result<()> {
    for name in scenario::names()? {
        println!("{name:<20} {}", Scenario::read(&name)?.about);
    }
    println!();
    for engine in &config.engines {
        println!("{:<20} {:?}, from {}", engine.name, engine.kind, engine.package);
    }
    Ok(())
}

/// How runs are reported.
struct How {
    json: bool,
    verbose: bool,
    keep: Option<PathBuf>,
    failed: bool,
}

fn run(
    config: &Config,
    cache: &Cache,
    names: &[String],
    engine: &str,
    how: &mut How,
) -> Result<()> {
    let names = if names == ["all"] { scenario::names()? } else { names.to_vec() };
    let scenarios = names.iter().map(|name| Scenario::read(name)).collect::<Result<Vec<_>>>()?;
    for engine in config.engines(engine)? {
        for scenario in &scenarios {
            if signals::INTERRUPTED.load(Ordering::Relaxed) {
                how.failed = true;
                return Ok(());
            }
            let report = run::run(cache, config, engine, scenario, how.keep.as_deref())
                .with_context(|| format!("{} on {}", scenario.name, engine.name));
            match report {
                Ok(report) => {
                    how.failed |= !report.ok;
                    match how.json {
                        true => println!("{}", serde_json::to_string(&report)?),
                        false => print!("{}", report.text(how.verbose)),
                    }
                }
                // The others may run all the same.
                Err(error) => {
                    how.failed = true;
                    match how.json {
                        true => println!(
                            "{}",
                            serde_json::json!({
                                "scenario": scenario.name, "engine": engine.name, "ok": false,
                                "problems": [format!("{error:#}")],
                            })
                        ),
                        false => println!("FAILED {error:#}"),
                    }
                }
            }
        }
    }
    Ok(())
}
