//! Which seeds a simulation runs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};

/// Which seeds a simulation runs, and what it tells of them.
#[derive(Debug, Args)]
pub(crate) struct SeedArgs {
    /// First seed, or `random`: one of the operating system's, so that the seeds have most likely
    /// never run before. It is printed.
    #[arg(long, default_value = "1", value_parser = first_seed)]
    pub(crate) seed: u64,
    /// How many seeds to run, counting up.
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u64).range(1..))]
    pub(crate) seeds: u64,
    /// Run seeds for this long instead, such as `90s` or `8h`, 30 days at most.
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "seeds", value_parser = run_time)]
    pub(crate) run_time: Option<Duration>,
    /// Where to write the seeds that fail, as soon as they do: JSON lines for `--replay`. By default
    /// elver-sim-KIND-SEED.jsonl in the current directory, with the first seed, once one fails and
    /// if all are to run (`--for`, `--keep-going`).
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Run what such a file holds, and tell what still fails.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "run_time", "report"])]
    pub(crate) replay: Option<PathBuf>,
    /// Print the names of the bugs that can be planted.
    #[arg(long)]
    pub(crate) list_canaries: bool,
    /// Seeds that run side by side; by default one a core.
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    pub(crate) jobs: Option<u32>,
    /// Run all seeds, also after a failure.
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Show the whole trace of a failure.
    #[arg(long)]
    pub(crate) trace: bool,
    /// Print one JSON object instead of a table; of --list-canaries an array.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Longest that seeds are run for.
const RUN_TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

fn first_seed(text: &str) -> Result<u64, String> {
    if text != "random" {
        return text.parse().map_err(|error| format!("{error}; give a number, or `random`"));
    }
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("no seed from the operating system: {error}"))?;
    // Short enough to be typed, and for readers of JSON whose numbers have 53 bits.
    Ok(u64::from_le_bytes(bytes) >> 16)
}

fn run_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time <= RUN_TIME_MAX => Ok(time),
        Ok(_) => Err("30 days at most".into()),
        Err(error) => Err(format!("{error}; give a time such as `90s` or `8h`")),
    }
}
