//! The device of an end: how it is opened, how it is driven, and on which address.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use clap::{Args, ValueEnum, value_parser};
use elver_console::Failure;
use elver_soft::{Loss, SoftConfig, SoftDevice, UDP_PORT};

/// TCP port of the exchange, perftest's own.
pub const EXCHANGE_PORT: u16 = 18_515;
/// Seed of `--loss`: the same packets are dropped in every run.
const LOSS_SEED: u64 = 0x5eed;

/// How a device is opened and driven.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// What a thread does while it waits.
    #[arg(long, value_enum, default_value_t = IdleMode::Spin)]
    pub idle: IdleMode,
    /// Do not let the kernel cut and join trains of packets.
    #[arg(long)]
    pub no_offload: bool,
    /// Drop this share of the packets that arrive, in per cent, to see how loss is borne: "1%", "0.01%".
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = per_cent)]
    pub loss: f64,
    /// UDP port that packets go to and come from, at both ends. RoCEv2's own is 4791, which the
    /// kernel's rdma_rxe takes for itself where it is loaded.
    #[arg(long, default_value_t = UDP_PORT, value_parser = value_parser!(u16).range(1..))]
    pub udp_port: u16,
}

/// A share in per cent, of which a packet of a million can be told.
fn per_cent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse() {
        Ok(share) if share == 0.0 || (0.0001..=100.0).contains(&share) => Ok(share),
        _ => Err("give per cent from 0.0001 to 100, or 0, as in 1% or 0.01%".to_string()),
    }
}

/// What a thread does while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdleMode {
    /// Look again at once.
    Spin,
    /// Let other threads run.
    Yield,
    /// Sleep until a packet comes.
    Sleep,
}

/// A device's configuration as the arguments have it, recording to `capture` if there is one.
pub fn soft_config(
    mut config: SoftConfig,
    args: &DeviceArgs,
    capture: Option<&Path>,
) -> SoftConfig {
    config.rnic.udp_port = args.udp_port;
    config.gso = !args.no_offload;
    config.gro = !args.no_offload;
    config.capture = capture.map(Path::to_path_buf);
    if args.loss > 0.0 {
        let per_million = (args.loss * 10_000.0).round() as u32;
        config.faults.loss = Some(Loss { per_million, seed: LOSS_SEED });
    }
    config
}

/// Waits a moment in the way that was asked for.
pub fn idle(device: &mut SoftDevice, mode: IdleMode, empty: u32) {
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

/// The address that the route to `server` starts from.
///
/// # Errors
///
/// There is no route; [`Failure::Unusable`] for an address of this host's own.
pub fn own_address(server: IpAddr) -> Result<IpAddr, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_in_per_cent_and_none_is_nothing_else() {
        for (text, share) in [("0", 0.0), ("1%", 1.0), ("0.01 %", 0.01), ("100", 100.0)] {
            assert_eq!(per_cent(text), Ok(share), "{text}");
        }
        for wrong in ["101", "-5", "nan", "0.00001%", "%", "a", "1%%"] {
            assert!(per_cent(wrong).is_err(), "{wrong}");
        }
    }
}
