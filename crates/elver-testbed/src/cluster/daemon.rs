//! One `elverd`.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open};

use crate::cluster::host::Host;
use crate::cluster::spec::NodeSpec;
use crate::programs::die_with_parent;
use crate::scratch::Scratch;

/// How long a daemon has to end by itself.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// Bytes of a daemon's last words that are shown.
const WORDS_MAX: u64 = 4096;

/// A running daemon; dropping it ends it.
pub struct Daemon {
    name: &'static str,
    child: Child,
    /// Readable once it has ended.
    ended: OwnedFd,
    /// Where it says that it is ready, as systemd's services do.
    notify: UnixDatagram,
    log: PathBuf,
}

impl Daemon {
    /// Starts a daemon on `host`. It ends with this process, however that ends.
    pub fn start(
        elverd: &Path,
        directory: &Scratch,
        index: usize,
        spec: &NodeSpec,
        configuration: &str,
        host: &Host,
    ) -> Result<Daemon> {
        let place = |what: &str| directory.path().join(format!("node{index}.{what}"));
        let (file, log, ready) = (place("toml"), place("log"), place("ready"));
        fs::write(&file, configuration)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let notify = UnixDatagram::bind(&ready).context("cannot make a socket")?;
        notify.set_nonblocking(true)?;
        let words = File::create(&log)?;
        let mut command = Command::new(elverd);
        command
            .arg("--config")
            .arg(&file)
            .env("NOTIFY_SOCKET", &ready)
            .env_remove("ELVER_SOCKET")
            .env_remove("LISTEN_FDS")
            .stdin(Stdio::null())
            .stdout(words.try_clone()?)
            .stderr(words);
        let seat = spec.seat;
        die_with_parent(&mut command);
        let child = host.run(move || {
            // The child inherits it, and the host's thread does nothing but wait.
            seat.take();
            command.spawn()
        })?;
        let child = child.with_context(|| format!("cannot start {}", elverd.display()))?;
        let pid = rustix::process::Pid::from_child(&child);
        let ended = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
        Ok(Daemon { name: spec.name, child, ended, notify, log })
    }

    /// Waits until it says that it is ready.
    pub fn wait_ready(&mut self, at_most: Duration) -> Result<()> {
        let end = Instant::now() + at_most;
        let mut message = [0; 512];
        loop {
            match self.notify.recv(&mut message) {
                Ok(len) if message[..len].split(|byte| *byte == b'\n').any(|l| l == b"READY=1") => {
                    return Ok(());
                }
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(
                    "{} was not ready within {} s{}",
                    self.name,
                    at_most.as_secs(),
                    self.last_words()
                );
            }
            let mut fds =
                [PollFd::new(&self.notify, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::try_from(left)?))?;
            if !fds[1].revents().is_empty() && fds[0].revents().is_empty() {
                let status = self.child.wait()?;
                bail!("{} ended with {status}{}", self.name, self.last_words());
            }
        }
    }

    fn last_words(&self) -> String {
        let mut text = String::new();
        if let Ok(file) = File::open(&self.log) {
            // Whatever is there, for a person.
            let _ = file.take(WORDS_MAX).read_to_string(&mut text);
        }
        if text.trim().is_empty() { String::new() } else { format!(":\n{}", text.trim_end()) }
    }

    fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM)?;
        let mut fds = [PollFd::new(&self.ended, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::try_from(STOP_WAIT)?))? == 0 {
            self.child.kill()?;
        }
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // What the signal could not end, the end of this process does.
        let _ = self.stop();
    }
}
