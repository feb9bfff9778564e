//! A group of processes that send each other messages (docs/msg.md): started, brought together, and ended together.
//!
//! | module | what |
//! | --- | --- |
//! | `home` | the nodes that ranks are at: the host's, named ones, or one that ends with them |
//! | `ranks` | the ranks, as processes |
//! | `group` | their life: they meet, and end together |
//! | `labels` | what they say, a line at a time |
//!
//! `elver launch` is its face.

mod group;
mod home;
mod labels;
mod ranks;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use elver_console::Failure;
use elver_msg::{Launched, RANKS_MAX, Rendezvous};

use crate::group::Group;
use crate::home::Home;
use crate::ranks::Ranks;

const EXAMPLES: &str = "\
Examples:
  elver launch -n 4 -- ./sums
      four processes of a program over elver-msg, as ranks 0 to 3 of one group
  elver launch -n 4 --label -- ./sums --steps 100
      which rank says what: each line begins with its rank, as in \"2: done\"
  elver launch -n 2 --own-node -- ./sums
      with a node of their own, whether a daemon runs or not
  elver launch -n 6 --socket /run/a.sock --socket /run/b.sock -- ./sums
      ranks 0, 2 and 4 at one node of this host, the others at another one
  elver launch -n 3 -- sh -c 'exec ./sums > out.$ELVER_RANK'
      a file for what each rank says

A rank that fails ends the group: the others get SIGTERM, and SIGKILL when --grace is over. The exit
code is that of the rank that failed first, or 128 and the signal that killed it; 127 if the program
is not there, 126 if it cannot be run. SIGINT, SIGTERM,
SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to all ranks. Rank 0 has this command's standard
input, unless that is a terminal; the others have none.

Each rank finds in its environment what elver_msg::Group::from_env reads: ELVER_RANK, ELVER_SIZE,
ELVER_RENDEZVOUS and ELVER_TOKEN; and ELVER_SOCKET, unless it is the default node.";

/// What `elver launch` takes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LaunchArgs {
    /// How many processes: ranks 0 to N-1.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    ranks: u32,
    /// A node's socket; of several, ranks are at these nodes in turn. By default ELVER_SOCKET, else
    /// where elverd puts it, and where none runs a node of their own.
    #[arg(long, value_name = "FILE")]
    socket: Vec<PathBuf>,
    /// Give the ranks a node of their own, which ends with them.
    #[arg(long, conflicts_with = "socket")]
    own_node: bool,
    /// Begin each line of a rank's output with the rank.
    #[arg(long)]
    label: bool,
    /// When a rank has failed, how long the others have to end before they are killed.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the ranks to their end.
///
/// # Errors
///
/// [`Failure::Unusable`] if there is no node for them, [`Failure::Failed`] if they cannot be started or do not meet; if one
/// of them fails, the code that it ended with.
pub fn run(args: &LaunchArgs) -> Result<(), Failure> {
    // First, so that no signal ends this command and leaves ranks behind.
    let signals = group::signals()?;
    let home = Home::find(&args.socket, args.own_node)?;
    let (size, token) = (args.ranks, token()?);
    let place =
        Rendezvous::bind(home.session(), 0, size, token).context("cannot bring ranks together")?;
    let rendezvous = place.address();
    let mut ranks = Ranks::new(&args.command, args.label)?;
    for rank in 0..size {
        let launched = Launched { rank, size, rendezvous, token };
        let socket = home.socket_of(rank).map(|path| (elver::SOCKET_VARIABLE, path.into()));
        let variables = launched.variables().map(|(name, value)| (name, value.into()));
        ranks.start(variables.into_iter().chain(socket))?;
    }
    Group::new(ranks, place, args.grace).run(&signals)
}

/// Which group it is: nobody guesses it.
fn token() -> Result<u128> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    anyhow::ensure!(got == Ok(bytes.len()), "the system has no random number: {got:?}");
    Ok(u128::from_le_bytes(bytes))
}
