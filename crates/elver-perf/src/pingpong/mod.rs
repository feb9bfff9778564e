//! `elver pingpong`: the far end of rdma-core's `ibv_rc_pingpong`, `ibv_uc_pingpong` and
//! `ibv_ud_pingpong`, or both ends.
//!
//! As in the originals, an end sends when its last send has completed and a message has come; the
//! server sends back what came. Unlike them, `--chk` looks at every byte of every message, at both
//! ends, and wipes it before the next.

mod message;

use std::net::Ipv6Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::{Args, value_parser};
use elver_console::{Failure, say};
use elver_verbs::{Device, Memory, SendFlags, SendOp, Wc};
use serde_json::json;

use crate::device::IdleMode;
use crate::peers::{
    Connection, PeerArgs, PeerQp, PeerTransport, Plan, Remote, Role, SEND, Session, peer_address,
    random_psn,
};

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
pub struct PingpongArgs {
    /// Transport service, and so the program at the other end.
    pub transport: PeerTransport,
    /// Where the other end is.
    #[command(flatten)]
    pub peer: PeerArgs,
    /// Bytes of a message; by default 4096, or 1024 for ud.
    #[arg(short, long)]
    pub size: Option<u32>,
    /// Path MTU in bytes; for ud the interface gives it.
    #[arg(short, long, default_value_t = 1024)]
    pub mtu: u32,
    /// Receives posted at a time.
    #[arg(short, long, default_value_t = 500, value_parser = value_parser!(u32).range(2..=8192))]
    pub rx_depth: u32,
    /// Messages each way.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = value_parser!(u32).range(1..))]
    pub iters: u32,
    /// Sleep while waiting, instead of polling.
    #[arg(short, long)]
    pub events: bool,
    /// Taken as the originals take it, and without effect: our device has one GID, its address.
    #[arg(short, long)]
    pub gid_idx: Option<u8>,
    /// Compare every byte of every message with what the originals' -c sends.
    #[arg(short, long)]
    pub chk: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// What every byte of a message is, but for the first of each page.
const FILL: u8 = 0x7b;
/// The first byte of each page of a message that is to be checked.
const MARK: u8 = 0;
/// What wipes a message that was checked.
const WIPED: u8 = 0xa5;
/// Bytes of a page, as the originals count them on most machines.
const PAGE: usize = 4096;
/// How long an RC end stays to acknowledge again: two of the peer's timeouts.
const LINGER: Duration = Duration::from_millis(150);

/// Runs `elver pingpong`.
///
/// # Errors
///
/// [`Failure::Unusable`] for arguments that do not go together; else a peer that is not there, says something else or
/// does not answer, or a device that fails.
pub fn run(args: &PingpongArgs, capture: Option<&Path>) -> Result<(), Failure> {
    let transport = args.transport;
    let ud = transport == PeerTransport::Ud;
    let size = args.size.unwrap_or(if ud { 1024 } else { 4096 });
    let (rx_depth, iters) = (args.rx_depth, args.iters);
    if size == 0 || size > 1 << 30 {
        return Err(Failure::unusable(format!("--size {size} is not 1 byte to 1 GiB")));
    }
    let mut peer = args.peer.clone();
    if args.events && peer.device.idle == IdleMode::Spin {
        peer.device.idle = IdleMode::Sleep;
    }
    let mut session = Session::open(&peer, capture)?;
    // The originals do not agree on the MTU over the exchange: both are told. UD has none.
    let mtu = session.mtu(if ud { None } else { Some(args.mtu) })?;
    if ud && size > mtu.bytes() {
        let most = mtu.bytes();
        return Err(Failure::unusable(format!("--size {size} is more than the MTU of {most}")));
    }
    let plan = Plan { transport, size, room: size.into(), sends: 1, receives: rx_depth };
    let mut qp = PeerQp::open(&mut session.device, &plan)?;
    let inspector = args.chk.then(|| Inspector::new(size as usize));
    if let Some(inspector) = &inspector {
        inspector.wipe(&qp)?;
    }
    qp.outbox.memory.write(0, &pattern(size as usize, args.chk))?;
    let own = Remote { qpn: qp.qpn, psn: random_psn()?, gid: session.device.query_gid(0)?.0 };
    if !args.json {
        say!("  local address:  {}", shown(&own));
    }
    let connection = Connection { mtu, psn: own.psn, rd_atomic: 1 };
    let remote = exchange(&mut session, &mut qp, &own, &connection)?;
    if !args.json {
        say!("  remote address: {}", shown(&remote));
    }
    let seconds = bounce(&mut session, &mut qp, args, &inspector)?;
    if transport.is_reliable() {
        session.linger(LINGER)?;
    }
    let retransmits = session.device.counters().retransmits;
    let bytes = u64::from(size) * u64::from(iters) * 2;
    let checked = if args.chk { iters } else { 0 };
    let (mbit, usec) = (bytes as f64 * 8.0 / 1e6 / seconds, seconds * 1e6 / f64::from(iters));
    if args.json {
        let object = json!({
            "bench": "pingpong",
            "transport": transport,
            "role": session.role,
            "size": size,
            "mtu": mtu.bytes(),
            "iters": iters,
            "bytes": bytes,
            "seconds": seconds,
            "mbit_per_s": mbit,
            "usec_per_iter": usec,
            "checked": checked,
            "retransmits": retransmits,
        });
        say!("{object}");
    } else {
        say!("{bytes} bytes in {seconds:.2} seconds = {mbit:.2} Mbit/sec");
        say!("{iters} iters in {seconds:.2} seconds = {usec:.2} usec/iter");
        if args.chk {
            say!("{checked} messages checked, every byte");
        }
    }
    Ok(())
}

/// Tells the other end of our QP and connects to its. The server connects before it answers: the
/// client sends as soon as it knows the server.
fn exchange(
    session: &mut Session,
    qp: &mut PeerQp,
    own: &Remote,
    connection: &Connection,
) -> Result<Remote> {
    let mut theirs = [0; message::LEN];
    if session.role == Role::Client {
        session.send(&message::write(own), "our address")?;
    }
    session.receive(&mut theirs, "the peer's address")?;
    let remote = message::read(&theirs)?.checked()?;
    peer_address(remote.gid, session.device.address())?;
    qp.connect(&mut session.device, &remote, connection)?;
    match session.role {
        Role::Client => session.send(message::DONE, "\"done\"")?,
        Role::Server => {
            session.send(&message::write(own), "our address")?;
            let mut done = [0; message::DONE.len()];
            session.receive(&mut done, "\"done\"")?;
            ensure!(
                &done == message::DONE,
                "the peer ended the exchange with \"{}\" instead of \"done\"",
                done.escape_ascii()
            );
        }
    }
    Ok(remote)
}

/// Sends and receives `iters` messages.
fn bounce(
    session: &mut Session,
    qp: &mut PeerQp,
    args: &PingpongArgs,
    inspector: &Option<Inspector>,
) -> Result<f64> {
    let iters = args.iters;
    let client = session.role == Role::Client;
    let (mut sent, mut received) = (0, 0);
    // The client's first send answers nothing.
    let (mut sending, mut called) = (false, client);
    let mut posted = args.rx_depth;
    let mut wcs = [Wc::default(); 2];
    let start = Instant::now();
    while sent < iters || received < iters {
        if called && !sending && sent < iters {
            if !client {
                qp.answer()?;
            }
            if let Some(inspector) = inspector {
                inspector.wipe(qp)?;
            }
            qp.post(&mut session.device, SendOp::Send, 0, SendFlags::SIGNALED)?;
            (sending, called) = (true, false);
        }
        let found = session.poll(qp.cq, &mut wcs, || {
            format!("{sent} messages sent and {received} received of {iters} each way")
        })?;
        for wc in &wcs[..found] {
            if wc.wr_id == SEND {
                sent += 1;
                sending = false;
                continue;
            }
            received += 1;
            called = true;
            if let Some(inspector) = inspector {
                inspector.inspect(qp, received)?;
            }
            posted -= 1;
            if posted <= 1 {
                qp.post_receives(&mut session.device, (args.rx_depth - posted) as usize)?;
                posted = args.rx_depth;
            }
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

/// What a message is: as the originals fill it, and as their `-c` marks it.
fn pattern(size: usize, marked: bool) -> Vec<u8> {
    let mut bytes = vec![FILL; size];
    if marked {
        bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = MARK);
    }
    bytes
}

/// Looks at messages.
struct Inspector {
    expected: Vec<u8>,
    wiped: Vec<u8>,
}

impl Inspector {
    fn new(size: usize) -> Inspector {
        Inspector { expected: pattern(size, true), wiped: vec![WIPED; size] }
    }

    fn inspect(&self, qp: &PeerQp, number: u32) -> Result<()> {
        let mut got = vec![0; self.expected.len()];
        qp.inbox.memory.read(qp.headroom, &mut got)?;
        let Some(at) = got.iter().zip(&self.expected).position(|(got, good)| got != good) else {
            return Ok(());
        };
        let (got, good) = (got[at], self.expected[at]);
        let hint = match got {
            WIPED => ": nothing was written there",
            FILL if at.is_multiple_of(PAGE) => ": give the client -c too",
            _ => "",
        };
        bail!("message {number} has {got:#04x} at byte {at} instead of {good:#04x}{hint}")
    }

    /// Wipes the inbox. Nothing may be on its way into it.
    fn wipe(&self, qp: &PeerQp) -> Result<()> {
        Ok(qp.inbox.memory.write(qp.headroom, &self.wiped)?)
    }
}

/// An address as the originals show it.
fn shown(end: &Remote) -> String {
    let gid = Ipv6Addr::from(end.gid);
    format!("LID 0x0000, QPN {:#08x}, PSN {:#08x}, GID {gid}", end.qpn, end.psn)
}
