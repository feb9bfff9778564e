//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use elver_soft::UDP_PORT;

use crate::bench::args::{ConnectArgs, DataArgs, MeshArgs, QosArgs, StormArgs};
use crate::bench::calls::CallsArgs;
use crate::bench::echo::EchoArgs;
use crate::bench::figure_args::{FactorsArgs, MemoryArgs, PoolArgs, ZeroCopyArgs};
use crate::bench::lite_data::LiteArgs;
use crate::demo::DemoArgs;
use crate::link::LinkArgs;
use crate::status::StatusArgs;
use crate::worker::WorkerArgs;

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
  elver devinfo -v
      what the software device can do";

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
    /// Runs an elver command and records its device's packets as pcapng.
    Capture(CaptureArgs),
    /// Simulates networks of devices under faults, and checks every run.
    #[command(subcommand)]
    Sim(Sim),
    /// Measures what docs/performance.md shows, each figure with its baseline beside it.
    #[command(subcommand)]
    Bench(Bench),
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints a manual page, in roff.
    Man(ManArgs),
}

/// Name of the command that other elver commands start, which is none of the user's.
pub(crate) const WORKER: &str = "worker";

/// Does what another elver command tells it.
#[derive(Debug, Parser)]
pub(crate) struct Worker {
    #[command(flatten)]
    pub(crate) args: WorkerArgs,
}

const MAN_EXAMPLES: &str = "\
Examples:
  elver man | man -l -
      the page of elver itself
  elver man bench connect | man -l -
      the page of a command
  elver man --dir /usr/local/share/man/man1
      all pages, as files";

#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The command whose page is wanted, such as `bench connect`; by default elver's own.
    #[arg(conflicts_with = "dir")]
    pub(crate) command: Vec<String>,
    /// Write the pages of all commands into this directory instead.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PerfCommand {
    #[command(subcommand)]
    pub(crate) command: Perf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Perf {
    /// Serves clients, one after the other, until it is stopped.
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

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Address of the device; clients connect to it. On a frame link --local is the device's, and
    /// this is the exchange's alone.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) bind: IpAddr,
    /// TCP port for the exchange of addresses and keys.
    #[arg(long, default_value_t = crate::perf::EXCHANGE_PORT)]
    pub(crate) port: u16,
    /// Where to wait for the exchange over TCP, if not at --bind and --port. It always runs over
    /// this host's network, also where the device is on a frame link.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) exchange: Option<SocketAddr>,
    /// Serve one client, then end.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// Address of the server. With --peer it may be missing: then we are the server.
    #[arg(required_unless_present = "peer")]
    pub(crate) server: Option<IpAddr>,
    /// Whose program is at the other end, if it is not `elver perf`.
    #[arg(long, value_enum)]
    pub(crate) peer: Option<Peer>,
    /// Messages of a test with --peer, which --duration does not bound; by default as many as the
    /// peer's own program sends.
    #[arg(long, requires = "peer", value_parser = value_parser!(u32).range(5..=20_000_000))]
    pub(crate) iters: Option<u32>,
    /// Address of our own device; by default the one that the route to the server gives.
    #[arg(long)]
    pub(crate) bind: Option<IpAddr>,
    /// TCP port of the server.
    #[arg(long, default_value_t = crate::perf::EXCHANGE_PORT)]
    pub(crate) port: u16,
    /// Where the server waits for the exchange over TCP, if not at its address and --port. It
    /// always runs over this host's network, also where the device is on a frame link.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) exchange: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// `write --mode async` with ib_write_bw, `read` with ib_read_lat and `read --mode async` with
    /// ib_read_bw, `send` with ib_send_lat; `elver perftest` has more of its options.
    Perftest,
}

