//! `elver run`: a program that is linked to libibverbs, on Elver's device (docs/preload.md); or one whose TCP
//! connections go by streams (docs/sockets.md).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use elver_console::Failure;
use elver_farewell::KEEPER;
use elver_node::config::SOCKET_VARIABLE;
use rustix::process::getpid;

use crate::keeper;
use crate::reach::{no_library, out_of_reach};

/// The libraries, below a directory of programs and below the one above it.
const LIBRARY: &str = "lib/elver/libibverbs.so.1";
const SOCKETS: &str = "lib/elver/libelver-sockets.so";

const EXAMPLES: &str = "\
Examples:
  elver run -- ibv_devinfo
      the device that programs find
  elver run -- ib_write_bw &
  elver run -- ib_write_bw 127.0.0.1
      perftest between two processes of this host: no RDMA device, no kernel module, no privilege
  elver run --address 192.0.2.1 -- ib_write_bw
      to be reached by other hosts; one process for each address, of which several may be named
  elver run --gid-index 3 -- PROGRAM
      for a program that has the index of its GID in its source
  elver run --infiniband -- PROGRAM
      for a program that knows its peers by LIDs alone
  elver run --loss 1% --delay 50us --seed 7 -- ib_send_lat 127.0.0.1
      how a program bears a bad network: the same packets are lost for the same seed
  elver run --kill-peer-after 3s -- PROGRAM
      how it bears that its peers die
  elver run --port-down-after 3s --port-up-after 500ms -- PROGRAM
      how it bears that its port goes down for a while
  elver run --wrong-keys 0.1% --qp-failures 0.01% --seed 7 -- PROGRAM
      how it bears that its keys are refused, and that its queue pairs fail
  elver run --capture trace -- ib_write_bw
      its packets, for Wireshark: trace.PID
  elver run -- make check
      what the program starts has the library too
  elver run --streams -- redis-server &
  elver run --streams --streams-log - -- redis-benchmark -c 1
      TCP connections between two such programs of this host go by streams of its node; all others stay TCP

The exit code is the program's own; 126 if it cannot be run, 127 if it is not there, and 1 or 2 if nothing was tried.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// The device's name.
    #[arg(long, value_name = "NAME", value_parser = device_name)]
    device: Option<String>,
    /// The address of this host that the device has, or several with commas between them, of which each process takes
    /// the first that is free; else a free one from 127.64.0.0 to 127.127.255.255.
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    address: Vec<IpAddr>,
    /// The index of the device's GID in its table, whose entries before it are empty: for programs that have one in their
    /// source, 1 or 3 mostly.
    #[arg(long, value_name = "INDEX", value_parser = clap::value_parser!(u8).range(..=15))]
    gid_index: Option<u8>,
    /// Have the port be InfiniBand's, with a LID, which is the last 16 bits of the device's address: for programs that know
    /// their peers by LIDs alone. Give it to all that are to reach one another.
    #[arg(long)]
    infiniband: bool,
    /// Drop this share of the packets that reach each process's device, in per cent: "1%", "0.01%".
    #[arg(long, value_name = "SHARE", value_parser = share)]
    loss: Option<u32>,
    /// Have each packet taken so much later than it arrived: "50us", "2ms".
    #[arg(long, value_name = "TIME", value_parser = in_microseconds)]
    delay: Option<Duration>,
    /// So long after a process has opened its device nothing reaches it any longer, as if all of its
    /// peers had died: its queue pairs fail when their retries have run out.
    #[arg(long, value_name = "TIME", value_parser = in_milliseconds)]
    kill_peer_after: Option<Duration>,
    /// So long after a process has opened its device the port goes down: IBV_EVENT_PORT_ERR, nothing leaves or arrives,
    /// and its queue pairs fail when their retries have run out.
    #[arg(long, value_name = "TIME", value_parser = in_milliseconds)]
    port_down_after: Option<Duration>,
    /// So long after it went down the port comes up again: IBV_EVENT_PORT_ACTIVE.
    #[arg(long, value_name = "TIME", value_parser = in_milliseconds, requires = "port_down_after")]
    port_up_after: Option<Duration>,
    /// Post this share of each process's READs, WRITEs and atomics with a wrong key: they complete with
    /// IBV_WC_REM_ACCESS_ERR, and their queue pairs fail at both ends.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    wrong_keys: Option<u32>,
    /// Have the queue pair fail after this share of what each process posts to send: what is outstanding is flushed,
    /// and the program is told IBV_EVENT_QP_FATAL.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    qp_failures: Option<u32>,
    /// Which packets are lost, and which posts suffer: the same ones for the same seed.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Record the packets of each process as pcapng, in FILE.PID.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Have all data go by packets, between processes of this host and user too, which would move it themselves.
    #[arg(long)]
    no_direct: bool,
    /// Carry the program's TCP connections by streams of the host's node where the peer does so too; the program
    /// gets no RDMA device.
    #[arg(long, conflicts_with_all = ["device", "address", "gid_index", "infiniband", "loss", "delay", "kill_peer_after", "port_down_after", "port_up_after", "wrong_keys", "qp_failures", "capture", "no_direct"])]
    streams: bool,
    /// Say of each TCP connection whether a stream carries it, and why not: a line each at the end of FILE; "-" is
    /// the standard error.
    #[arg(long, value_name = "FILE", requires = "streams")]
    streams_log: Option<PathBuf>,
    /// The node's socket; by default ELVER_SOCKET, else where elverd puts it.
    #[arg(long, value_name = "PATH", requires = "streams")]
    socket: Option<PathBuf>,
    /// The library, if it is not where it was installed.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Becomes the program: signals reach it, and its exit code is this one's.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let library = library(args.library.as_deref(), if args.streams { SOCKETS } else { LIBRARY })?;
    let (name, rest) = args.command.split_first().context("no program was named")?;
    let program = found(Path::new(name))?;
    let why = out_of_reach(&program).map_err(|error| Failure::not_run(error.kind(), error))?;
    if let Some(why) = why {
        let program = program.display();
        return Err(Failure::unusable(format!(
            "{program} {why}, so that the library cannot be put under it"
        )));
    }
    let mut command = Command::new(&program);
    command.arg0(name).args(rest).env("LD_PRELOAD", preloaded(&library, args.streams)?);
    if let Some(device) = &args.device {
        command.env("ELVER_DEVICE", device);
    }
    if let Some(index) = args.gid_index {
        command.env("ELVER_GID_INDEX", index.to_string());
    }
    if args.infiniband {
        command.env("ELVER_LINK_LAYER", "infiniband");
    }
    if args.no_direct {
        command.env("ELVER_DIRECT", "off");
    }
    if !args.address.is_empty() {
        let all: Vec<String> = args.address.iter().map(ToString::to_string).collect();
        command.env("ELVER_ADDRESS", all.join(","));
    }
    ask(&mut command, args)?;
    // A program runs without one too; then its peers on other hosts are not told that it was killed. The first process of a
    // container would have it for a child, and the kernel ends both together.
    if !args.streams
        && !getpid().is_init()
        && std::env::var_os(KEEPER).is_none()
        && let Ok(name) = keeper::start()
    {
        command.env(KEEPER, name);
    }
    let error = command.exec();
    Err(Failure::not_run(error.kind(), format!("cannot run {}: {error}", program.display())))
}

