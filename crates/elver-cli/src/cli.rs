//! The command line: which commands there are. What each is asked for stands with it.

use std::io::IsTerminal;

use clap::{Args, Parser, Subcommand};
#[cfg(feature = "sim")]
use elver_campaign::Sim;
#[cfg(feature = "bench")]
use elver_figures::Bench;
#[cfg(feature = "launch")]
use elver_launch::LaunchArgs;
use elver_perf::perf::Perf;
use elver_perf::perftest::PerftestArgs;
use elver_perf::pingpong::PingpongArgs;
#[cfg(feature = "verbs-profile")]
use elver_profile::ProfileArgs;

use crate::capture::CaptureArgs;
use crate::demo::DemoArgs;
use crate::devinfo::DevinfoArgs;
#[cfg(feature = "faas")]
use crate::faas::FaasArgs;
use crate::install::InstallArgs;
use crate::man::ManArgs;
use crate::run::RunArgs;
use crate::status::StatusArgs;

const EXAMPLES: &str = "\
Examples:
  elver demo
      a cluster on this machine: connects, traffic, a killed process, in half a minute
  elver status --watch
      what a running node does, live
  elver perf pair read --transport dc --size 8 --mode sync --duration 2
      latency of 8-byte DC READs between two QPs of this process
  elver perf pair write --placement loopback --size 65536 --mode async
      rate of 64 KB WRITEs through real packets on two loopback addresses
  sudo elver perf pair read --placement netns --transport dc --size 8
      the same between two network namespaces
  elver perf server                 on one host, and on another:
  elver perf read 192.0.2.1 --transport rc --size 8
  elver perf read 10.9.0.1 --link fd:3 --local 10.9.0.2/24 --exchange 127.0.0.1:18515
      the same with a guest, over the Ethernet frames of an inherited socket
  elver pingpong rc                 here, and `ibv_rc_pingpong -g 1 ADDRESS` where the kernel has
      rdma_rxe: the two understand each other
  elver launch -n 4 -- PROGRAM
      four processes that send each other messages, by MPI's rules
  elver devinfo -v
      what the software device can do";

#[cfg(feature = "sim")]
const SIM_EXAMPLES: &str = "\
Examples:
  elver sim rnic --seed random --seeds 1000
      a thousand networks of devices that nobody has seen
  elver sim node --for 8h --keep-going
      whole nodes all night; what fails is in a file for --replay
  elver sim ring --list-canaries
      the bugs that can be planted, to see that they are caught";
#[cfg(feature = "bench")]
const BENCH_EXAMPLES: &str = "\
Examples:
  elver bench rnic
      the device against bare UDP, sendto and TCP
  elver bench connect --json
      connecting, beside its rivals, as an object for a script";
const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(elver completions bash)
      for this shell
  elver completions fish >~/.config/fish/completions/elver.fish
      for all that begin later";

/// RDMA connections in a microsecond, on any machine: a node's tools, demonstration and benchmarks.
#[derive(Debug, Parser)]
#[command(name = "elver", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Starts a cluster on this machine, and shows what it can do in half a minute.
    Demo(DemoArgs),
    /// Shows a running node: sessions, VQPs, peers and counters.
    Status(StatusArgs),
    /// Measures latency and rate of verbs operations, as perftest does.
    Perf(PerfCommand),
    /// Plays ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong against the original.
    Pingpong(PingpongArgs),
    /// Plays ib_write_bw, ib_read_bw, ib_read_lat or ib_send_lat against the original.
    Perftest(PerftestArgs),
    /// Shows a device as ibv_devinfo does, and the counters of running ones.
    Devinfo(DevinfoArgs),
    /// Records what a running node, or an elver command, sends and receives, as pcapng.
    Capture(CaptureArgs),
    /// Runs a program that is linked to libibverbs on Elver's device, unmodified.
    Run(RunArgs),
    #[cfg(feature = "launch")]
    /// Runs a program as the ranks of a group, which send each other messages.
    Launch(LaunchArgs),
    #[cfg(feature = "faas")]
    /// Runs serverless functions in containers: cold, warm and forked.
    Faas(FaasArgs),
    #[cfg(feature = "verbs-profile")]
    /// Shows where programs that use the host's libibverbs spend their set-up, and makes the fast library's cache.
    VerbsProfile(ProfileArgs),
    #[cfg(feature = "sim")]
    /// Simulates networks of devices under faults, and checks every run.
    #[command(subcommand, after_help = SIM_EXAMPLES)]
    Sim(Sim),
    #[cfg(feature = "bench")]
    /// Measures what docs/performance.md shows, each figure with its baseline beside it.
    #[command(subcommand, after_help = BENCH_EXAMPLES)]
    Bench(Bench),
    /// Prints a completion script for a shell.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints a manual page, in roff.
    Man(ManArgs),
    /// Puts manual pages, completions, the daemon's configuration and its units in place.
    Install(InstallArgs),
}

/// Reads the words of a command; help and versions that were asked for are printed, and then there is none. It does not
/// come back from words that are none.
pub(crate) fn read(words: impl Iterator<Item = std::ffi::OsString>) -> Option<Command> {
    let error = match Cli::try_parse_from(words) {
        Ok(cli) => return Some(cli.command),
        Err(error) if error.use_stderr() => error.exit(),
        Err(error) => error,
    };
    let text = error.render();
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_colours = std::io::stdout().is_terminal() && !is_set("NO_COLOR");
    let text = if has_colours { text.ansi().to_string() } else { text.to_string() };
    elver_console::write(text.as_bytes());
    None
}

/// The command that other elver commands start, which is none of the user's.
pub(crate) const WORKER: &str = "worker";

#[derive(Debug, Args)]
pub(crate) struct PerfCommand {
    #[command(subcommand)]
    pub(crate) command: Perf,
}

/// Does what another elver command tells it.
#[derive(Debug, Parser)]
pub(crate) struct Worker {
    /// The task, in JSON.
    pub(crate) task: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// All of them have examples, and their pages of the manual with them.
    #[test]
    fn every_command_teaches() {
        let mut rest = vec![("elver".to_string(), Cli::command())];
        let mut seen = 0;
        while let Some((name, command)) = rest.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples"), "{name} has none: {help}");
            seen += 1;
            for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
                rest.push((format!("{name} {}", one.get_name()), one.clone()));
            }
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn a_page_has_the_version_the_values_and_the_lines_of_examples() {
        let mut top = Cli::command();
        top.build();
        let status = top.find_subcommand("status").unwrap();
        let page = String::from_utf8(crate::man::page(status).unwrap()).unwrap();
        let version = concat!("\"elver ", env!("CARGO_PKG_VERSION"), "\"");
        assert!(
            page.lines().any(|line| line.starts_with(".TH") && line.contains(version)),
            "{page}"
        );
        assert!(
            page.contains("[\\-\\-socket PATH] [\\-\\-watch [SECONDS]] [\\-\\-count COUNT]"),
            "{page}"
        );
        let examples = ".SH EXAMPLES\n.nf\n\\&elver status\n\\&    sessions, VQPs";
        assert!(page.contains(examples), "{page}");
    }
}
