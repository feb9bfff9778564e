//! `elver perf`: latency and rate of verbs operations, modelled on perftest.

mod client;
mod endpoint;
mod exchange;
mod live;
mod load;
mod report;
mod server;
mod setup;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum, value_parser};
use elver_console::{Failure, Progress};
use elver_soft::{SoftConfig, SoftDevice};
use elver_testbed::pair;
use elver_testbed::pair::Placement;
use elver_testbed::seat::pin;

use crate::device::{DeviceArgs, EXCHANGE_PORT, own_address, soft_config};
use crate::link::LinkArgs;
use crate::peers::{PeerArgs, PeerTransport, SILENCE};
use crate::perftest::{self, PeerTest, PerftestArgs, RX_DEPTH};

pub use client::Measured;
pub use load::{Load, LoadArgs, Mode, Op, Transport};
pub use server::ServerArgs;
pub use setup::connect_by_hand;

const PERF_EXAMPLES: &str = "\
Examples:
  elver perf pair read --transport dc --size 8 --mode sync --duration 2
      latency of 8-byte DC READs between two QPs of this process
  elver perf pair write --placement loopback --size 65536 --mode async
      rate of 64 KB WRITEs through real packets on two loopback addresses
  sudo elver perf pair read --placement netns --transport dc --size 8
      the same between two network namespaces
  elver perf server                 on one host, and on another:
  elver perf read 192.0.2.1 --transport rc --size 8
  elver perf read 10.9.0.1 --link fd:3 --local 10.9.0.2/24 --exchange 127.0.0.1:18515
      the same with a guest, over the Ethernet frames of an inherited socket";
const SERVER_EXAMPLES: &str = "\
Examples:
  elver perf server --bind 192.0.2.1
      on one host; then on another: elver perf read 192.0.2.1
  elver perf server --bind 192.0.2.1 --json
      a line for a script of each client: what arrived, or why it failed
  elver perf server --link fd:3 --local 10.9.0.1/24
      on the Ethernet frames of an inherited socket";
const PAIR_EXAMPLES: &str = "\
Examples:
  elver perf pair read --transport dc --size 8 --mode sync --duration 2
      latency of 8-byte DC READs between two QPs of this process
  elver perf pair write --placement loopback --size 65536 --mode async --loss 1%
      rate of 64 KB WRITEs through real packets, of which some are lost
  elver perf pair send --placement loopback --json
      an object for a script";
const CLIENT_EXAMPLES: &str = "\
Examples, of which each operation has the like:
  elver perf read 192.0.2.1 --transport rc --size 8
      from a host where `elver perf server` runs
  elver perf write 192.0.2.1 --size 65536 --mode async --duration 5 --json
      their rate, as an object for a script
  elver perf write 192.0.2.1 --peer perftest --mode async
      with perftest's ib_write_bw at the other end";

/// What is done, and by which end.
#[derive(Debug, Subcommand)]
#[command(after_help = PERF_EXAMPLES)]
pub enum Perf {
    /// Serves clients, one after the other, until it is stopped.
    #[command(after_help = SERVER_EXAMPLES)]
    Server(ServerArgs),
    /// READs from the server's memory.
    Read(ClientArgs),
    /// WRITEs to the server's memory.
    Write(ClientArgs),
    /// WRITEs to the server's memory, with immediate data for a receive.
    WriteImm(ClientArgs),
    /// SENDs to the server's receives.
    Send(ClientArgs),
    /// FETCH_ADDs on a word of the server's.
    FetchAdd(ClientArgs),
    /// CMP_SWPs on a word of the server's.
    CmpSwp(ClientArgs),
    /// Runs both ends in one command.
    Pair(PairArgs),
}

