//! The `elver` command.

mod bench;
mod capture;
mod cli;
mod cluster;
mod demo;
mod devinfo;
mod exit;
mod link;
mod netns;
mod pair;
mod peers;
mod perf;
mod perftest;
mod pingpong;
mod progress;
mod sim;
mod status;
mod table;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};
use crate::exit::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
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
        Command::Capture(args) => capture::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Worker(args) => worker::run(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "elver", &mut std::io::stdout());
            Ok(())
        }
        Command::Man => {
            clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?;
            Ok(())
        }
    }
}
