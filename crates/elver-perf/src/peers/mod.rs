//! Programs of others at the far end: what ping-pong and perftest have in common.
//!
//! Both exchange addresses over TCP and then move data between one QP at each end. The server has
//! no address of its own to be told: its device opens on the one that the client reached it at.

mod args;
mod qp;
mod talk;

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver_console::Failure;
use elver_soft::{SoftConfig, SoftDevice};
use elver_verbs::{Cq, Device, Mtu, Wc, WcStatus};

pub use args::{PeerArgs, PeerTransport, SILENCE};
pub(crate) use qp::{Connection, PeerQp, Plan, RECV, Remote, SEND};
use talk::Talk;

use crate::device::{self, IdleMode};

/// Which end we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Client,
    Server,
}

/// Our device and the TCP connection to the other end.
pub(crate) struct Session {
    pub(crate) device: SoftDevice,
    pub(crate) role: Role,
    talk: Talk,
    idle: IdleMode,
    silence: Duration,
}

impl Session {
    /// Connects to the server, or waits for a client.
    pub(crate) fn open(args: &PeerArgs, capture: Option<&Path>) -> Result<Session, Failure> {
        let silence = seconds("--timeout", args.timeout)?;
        let wait = args.wait.map(|wait| seconds("--wait", wait)).transpose()?;
        let (role, talk, own) = match args.server {
            Some(server) => {
                let own = match args.bind {
                    Some(own) => own,
                    None => device::own_address(server)?,
                };
                (Role::Client, Talk::connect((server, args.port).into(), silence)?, own)
            }
            None => {
                let talk = Talk::accept(args.bind, args.port, wait, silence)?;
                let own = talk.own_address()?;
                (Role::Server, talk, own)
            }
        };
        let config = SoftConfig::for_address(own);
        let device = SoftDevice::open(device::soft_config(config, &args.device, capture))?;
        Ok(Session { device, role, talk, idle: args.device.idle, silence })
    }

    /// Sends a message of the exchange in one piece: the originals read it in one piece.
    pub(crate) fn send(&mut self, bytes: &[u8], what: &str) -> Result<()> {
        self.talk.send(bytes, what)
    }

    /// Waits for a message of the exchange, and drives the device meanwhile: the peer may be at
    /// work on our memory. The wait ends when nothing was heard, here or there, for too long.
    pub(crate) fn receive(&mut self, bytes: &mut [u8], what: &str) -> Result<()> {
        let Session { device, talk, idle, silence, .. } = self;
        let mut empty = 0u32;
        talk.receive(bytes, what, *silence, || {
            let heard = device.counters().rx_packets;
            device.progress();
            let busy = device.counters().rx_packets != heard;
            empty = if busy { 0 } else { empty.saturating_add(1) };
            device::idle(device, *idle, empty);
            busy
        })
    }

    /// Polls `cq` until something completes. `doing` tells what stood still if nothing does.
    pub(crate) fn poll(
        &mut self,
        cq: Cq,
        wcs: &mut [Wc],
        doing: impl Fn() -> String,
    ) -> Result<usize> {
        /// Empty polls between two looks at the clock.
        const LOOK: u32 = 256;
        let mut empty = 0u32;
        let mut since: Option<Instant> = None;
        loop {
            let found = self.device.poll_cq(cq, wcs)?;
            if found > 0 {
                for wc in &wcs[..found] {
                    ensure!(wc.status == WcStatus::Success, "{}: {}", doing(), wc.status);
                }
                return Ok(found);
            }
            empty = empty.saturating_add(1);
            device::idle(&mut self.device, self.idle, empty);
            if empty.is_multiple_of(LOOK)
                && since.get_or_insert_with(Instant::now).elapsed() > self.silence
            {
                bail!("{}: nothing completed for {} s", doing(), self.silence.as_secs());
            }
        }
    }

    /// Drives the device a little longer, so that a peer that missed our last acknowledgement can
    /// ask for it again.
    pub(crate) fn linger(&mut self, time: Duration) -> Result<()> {
        let start = Instant::now();
        while let Some(left) = time.checked_sub(start.elapsed()) {
            self.device.progress();
            self.device.wait(left.min(Duration::from_millis(5)))?;
        }
        Ok(())
    }

    /// The largest path MTU that we may use: the one asked for, if the interface carries it.
    pub(crate) fn mtu(&self, asked: Option<u32>) -> Result<Mtu, Failure> {
        let active = self.device.query_port().active_mtu;
        let Some(bytes) = asked else { return Ok(active) };
        let mtu = Mtu::from_bytes(bytes).ok_or_else(|| {
            Failure::unusable(format!("--mtu {bytes} is none of 256, 512, 1024, 2048, 4096"))
        })?;
        if mtu > active {
            return Err(Failure::unusable(format!(
                "--mtu {bytes} is more than the interface's path MTU of {}",
                active.bytes()
            )));
        }
        Ok(mtu)
    }
}

/// The address in a GID that a peer sent.
pub(crate) fn peer_address(gid: [u8; 16], own: IpAddr) -> Result<()> {
    ensure!(
        gid != [0; 16],
        "the peer sent no GID: start it with the index of its IPv4 GID, `-g 1` with rdma_rxe"
    );
    let theirs = elver_verbs::Gid(gid).to_ip();
    ensure!(
        theirs.is_ipv4() == own.is_ipv4(),
        "the peer's GID is {theirs}, but our device is on {own}: \
         start it with the GID index of its other address (`ibv_devinfo -v` lists them)"
    );
    Ok(())
}

/// A duration from the command line.
fn seconds(option: &str, value: f64) -> Result<Duration, Failure> {
    if !(value > 0.0 && value <= 86_400.0) {
        return Err(Failure::unusable(format!(
            "{option} {value:?}: it must be above 0 and at most a day, 86400 seconds"
        )));
    }
    Ok(Duration::from_secs_f64(value))
}

/// A random PSN, 24 bits.
pub(crate) fn random_psn() -> Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("getrandom")?;
    Ok(u32::from_ne_bytes(bytes) & 0xff_ffff)
}