/// What a client is asked for.
#[derive(Debug, Args)]
#[command(after_help = CLIENT_EXAMPLES)]
pub struct ClientArgs {
    /// Address of the server. With --peer it may be missing: then we are the server.
    #[arg(required_unless_present = "peer")]
    pub server: Option<IpAddr>,
    /// Whose program is at the other end, if it is not `elver perf`.
    #[arg(long, value_enum)]
    pub peer: Option<Peer>,
    /// Messages of a test with --peer, which --duration does not bound; by default as many as the
    /// peer's own program sends.
    #[arg(long, requires = "peer", value_parser = value_parser!(u32).range(5..=20_000_000))]
    pub iters: Option<u32>,
    /// Address of our own device; by default the one that the route to the server gives.
    #[arg(long)]
    pub bind: Option<IpAddr>,
    /// TCP port of the server.
    #[arg(long, default_value_t = EXCHANGE_PORT)]
    pub port: u16,
    /// Where the server waits for the exchange over TCP, if not at its address and --port. It
    /// always runs over this host's network, also where the device is on a frame link.
    #[arg(long, value_name = "ADDR:PORT")]
    pub exchange: Option<SocketAddr>,
    /// What is measured.
    #[command(flatten)]
    pub load: LoadArgs,
    /// What our device's packets travel over.
    #[command(flatten)]
    pub link: LinkArgs,
    /// Our device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Another's program at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// `write --mode async` with ib_write_bw, `read` with ib_read_lat and `read --mode async` with
    /// ib_read_bw, `send` with ib_send_lat; `elver perftest` has more of its options.
    Perftest,
}

