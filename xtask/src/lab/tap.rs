//! A network namespace of our own with a tap device in it: there a host program talks to a guest through ordinary
//! sockets, and nobody needs privileges for it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

use super::addresses::{HOST_ADDRESS, guest_address, guest_mac};
use super::host;
use super::signals::INTERRUPTED;

pub const NAME: &str = "tap0";

/// How long the part in the namespace may take to end its guests when it is asked to end.
const LAST_GRACE: Duration = Duration::from_secs(10);

/// Runs this program again in a user and a network namespace, and waits for its end, no longer than `patience`.
pub fn run_inside(arguments: &[&str], patience: Duration) -> Result<()> {
    host::need(host::TAP)?;
    ensure!(
        Path::new("/dev/net/tun").exists(),
        "this machine has no /dev/net/tun; get it with: modprobe tun (in Docker: --device /dev/net/tun)"
    );
    let myself = std::env::current_exe().context("cannot find this program's own path")?;
    let mut child = host::command("unshare")
        .args(namespaces()?)
        .arg(myself)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .context("cannot run unshare")?;
    let deadline = Instant::now() + patience;
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "the part in the network namespace ended with {status}");
            return Ok(());
        }
        // It ends its guests itself when it is asked to end.
        if asked.is_none() && (Instant::now() > deadline || INTERRUPTED.load(Ordering::Relaxed)) {
            asked = Some(Instant::now());
            interrupt(&child, Signal::TERM);
        }
        if asked.is_some_and(|asked| asked.elapsed() > LAST_GRACE) {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("the part in the network namespace did not end when it was asked to");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The namespaces that this machine lets us have.
fn namespaces() -> Result<&'static [&'static str]> {
    const USER: &[&str] = &["--user", "--map-root-user", "--net", "--"];
    const ROOT: &[&str] = &["--net", "--"];
    let mut said = String::new();
    for arguments in [USER, ROOT] {
        let tried = host::command("unshare").args(arguments).arg("true").output()?;
        if tried.status.success() {
            return Ok(arguments);
        }
        said += String::from_utf8_lossy(&tried.stderr).trim();
    }
    anyhow::bail!(
        "this machine refuses user namespaces ({said}); allow them with: sysctl kernel.unprivileged_userns_clone=1 \
         (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0; Docker: --security-opt seccomp=unconfined), \
         or run as root"
    )
}

/// Makes the tap device, in the namespace.
pub fn set_up(mtu: u32) -> Result<()> {
    let mtu = mtu.to_string();
    let address = format!("{HOST_ADDRESS}/24");
    let commands: [&[&str]; 4] = [
        &["link", "set", "lo", "up"],
        &["tuntap", "add", "dev", NAME, "mode", "tap"],
        &["addr", "add", &address, "dev", NAME],
        &["link", "set", NAME, "mtu", &mtu, "up"],
    ];
    for arguments in commands {
        host::output(host::command("ip").args(arguments))?;
    }
    // The guest is known, so that nobody waits for address resolution before it is up.
    let neighbour = [guest_address(0), guest_mac(0)];
    let [address, mac] = &neighbour;
    host::output(host::command("ip").args(["neigh", "add", address, "lladdr", mac, "dev", NAME]))?;
    Ok(())
}

/// A capture of the tap device by a program of the host.
pub struct Capture {
    child: Child,
}

impl Capture {
    pub fn start(path: &Path) -> Result<Capture> {
        // Not tcpdump: it wants to become another user, and a user namespace has none.
        host::need(&[("dumpcap", "wireshark-common")])?;
        let mut command = host::command("dumpcap");
        command.args(["-P", "-i", NAME, "-w"]).arg(path);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        wait_until_it_listens(&mut child)?;
        Ok(Capture { child })
    }

    pub fn stop(mut self) -> Result<()> {
        // It forgets at its end what the kernel has not handed over yet, which takes up to 250 ms.
        std::thread::sleep(Duration::from_millis(300));
        interrupt(&self.child, Signal::INT);
        let status = self.child.wait()?;
        ensure!(status.success(), "the capture ended with {status}");
        Ok(())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_until_it_listens(child: &mut Child) -> Result<()> {
    let stderr = child.stderr.take().context("the capture has no stderr")?;
    let (send, receive) = mpsc::channel();
    // Goes on reading to the end, so that the capture never waits for its reader.
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut said = Vec::new();
    while let Ok(line) = receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if line.starts_with("File: ") {
            return Ok(());
        }
        said.push(line);
    }
    anyhow::bail!("the capture of {NAME} does not start: {}", said.join("; "))
}

fn interrupt(child: &Child, signal: Signal) {
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        // Fails only when it has just ended.
        let _ = rustix::process::kill_process(pid, signal);
    }
}
