//! `elver capture`: an elver command with its devices recording.

use clap::Parser;

use crate::cli::{CaptureArgs, Cli, Command};
use crate::exit::Failure;
use crate::{perf, perftest, pingpong};

/// Runs the command named behind the options.
pub(crate) fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let words = std::iter::once("elver".to_string()).chain(args.command.iter().cloned());
    let cli = Cli::try_parse_from(words).map_err(|error| Failure::unusable(error.render()))?;
    match cli.command {
        Command::Perf(command) => perf::run(&command.command, Some(&args.file)),
        Command::Pingpong(command) => pingpong::run(&command, Some(&args.file)),
        Command::Perftest(command) => perftest::run(&command, Some(&args.file)),
        _ => Err(Failure::unusable(
            "capture records `perf`, `pingpong` and `perftest` commands; name one behind it",
        )),
    }
}