/// What `elver perf pair` is asked for.
#[derive(Debug, Args)]
#[command(after_help = PAIR_EXAMPLES)]
pub struct PairArgs {
    /// The operation.
    pub op: Op,
    /// Where the two ends are.
    #[arg(long, value_enum, default_value_t = Placement::Process)]
    pub placement: Placement,
    /// What is measured.
    #[command(flatten)]
    pub load: LoadArgs,
    /// The devices of both ends.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Runs a perf command, recording to `capture` if there is one.
///
/// # Errors
///
/// [`Failure::Unusable`] for arguments that do not go together, or what cannot be had here; else what failed.
pub fn run(command: &Perf, capture: Option<&Path>) -> Result<(), Failure> {
    let (op, args) = match command {
        Perf::Server(args) => return server::run(args, capture),
        Perf::Pair(args) => return run_pair(args, capture),
        Perf::Read(args) => (Op::Read, args),
        Perf::Write(args) => (Op::Write, args),
        Perf::WriteImm(args) => (Op::WriteImm, args),
        Perf::Send(args) => (Op::Send, args),
        Perf::FetchAdd(args) => (Op::FetchAdd, args),
        Perf::CmpSwp(args) => (Op::CmpSwp, args),
    };
    run_client(op, args, capture)
}

fn run_client(op: Op, args: &ClientArgs, capture: Option<&Path>) -> Result<(), Failure> {
    let server = match (args.peer, args.server) {
        (Some(Peer::Perftest), _) => return perftest::run(&as_perftest(op, args)?, capture),
        (None, Some(server)) => server,
        (None, None) => return Err(Failure::unusable("give the server's address")),
    };
    let load = Load { is_told: true, ..Load::new(op, &args.load)? };
    let base = match (args.link.open()?, args.bind) {
        (Some(link), None) => SoftConfig::for_frames(link),
        (Some(_), Some(_)) => {
            return Err(Failure::unusable(
                "--bind is for the kernel's UDP; on a frame link --local is the device's address",
            ));
        }
        (None, Some(own)) => SoftConfig::for_address(own),
        (None, None) => SoftConfig::for_address(own_address(server)?),
    };
    let config = soft_config(base, &args.device, capture);
    let exchange = args.exchange.unwrap_or((server, args.port).into());
    let progress = measuring(&load);
    let measured = client::measure_remote(config, exchange, &load, args.device.idle)?;
    drop(progress);
    report::print(&load, Placement::Remote, &measured, args.load.json)
}

/// Says on a terminal what is under way, until it is dropped.
fn measuring(load: &Load) -> Progress {
    let progress = Progress::begin();
    progress.doing(&format!("{:?} for {} s", load.op, load.duration));
    progress
}

/// The same as `elver perftest` has it.
fn as_perftest(op: Op, args: &ClientArgs) -> Result<PerftestArgs, Failure> {
    let load = &args.load;
    let test = match (op, load.mode) {
        (Op::Write, Mode::Async) => PeerTest::WriteBw,
        (Op::Read, Mode::Async) => PeerTest::ReadBw,
        (Op::Read, Mode::Sync) => PeerTest::ReadLat,
        (Op::Send, Mode::Sync) => PeerTest::SendLat,
        _ => {
            return Err(Failure::unusable(
                "with perftest there are `write --mode async`, `read --mode sync` or `async`, and \
                 `send --mode sync`",
            ));
        }
    };
    let connection = match load.transport {
        Transport::Rc => PeerTransport::Rc,
        Transport::Uc => PeerTransport::Uc,
        Transport::Ud => PeerTransport::Ud,
        Transport::Dc => {
            return Err(Failure::unusable("perftest is spoken with over rc, uc and ud"));
        }
    };
    if args.link.open()?.is_some() || args.exchange.is_some() {
        return Err(Failure::unusable("--peer takes neither --link nor --exchange"));
    }
    Ok(PerftestArgs {
        test,
        peer: PeerArgs {
            server: args.server,
            bind: args.bind,
            port: args.port,
            wait: None,
            timeout: SILENCE,
            device: args.device.clone(),
        },
        connection,
        size: Some(load.size),
        iters: args.iters,
        mtu: load.mtu,
        tx_depth: load.depth,
        rx_depth: RX_DEPTH,
        gid_index: None,
        json: load.json,
    })
}

fn run_pair(args: &PairArgs, capture: Option<&Path>) -> Result<(), Failure> {
    let load = Load { is_told: true, ..Load::new(args.op, &args.load)? };
    if args.device.loss > 0.0 && args.placement == Placement::Process {
        return Err(Failure::unusable(
            "within one process no packet is sent that could be lost: --placement loopback",
        ));
    }
    let progress = measuring(&load);
    let measured = measure_pair(&load, args.placement, &args.device, capture)?;
    drop(progress);
    report::print(&load, args.placement, &measured, args.load.json)
}

/// Runs both ends of a load in this process.
///
/// # Errors
///
/// A device that cannot be opened, an end that did not get ready or lost the other, or, between namespaces, somebody who
/// is not root.
pub fn measure_pair(
    load: &Load,
    placement: Placement,
    device: &DeviceArgs,
    capture: Option<&Path>,
) -> Result<Measured, Failure> {
    if placement == Placement::Process {
        pin(0);
        let own = free_loopback();
        let config = soft_config(SoftConfig::for_address(own), device, capture);
        return Ok(client::measure_process(SoftDevice::open(config)?, load, device.idle)?);
    }
    let beside = capture.map(second_file);
    let (_, measured) = pair::run(
        placement,
        |end, client| {
            let config = soft_config(SoftConfig::for_address(end.own), device, beside.as_deref());
            let opened = SoftDevice::open(config)?;
            server::serve_once(opened, (end.own, EXCHANGE_PORT).into(), device.idle, client)
        },
        |end| {
            let config = soft_config(SoftConfig::for_address(end.own), device, capture);
            client::measure_remote(config, (end.peer, EXCHANGE_PORT).into(), load, device.idle)
        },
    )?;
    Ok(measured)
}

/// A loopback address that no other device of this host is likely to have: QPs of one process need
/// no address that others could name.
fn free_loopback() -> IpAddr {
    let [low, high, ..] = std::process::id().to_le_bytes();
    [127, 77, high, low].into()
}

/// Where the second of two devices records.
fn second_file(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push("-server");
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}
