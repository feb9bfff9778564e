//! The `elver` command.

mod capture;
mod cli;
mod demo;
mod devinfo;
#[cfg(feature = "faas")]
mod faas;
mod install;
mod keeper;
mod man;
mod reach;
mod run;
mod status;

use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use elver_console::Failure;
use elver_perf::{perf, perftest, pingpong};
use elver_testbed::programs::Programs;
use elver_testbed::worker;

use crate::capture::CaptureArgs;
use crate::cli::{Cli, Command, WORKER, Worker};

fn main() -> ExitCode {
    elver_console::guarded(command)
}

fn command() -> ExitCode {
    // No command of the user's, so that neither help nor completions know it.
    let mut arguments = std::env::args_os().skip(1).peekable();
    let done = if arguments.peek().is_some_and(|name| name == WORKER) {
        worker::run(&Worker::parse_from(arguments).task)
    } else if let Some(command) = arguments.peek().and_then(|name| keeper::command(name)) {
        command().map_err(Failure::from)
    } else if let Some(command) = arguments.peek().and_then(|name| left_out(name)) {
        Err(Failure::unusable(format!(
            "this elver was built without `{command}`; one with all commands is built by: cargo build --release"
        )))
    } else {
        cli::read(std::env::args_os()).map_or(Ok(()), run)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Perf(perf) => perf::run(&perf.command, None),
        Command::Pingpong(args) => pingpong::run(&args, None),
        Command::Perftest(args) => perftest::run(&args, None),
        Command::Devinfo(args) => devinfo::run(&args),
        Command::Capture(args) if args.command.is_empty() => capture::run(&args),
        Command::Capture(args) => record(&args),
        #[cfg(feature = "sim")]
        Command::Sim(args) => elver_campaign::run(&args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => elver_figures::run(&args, &programs()?),
        Command::Demo(args) => demo::run(&args, &programs()?),
        Command::Status(args) => status::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "elver", &mut script);
            elver_console::write(&script);
            Ok(())
        }
        Command::Run(args) => run::run(&args),
        #[cfg(feature = "launch")]
        Command::Launch(args) => elver_launch::run(&args),
        #[cfg(feature = "faas")]
        Command::Faas(args) => faas::run(&args, &programs()?),
        #[cfg(feature = "verbs-profile")]
        Command::VerbsProfile(args) => elver_profile::run(&args, programs()?.own()),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Install(args) => install::run(&args, &Cli::command(), &programs()?),
    }
}

/// The command of this name, if this program was built without it.
fn left_out(name: &OsStr) -> Option<&'static str> {
    let all = [
        ("bench", cfg!(feature = "bench")),
        ("faas", cfg!(feature = "faas")),
        ("launch", cfg!(feature = "launch")),
        ("sim", cfg!(feature = "sim")),
        ("verbs-profile", cfg!(feature = "verbs-profile")),
    ];
    all.into_iter()
        .find(|(command, is_there)| name == *command && !is_there)
        .map(|(command, _)| command)
}

/// Runs the command that stands behind the options of `elver capture`, its devices recording.
fn record(args: &CaptureArgs) -> Result<(), Failure> {
    let words = std::iter::once("elver".into()).chain(args.command.iter().map(Into::into));
    let Some(command) = cli::read(words) else { return Ok(()) };
    let file = Some(args.file_of_command()?);
    match command {
        Command::Perf(command) => perf::run(&command.command, file)?,
        Command::Pingpong(command) => pingpong::run(&command, file)?,
        Command::Perftest(command) => perftest::run(&command, file)?,
        _ => {
            return Err(Failure::unusable(
                "capture records `perf`, `pingpong` and `perftest` commands; name one behind it",
            ));
        }
    }
    let (recorded, left_out) = (elver_soft::record::recorded(), elver_soft::record::left_out());
    capture::tell(recorded, left_out, args.json);
    // The devices have said which files lack them, and why.
    match left_out {
        0 => Ok(()),
        packets => Err(anyhow::anyhow!("{packets} packets were not recorded").into()),
    }
}

/// What clusters are made of: this program runs their workers.
fn programs() -> Result<Programs, Failure> {
    let own = std::env::current_exe().context("cannot find this program")?;
    Ok(Programs::new(own, WORKER))
}
