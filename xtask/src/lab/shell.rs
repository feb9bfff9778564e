//! A guest with the terminal as its console.

use std::io::IsTerminal;
use std::process::Stdio;

use anyhow::{Result, ensure};

use super::addresses::{guest_address, guest_mac};
use super::cache::Cache;
use super::config::{Config, Engine};
use super::devices::{Devices, Network};
use super::guest::Kernel;

pub fn shell(cache: &Cache, config: &Config, engine: &Engine) -> Result<()> {
    ensure!(
        std::io::stdin().is_terminal(),
        "a shell needs a terminal; what a script should do is a scenario's guest.sh"
    );
    let kernel = Kernel::build(cache, config, engine)?;
    let devices = Devices {
        memory_mb: 512,
        numa_nodes: 1,
        mtu: 1500,
        lines: None,
        network: Network::None,
        share: None,
    };
    let arguments = [
        ("engine", engine.kind.name().to_owned()),
        ("shell", "1".into()),
        ("net", "dummy".into()),
        ("ip", guest_address(0)),
        ("mac", guest_mac(0)),
        ("rdma", engine.rdma.join(",")),
    ];
    let mut command = kernel.command(&devices, &arguments)?;
    if let Some(processor) = kernel.processors(0) {
        let mut one = rustix::thread::CpuSet::new();
        one.set(processor);
        rustix::thread::sched_setaffinity(None, &one)?;
    }
    let status = command.stdin(Stdio::inherit()).status()?;
    ensure!(status.success(), "the guest ended with {status}");
    Ok(())
}
