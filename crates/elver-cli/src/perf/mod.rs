//! `elver perf`: latency and rate of verbs operations, modelled on perftest.

mod client;
mod endpoint;
mod exchange;
mod report;
mod server;
mod setup;

use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

use elver_soft::{Loss, SoftConfig, SoftDevice};

use crate::cli::{
    ClientArgs, DeviceArgs, IdleMode, LoadArgs, Mode, Op, PairArgs, Peer, PeerArgs, PeerTest,
    PeerTransport, Perf, PerftestArgs, Placement, Transport,
};
use crate::exit::Failure;
use crate::pair::{self, pin};
use crate::perftest;

pub(crate) use client::{Load, Measured};
pub(crate) use setup::connect_by_hand;

/// TCP port of the exchange, perftest's own.
pub(crate) const EXCHANGE_PORT: u16 = 18_515;
/// Seconds of silence after which perftest counts as lost, and receives posted ahead for it: what
/// `elver perftest` has by default.
pub(crate) const PERFTEST_SILENCE: f64 = 20.0;
pub(crate) const PERFTEST_RX_DEPTH: u32 = 512;
/// Seed of `--loss`: the same packets are dropped in every run.
const LOSS_SEED: u64 = 0x5eed;

/// Runs a perf command, recording to `capture` if there is one.
pub(crate) fn run(command: &Perf, capture: Option<&Path>) -> Result<(), Failure> {
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
    let load = Load::new(op, &args.load)?;
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
    let measured = client::measure_remote(config, exchange, &load, args.device.idle)?;
    report::print(&load, Placement::Remote, &measured, args.load.json)
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
            timeout: PERFTEST_SILENCE,
            device: args.device.clone(),
        },
        connection,
        size: Some(load.size),
        iters: args.iters,
        mtu: load.mtu,
        tx_depth: load.depth,
        rx_depth: PERFTEST_RX_DEPTH,
        gid_index: None,
        json: load.json,
    })
}

/// The address that the route to `server` starts from.
pub(crate) fn own_address(server: IpAddr) -> Result<IpAddr, Failure> {
    let any: IpAddr = if server.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((server, EXCHANGE_PORT))?;
    let own = socket.local_addr()?.ip();
    if own == server {
        return Err(Failure::unusable(format!(
            "{server} is this host's own address, and the server's device has it: \
             give another of this host's with --bind"
        )));
    }
    Ok(own)
}

fn run_pair(args: &PairArgs, capture: Option<&Path>) -> Result<(), Failure> {
    let load = Load::new(args.op, &args.load)?;
    let measured = measure_pair(&load, args.placement, &args.device, capture)?;
    report::print(&load, args.placement, &measured, args.load.json)
}

/// Runs both ends of a load in this process.
pub(crate) fn measure_pair(
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

pub(crate) fn soft_config(
    mut config: SoftConfig,
    args: &DeviceArgs,
    capture: Option<&Path>,
) -> SoftConfig {
    config.rnic.udp_port = args.udp_port;
    config.gso = !args.no_offload;
    config.gro = !args.no_offload;
    config.capture = capture.map(Path::to_path_buf);
    if args.loss > 0.0 {
        let per_million = (args.loss.min(100.0) * 10_000.0) as u32;
        config.loss = Some(Loss { per_million, seed: LOSS_SEED });
    }
    config
}

/// Waits a moment in the way that was asked for.
pub(crate) fn idle(device: &mut SoftDevice, mode: IdleMode, empty: u32) {
    /// Looks before the first rest.
    const SPINS: u32 = 64;
    match mode {
        IdleMode::Yield if empty > SPINS => std::thread::yield_now(),
        IdleMode::Sleep if empty > SPINS => {
            // A failed wait is a wait that ended early.
            let _ = device.wait(std::time::Duration::from_millis(1));
        }
        _ => std::hint::spin_loop(),
    }
}

impl Load {
    /// Checks a combination of arguments.
    pub(crate) fn new(op: Op, args: &LoadArgs) -> Result<Load, Failure> {
        let transport = args.transport;
        let one_sided_reply = matches!(op, Op::Read | Op::FetchAdd | Op::CmpSwp);
        let allowed = match transport {
            Transport::Rc | Transport::Dc => true,
            Transport::Uc => !one_sided_reply,
            Transport::Ud => op == Op::Send,
        };
        if !allowed {
            return Err(Failure::unusable(format!(
                "{transport:?} has no {op:?}: READ and atomics need rc or dc, WRITE rc, dc or uc"
            )));
        }
        let size = if matches!(op, Op::FetchAdd | Op::CmpSwp) { 8 } else { args.size };
        if size > 1 << 30 {
            return Err(Failure::unusable(format!("--size {size} is more than 1 GiB")));
        }
        if !(args.duration > 0.0 && args.duration <= 86_400.0) {
            let duration = args.duration;
            return Err(Failure::unusable(format!("--duration {duration} is not up to a day")));
        }
        let mtu = match args.mtu {
            None => None,
            Some(bytes) => Some(elver_verbs::Mtu::from_bytes(bytes).ok_or_else(|| {
                Failure::unusable(format!("--mtu {bytes} is none of 256, 512, 1024, 2048, 4096"))
            })?),
        };
        if transport == Transport::Ud && size > mtu.map_or(4096, |mtu| mtu.bytes()) {
            return Err(Failure::unusable(format!("a UD message of {size} bytes exceeds the MTU")));
        }
        let (depth, batch) = match args.mode {
            Mode::Sync => (1, 1),
            Mode::Async => (args.depth, args.batch.min(args.depth)),
        };
        Ok(Load {
            op,
            transport,
            size,
            mode: args.mode,
            depth,
            batch,
            duration: args.duration,
            mtu,
        })
    }
}