/// Tells the library which version asks, what befalls packets, and where they or connections are recorded.
fn ask(command: &mut Command, args: &RunArgs) -> Result<()> {
    if !args.streams {
        command.env("ELVER_RUN_VERSION", env!("CARGO_PKG_VERSION"));
    }
    let mut tell = |name: &str, value: Option<u128>| {
        if let Some(value) = value {
            command.env(name, value.to_string());
        }
    };
    tell("ELVER_LOSS_PER_MILLION", args.loss.map(u128::from));
    tell("ELVER_WRONG_KEYS_PER_MILLION", args.wrong_keys.map(u128::from));
    tell("ELVER_QP_FAILURES_PER_MILLION", args.qp_failures.map(u128::from));
    tell("ELVER_DELAY_US", args.delay.map(|time| time.as_micros()));
    tell("ELVER_PEERS_DIE_AFTER_MS", args.kill_peer_after.map(|time| time.as_millis()));
    tell("ELVER_PORT_DOWN_AFTER_MS", args.port_down_after.map(|time| time.as_millis()));
    tell("ELVER_PORT_UP_AFTER_MS", args.port_up_after.map(|time| time.as_millis()));
    let draws = args.loss.or(args.wrong_keys).or(args.qp_failures);
    tell("ELVER_SEED", draws.map(|_| u128::from(args.seed)));
    // The program may go elsewhere before it opens them.
    let absolute =
        |file| std::path::absolute(file).context("the directory of this process is gone");
    if let Some(file) = &args.capture {
        command.env("ELVER_CAPTURE", absolute(file)?);
    }
    if let Some(socket) = &args.socket {
        command.env(SOCKET_VARIABLE, absolute(socket)?);
    }
    if let Some(file) = args.streams_log.as_ref().filter(|file| file.as_os_str() != "-") {
        // The program cannot say that it is not to be had.
        let opened = File::options().append(true).create(true).open(file);
        opened.with_context(|| format!("cannot write to {}", file.display()))?;
    }
    match &args.streams_log {
        Some(file) if file.as_os_str() == "-" => drop(command.env("ELVER_STREAMS_LOG", "-")),
        Some(file) => drop(command.env("ELVER_STREAMS_LOG", absolute(file)?)),
        None => {}
    }
    Ok(())
}