#[derive(Debug, Args)]
pub(crate) struct PairArgs {
    /// The operation.
    pub(crate) op: Op,
    /// Where the two ends are.
    #[arg(long, value_enum, default_value_t = Placement::Process)]
    pub(crate) placement: Placement,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// What is measured.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadArgs {
    /// Transport service.
    #[arg(long, value_enum, default_value_t = Transport::Rc)]
    pub(crate) transport: Transport,
    /// Bytes of a message.
    #[arg(long, default_value_t = 8)]
    pub(crate) size: u32,
    /// One operation at a time for latency, or many for rate.
    #[arg(long, value_enum, default_value_t = Mode::Sync)]
    pub(crate) mode: Mode,
    /// Operations outstanding in async mode.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) depth: u32,
    /// Operations posted in one call in async mode; the last of them is signalled.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) batch: u32,
    /// Seconds to measure for.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) duration: f64,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; by default the largest that both ends carry.
    #[arg(long)]
    pub(crate) mtu: Option<u32>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a device is opened and driven.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// What a thread does while it waits.
    #[arg(long, value_enum, default_value_t = IdleMode::Spin)]
    pub(crate) idle: IdleMode,
    /// Do not let the kernel cut and join trains of packets.
    #[arg(long)]
    pub(crate) no_offload: bool,
    /// Drop this share of the packets that arrive, in percent, to see how loss is borne.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) loss: f64,
    /// UDP port that packets go to and come from, at both ends. RoCEv2's own is 4791, which the
    /// kernel's rdma_rxe takes for itself where it is loaded.
    #[arg(long, default_value_t = UDP_PORT, value_parser = value_parser!(u16).range(1..))]
    pub(crate) udp_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdleMode {
    /// Look again at once.
    Spin,
    /// Let other threads run.
    Yield,
    /// Sleep until a packet comes.
    Sleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    Read,
    Write,
    WriteImm,
    Send,
    FetchAdd,
    CmpSwp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    Rc,
    Uc,
    Ud,
    Dc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    Sync,
    Async,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Placement {
    /// Two QPs of one device: copies from MR to MR.
    Process,
    /// Two devices on two loopback addresses: packets through real sockets.
    Loopback,
    /// Two devices in two network namespaces joined by a veth: packets between hosts. Needs root.
    Netns,
    /// Against a server elsewhere.
    #[value(skip)]
    Remote,
}

const PINGPONG_EXAMPLES: &str = "\
Examples:
  elver pingpong rc -c               on one host, and on another, whose kernel has rdma_rxe:
  ibv_rc_pingpong -g 1 -c 192.0.2.1
      the original as client: 1,000 messages of 4 KB there and back, every byte looked at here
  ibv_ud_pingpong -g 1               there, and here:
  elver pingpong ud 192.0.2.2
      the original as server
  elver pingpong uc --bind 127.0.0.1 and beside it:
  elver pingpong uc 127.0.0.1 --bind 127.0.0.2
      both ends are ours

The two ends do not tell each other of their options: give both the same -s, -m and -n.";

/// Plays one end of rdma-core's ping-pongs: the server without an address, the client with one.
#[derive(Debug, Args)]
#[command(after_help = PINGPONG_EXAMPLES)]
pub(crate) struct PingpongArgs {
    /// Transport service, and so the program at the other end.
    pub(crate) transport: PeerTransport,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// Bytes of a message; by default 4096, or 1024 for ud.
    #[arg(short, long)]
    pub(crate) size: Option<u32>,
    /// Path MTU in bytes; for ud the interface gives it.
    #[arg(short, long, default_value_t = 1024)]
    pub(crate) mtu: u32,
    /// Receives posted at a time.
    #[arg(short, long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..=8192))]
    pub(crate) rx_depth: u32,
    /// Messages each way.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iters: u32,
    /// Sleep while waiting, instead of polling.
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Taken as the originals take it, and without effect: our device has one GID, its address.
    #[arg(short, long)]
    pub(crate) gid_idx: Option<u8>,
    /// Compare every byte of every message with what the originals' -c sends.
    #[arg(short, long)]
    pub(crate) chk: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

const PERFTEST_EXAMPLES: &str = "\
Examples:
  elver perftest write-bw            on one host, and on another, whose kernel has rdma_rxe:
  ib_write_bw -F 192.0.2.1
      the original WRITEs into our memory and tells us what it measured
  ib_send_lat -F -s 64               there, and here:
  elver perftest send-lat 192.0.2.2 -s 64
      the original as server of a ping-pong
  elver perftest read-lat --bind 127.0.0.1   and beside it:
  elver perftest read-lat 127.0.0.1 --bind 127.0.0.2
      both ends are ours

The two ends agree on the path MTU, and not on the rest: give both the same operation, -s, -n and
-c. `elver perf` measures more, between two ends of ours.";

/// Plays one end of a perftest program: the server without an address, the client with one.
#[derive(Debug, Args)]
#[command(after_help = PERFTEST_EXAMPLES)]
pub(crate) struct PerftestArgs {
    /// The test.
    pub(crate) test: PeerTest,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// Transport service; perftest takes it in capitals.
    #[arg(short, long, value_enum, ignore_case = true, default_value_t = PeerTransport::Rc)]
    pub(crate) connection: PeerTransport,
    /// Bytes of a message; by default 65536 for a rate and 2 for a latency.
    #[arg(short, long)]
    pub(crate) size: Option<u32>,
    /// Messages; by default 5000 for write-bw and 1000 else.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(5..=20_000_000))]
    pub(crate) iters: Option<u32>,
    /// Path MTU in bytes; by default the largest that both ends carry.
    #[arg(short, long)]
    pub(crate) mtu: Option<u32>,
    /// Operations outstanding in a test of the rate.
    #[arg(short, long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) tx_depth: u32,
    /// Receives posted ahead in send-lat.
    #[arg(
        short,
        long,
        default_value_t = crate::perf::PERFTEST_RX_DEPTH,
        value_parser = value_parser!(u32).range(1..=8192)
    )]
    pub(crate) rx_depth: u32,
    /// Taken as perftest takes it, and without effect: our device has one GID, its address.
    #[arg(short = 'x', long)]
    pub(crate) gid_index: Option<u8>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the other end is, and how long we wait for it.
#[derive(Clone, Debug, Args)]
pub(crate) struct PeerArgs {
    /// Address of the server; without it we are the server.
    pub(crate) server: Option<IpAddr>,
    /// Address of our device; by default the one that the route to the server gives, or that the
    /// client reached us at.
    #[arg(long)]
    pub(crate) bind: Option<IpAddr>,
    /// TCP port of the exchange.
    #[arg(short, long, default_value_t = crate::perf::EXCHANGE_PORT)]
    pub(crate) port: u16,
    /// Seconds that a server waits for its client; by default until one comes.
    #[arg(long)]
    pub(crate) wait: Option<f64>,
    /// Seconds of silence after which the other end counts as lost.
    #[arg(long, default_value_t = crate::perf::PERFTEST_SILENCE)]
    pub(crate) timeout: f64,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PeerTransport {
    Rc,
    Uc,
    Ud,
}

/// A program of perftest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PeerTest {
    /// ib_write_bw: the client WRITEs.
    #[value(aliases = ["write_bw", "ib_write_bw"])]
    WriteBw,
    /// ib_read_bw: the client READs.
    #[value(aliases = ["read_bw", "ib_read_bw"])]
    ReadBw,
    /// ib_read_lat: the client READs, one at a time.
    #[value(aliases = ["read_lat", "ib_read_lat"])]
    ReadLat,
    /// ib_send_lat: SENDs back and forth.
    #[value(aliases = ["send_lat", "ib_send_lat"])]
    SendLat,
}

#[derive(Debug, Args)]
pub(crate) struct DevinfoArgs {
    /// Address of the device.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) address: IpAddr,
    #[command(flatten)]
    pub(crate) link: LinkArgs,
    /// Show every capability.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Show the counters of the devices that are open in any process of this user.
    #[arg(long)]
    pub(crate) counters: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// The file to write; with two devices the second one's stands beside it.
    #[arg(short = 'w', long = "write")]
    pub(crate) file: PathBuf,
    /// The command to run, such as `perf pair read --placement loopback`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// Networks of RNICs: loss, duplication, reordering, corruption, partitions, crashes.
    Rnic(SimRnicArgs),
    /// Whole nodes: clients that connect, move data and die, a registry, meta servers, crashes.
    Node(SimNodeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SimRnicArgs {
    /// Plant a bug; the command succeeds only if the model catches it.
    #[arg(long)]
    pub(crate) canary: Option<elver_sim::Canary>,
    /// Use these transports alone: rc, uc, ud, dc.
    #[arg(long, value_delimiter = ',')]
    pub(crate) transport: Vec<elver_sim::Transport>,
    #[command(flatten)]
    pub(crate) seeds: SeedArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SimNodeArgs {
    /// Plant a bug; the command succeeds only if the model catches it.
    #[arg(long)]
    pub(crate) canary: Option<elver_nodesim::Canary>,
    #[command(flatten)]
    pub(crate) seeds: SeedArgs,
}

/// Which seeds a simulation runs, and what it tells of them.
#[derive(Debug, Args)]
pub(crate) struct SeedArgs {
    /// First seed, or `random`: one of the operating system's, so that the seeds have most likely
    /// never run before. It is printed.
    #[arg(long, default_value = "1", value_parser = first_seed)]
    pub(crate) seed: u64,
    /// How many seeds to run, counting up.
    #[arg(long, default_value_t = 100)]
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
    #[arg(long)]
    pub(crate) jobs: Option<usize>,
    /// Run all seeds, also after a failure.
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Show the whole trace of a failure.
    #[arg(long)]
    pub(crate) trace: bool,
    /// Print one JSON object instead of a table.
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

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// The RNIC against bare UDP, sendto and TCP in the same run.
    Rnic(BenchRnicArgs),
    /// Connecting: VQPs, their rivals and TCP, beside one 8-byte READ.
    Connect(ConnectArgs),
    /// READ, WRITE and SEND through VQPs, beside plain QPs on the same kind of device.
    Data(DataArgs),
    /// A message and its answer, one at a time and many under way.
    Echo(EchoArgs),
    /// LITE's data path beside VQPs, by the number of threads.
    Lite(LiteArgs),
    /// The calls of the control path that ask nobody.
    Calls(CallsArgs),
    /// All connections among many workers, through VQPs and their rivals.
    Mesh(MeshArgs),
    /// Messages that are copied, beside those that the receiver reads from where they lie.
    ZeroCopy(ZeroCopyArgs),
    /// What each part of the way adds to one 8-byte READ.
    Factors(FactorsArgs),
    /// READs to many nodes by the number of shared DC QPs, in virtual time.
    Pool(PoolArgs),
    /// Memory of connections by peers and by VQPs.
    Memory(MemoryArgs),
    /// Many connects at once to one node.
    Storm(StormArgs),
    /// The high class of VQPs beside a flood of the low class.
    Qos(QosArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BenchRnicArgs {
    /// Repetitions of each measurement, ours and the baseline's in turn.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 0.5)]
    pub(crate) duration: f64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
