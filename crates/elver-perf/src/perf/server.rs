//! The end that is read from, written and sent to.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use elver_console::{Failure, say};
use elver_soft::{SoftConfig, SoftDevice};
use elver_testbed::pair::Client;
use elver_verbs::Device;
use serde_json::json;

use crate::device::{self, DeviceArgs, IdleMode};
use crate::link::LinkArgs;
use crate::perf::endpoint::{Endpoint, Role};
use crate::perf::exchange::{Done, Exchange, Hello, Summary, VERSION, Welcome};
use crate::perf::load::{Load, LoadArgs, Mode};

/// How often a waiting server looks for clients while its device is on a frame link, at least, and
/// rounds of the device between two looks, at most.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(5);
const ROUNDS_PER_LOOK: u32 = 64;
/// How often the exchange is looked at while the device runs.
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(5);
/// Rounds between two looks at the clock.
const ROUNDS: u32 = 1024;

/// What `elver perf server` is asked for.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Address of the device; clients connect to it. On a frame link --local is the device's, and
    /// this is the exchange's alone.
    #[arg(long, default_value = "127.0.0.1")]
    pub bind: IpAddr,
    /// TCP port for the exchange of addresses and keys.
    #[arg(long, default_value_t = device::EXCHANGE_PORT)]
    pub port: u16,
    /// Where to wait for the exchange over TCP, if not at --bind and --port. It always runs over
    /// this host's network, also where the device is on a frame link.
    #[arg(long, value_name = "ADDR:PORT")]
    pub exchange: Option<SocketAddr>,
    /// Serve one client, then end.
    #[arg(long)]
    pub once: bool,
    /// Print a line of JSON for each client, with what arrived or the error.
    #[arg(long)]
    pub json: bool,
    /// What the device's packets travel over.
    #[command(flatten)]
    pub link: LinkArgs,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Runs `elver perf server`.
pub fn run(args: &ServerArgs, capture: Option<&Path>) -> Result<(), Failure> {
    let base = match args.link.open()? {
        Some(link) => SoftConfig::for_frames(link),
        None => SoftConfig::for_address(args.bind),
    };
    let mut device = SoftDevice::open(device::soft_config(base, &args.device, capture))?;
    let at = args.exchange.unwrap_or(SocketAddr::new(args.bind, args.port));
    let listener = listen(at)?;
    eprintln!("serving {} on {at}; end with ctrl-c", device.address());
    loop {
        let (stream, peer) = accept(&listener, &mut device)?;
        match serve_client(&mut device, stream, peer, args.device.idle) {
            Ok(Summary { received, retransmits }) if args.json => {
                let client = peer.to_string();
                let told =
                    json!({ "client": client, "received": received, "retransmits": retransmits });
                say!("{told}");
            }
            Ok(summary) => {
                eprintln!("client done: {} messages arrived", summary.received);
            }
            Err(error) if args.once => return Err(error.into()),
            Err(error) if args.json => {
                say!("{}", json!({ "client": peer.to_string(), "error": format!("{error:#}") }));
            }
            Err(error) => eprintln!("elver: {error:#}"),
        }
        if args.once {
            return Ok(());
        }
    }
}

fn listen(at: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(at).with_context(|| format!("cannot listen on TCP {at}"))
}

/// Waits for a client. A device on a frame link answers for its address meanwhile: nobody else does.
fn accept(listener: &TcpListener, device: &mut SoftDevice) -> Result<(TcpStream, SocketAddr)> {
    if device.frame_counters().is_none() {
        return listener.accept().context("accept");
    }
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(false)?;
                return Ok((stream, peer));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Not for ever: a busy link must not keep clients waiting.
                for _ in 0..ROUNDS_PER_LOOK {
                    if !device.progress() {
                        break;
                    }
                }
                device.wait(ACCEPT_INTERVAL)?;
            }
            Err(error) => return Err(error).context("accept"),
        }
    }
}

/// Serves the client of a pair.
pub fn serve_once(
    mut device: SoftDevice,
    at: SocketAddr,
    idle: IdleMode,
    client: &Client,
) -> Result<Summary> {
    let listener = listen(at)?;
    client.begin();
    let (stream, peer) = client.accept(&listener)?;
    serve_client(&mut device, stream, peer, idle)
}

fn serve_client(
    device: &mut SoftDevice,
    stream: TcpStream,
    peer: SocketAddr,
    idle: IdleMode,
) -> Result<Summary> {
    let mut exchange = Exchange::over(stream, peer)?;
    let hello: Hello = exchange.receive()?;
    let mut endpoint = match open(device, &hello) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            exchange.send(&Welcome::Refused(format!("{error:#}")))?;
            return Err(error);
        }
    };
    let before = device.counters().retransmits;
    let served = endpoint
        .offer(device)
        .and_then(|offer| exchange.send(&Welcome::Offer(offer)))
        .and_then(|()| serve(device, &mut endpoint, &mut exchange, idle));
    let summary = Summary {
        received: endpoint.received,
        retransmits: device.counters().retransmits - before,
    };
    endpoint.close(device)?;
    served?;
    exchange.send(&summary)?;
    Ok(summary)
}

fn open(
    device: &mut SoftDevice,
    hello: &Hello,
) -> Result<Endpoint<<SoftDevice as Device>::Memory>> {
    anyhow::ensure!(hello.version == VERSION, "client speaks version {}", hello.version);
    let args = LoadArgs {
        transport: hello.transport,
        size: hello.size,
        mode: Mode::Async,
        depth: hello.depth.clamp(1, 8192),
        batch: 1,
        duration: 1.0,
        mtu: hello.mtu,
        json: false,
    };
    let load = Load::new(hello.op, &args).map_err(|failure| match failure {
        Failure::Failed(error) => error,
        Failure::Unusable(what) | Failure::HandedOn { what, .. } => anyhow::anyhow!(what),
    })?;
    let mut endpoint = Endpoint::open(device, &load, Role::Server)?;
    endpoint.connect(device, &hello.offer)?;
    Ok(endpoint)
}

/// Drives the device until the client says that it is done, or is gone.
fn serve(
    device: &mut SoftDevice,
    endpoint: &mut Endpoint<<SoftDevice as Device>::Memory>,
    exchange: &mut Exchange,
    idle: IdleMode,
) -> Result<()> {
    let mut looked = Instant::now();
    let (mut rounds, mut empty) = (0u32, 0u32);
    loop {
        // Polling an empty CQ drives the device.
        let busy = endpoint.serve(device)? > 0;
        empty = if busy { 0 } else { empty.saturating_add(1) };
        device::idle(device, idle, empty);
        rounds += 1;
        if (rounds >= ROUNDS || idle == IdleMode::Sleep) && looked.elapsed() >= EXCHANGE_INTERVAL {
            rounds = 0;
            looked = Instant::now();
            if exchange.is_readable()? {
                let _: Done = exchange.receive()?;
                return Ok(());
            }
        }
    }
}