/// A share in per cent, as packets of a million.
fn share(text: &str) -> Result<u32, String> {
    let wrong =
        || format!("{text:?} is no share; give per cent from 0% to 100%, as in 1% or 0.01%");
    let number = text.strip_suffix('%').ok_or_else(wrong)?;
    let percent: f64 = number.trim().parse().map_err(|_| wrong())?;
    if !(0.0..=100.0).contains(&percent) {
        return Err(wrong());
    }
    match (percent * 10_000.0).round() as u32 {
        0 if percent > 0.0 => {
            Err(format!("{text:?} is less than one in a million; give 0 or more"))
        }
        share => Ok(share),
    }
}

/// A time of whole microseconds.
fn in_microseconds(text: &str) -> Result<Duration, String> {
    whole(text, Duration::from_micros(1))
}

/// A time of whole milliseconds.
fn in_milliseconds(text: &str) -> Result<Duration, String> {
    whole(text, Duration::from_millis(1))
}

/// A time that is nothing only if that is meant.
fn whole(text: &str, least: Duration) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if !time.is_zero() && time < least {
        return Err(format!("{text:?} is less than {}", humantime::format_duration(least)));
    }
    Ok(time)
}

/// A name that programs can be told.
fn device_name(text: &str) -> Result<String, String> {
    let fits = (1..64).contains(&text.len()) && !text.contains(['/', '\0']);
    let wrong = || "give a name of 1 to 63 bytes without a slash".to_string();
    if fits { Ok(text.to_string()) } else { Err(wrong()) }
}

/// Where the library is.
fn library(named: Option<&Path>, usual: &str) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        let path = std::path::absolute(named).context("the directory of this process is gone")?;
        if !path.is_file() {
            return Err(Failure::unusable(format!("there is no library {}", path.display())));
        }
        return match no_library(&path).map_err(Failure::unusable)? {
            None => Ok(path),
            Some(why) => Err(Failure::unusable(format!("{} {why}", path.display()))),
        };
    }
    let own = std::env::current_exe().context("where this program is cannot be told")?;
    let mut places = own.ancestors().skip(1).take(2).map(|place| place.join(usual));
    places.find(|path| path.is_file()).ok_or_else(|| {
        Failure::unusable(format!(
            "there is no {usual} beside {}: in a source tree make it with `cargo xtask preload`, or name \
             one with --library",
            own.display()
        ))
    })
}

/// A program, as a shell finds it.
fn found(name: &Path) -> Result<PathBuf, Failure> {
    if name.components().count() > 1 {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
    };
    let mut places = std::env::split_paths(&path).map(|place| place.join(name));
    places.find(is_program).ok_or_else(|| {
        let what = format!("there is no program {} in PATH", name.display());
        Failure::not_run(io::ErrorKind::NotFound, what)
    })
}

/// What the loader is to load ahead of all else. libibverbs stands behind what is there already: what is to come before
/// the C library's calls of sockets must come before ours too, which reach the system itself (librspreload).
fn preloaded(library: &Path, is_first: bool) -> Result<OsString, Failure> {
    let own = library.as_os_str();
    if own.as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        let path = library.display();
        return Err(Failure::unusable(format!(
            "the loader takes no library whose path has a space or a colon: move {path}"
        )));
    }
    let others = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty());
    Ok(joined(own, others.as_deref(), is_first))
}

fn joined(own: &OsStr, others: Option<&OsStr>, is_first: bool) -> OsString {
    let Some(others) = others else { return own.to_owned() };
    let (first, second) = if is_first { (own, others) } else { (others, own) };
    [first, OsStr::new(":"), second].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_in_per_cent() {
        assert_eq!(share("1%"), Ok(10_000));
        assert_eq!(share("0.01%"), Ok(100));
        assert_eq!(share("100 %"), Ok(1_000_000));
        for wrong in ["1", "-1%", "101%", "%", "NaN%", "a%"] {
            assert!(share(wrong).unwrap_err().contains("per cent"), "{wrong}");
        }
    }

    #[test]
    fn what_would_be_nothing_is_refused() {
        assert!(share("0.00001%").is_err() && share("0%") == Ok(0));
        assert!(in_microseconds("500ns").is_err() && in_microseconds("1us").is_ok());
        assert!(in_milliseconds("500us").is_err() && in_milliseconds("0s").is_ok());
        for wrong in ["", "a b/c", &"x".repeat(64)] {
            assert!(device_name(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(device_name("rxe0").as_deref(), Ok("rxe0"));
    }

    #[test]
    fn what_stands_before_the_c_library_comes_first() {
        let [own, others] = ["/lib/elver/libibverbs.so.1", "librspreload.so"].map(OsStr::new);
        assert_eq!(joined(own, None, false), own);
        assert_eq!(joined(own, Some(others), false), "librspreload.so:/lib/elver/libibverbs.so.1");
        assert_eq!(joined(own, Some(others), true), "/lib/elver/libibverbs.so.1:librspreload.so");
    }
}
