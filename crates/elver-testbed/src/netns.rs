//! Network namespaces without names: each lives as long as its threads and processes, so that
//! nothing is left behind however they end.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::thread::UnshareFlags;

/// MTU of a veth: a path MTU of 4,096 fits.
pub const VETH_MTU: &str = "9000";

/// Moves the calling thread, which must hold no sockets yet, into a namespace of its own.
pub fn unshare() -> Result<()> {
    // SAFETY: only the calling thread changes its network namespace, and it holds no sockets yet.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .context("cannot make a network namespace")
}

/// Gives an interface of the calling thread's namespace its address, and brings it up with the
/// loopback.
pub fn set_up(interface: &str, address: IpAddr) -> Result<()> {
    ip(&["link", "set", "lo", "up"], &[])?;
    ip(&["address", "add", &format!("{address}/24"), "dev", interface], &[])?;
    ip(&["link", "set", interface, "up"], &[])
}

/// Gives an interface of the calling thread's namespace every address of the /24 of `first`.
pub fn stand_for_hosts(first: Ipv4Addr, interface: &str) -> Result<()> {
    let [a, b, c, _] = first.octets();
    let line = |d: u8| format!("address add {a}.{b}.{c}.{d}/32 dev {interface}\n");
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run `ip`; install iproute2")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all((1..u8::MAX).map(line).collect::<String>().as_bytes())?;
    }
    ensure!(child.wait()?.success(), "`ip -batch` could not add addresses to {interface}");
    Ok(())
}

/// Sends what is for these addresses to the one that stands for them.
pub fn reach_hosts(first: Ipv4Addr, by: IpAddr) -> Result<()> {
    ip(&["route", "add", &prefix(first), "via", &by.to_string()], &[])
}

fn prefix(first: Ipv4Addr) -> String {
    let [a, b, c, _] = first.octets();
    format!("{a}.{b}.{c}.0/24")
}

/// Runs iproute2 in the calling thread's namespace.
pub fn ip(arguments: &[&str], more: &[&str]) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .args(more)
        .output()
        .context("cannot run `ip`; install iproute2")?;
    ensure!(
        output.status.success(),
        "`ip {} {}` failed: {}",
        arguments.join(" "),
        more.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
