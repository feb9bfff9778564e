//! The `elver` command.

mod bench;
mod capture;
mod cli;
mod cluster;
mod demo;
mod devinfo;
mod exit;
mod link;
mod man;
mod netns;
mod out;
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

use crate::cli::{Cli, Command, WORKER, Worker};
use crate::exit::Failure;

fn main() -> ExitCode {
    // No command of the user's, so that neither help nor completions know it.
    let mut arguments = std::env::args_os().skip(1).peekable();
    let done = if arguments.peek().is_some_and(|name| name == WORKER) {
        worker::run(&Worker::parse_from(arguments).args)
    } else {
        run(Cli::parse().command)
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
        Command::Capture(args) => capture::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "elver", &mut script);
            out::write(&script);
            Ok(())
        }
        Command::Man(args) => man::run(&args),
    }
}
