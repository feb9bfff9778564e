//! Programs over the library, each for a bounded time.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The longest that a process may take, in seconds: `timeout` ends it, and all that it started.
const LIMIT: &str = "100";
/// The longest that a client tries to reach its server, and that somebody waits for what a program says.
const MEETING: Duration = Duration::from_secs(30);
const GLANCE: Duration = Duration::from_millis(20);
/// How long who was told to end takes for that at most.
const DISMISSAL: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 5, tv_nsec: 0 };

/// Where `elver run` is.
pub(super) struct Runner {
    elver: PathBuf,
    /// What the names have of all that is run; all, if nothing.
    only: Option<String>,
    /// Where devices tell what they count ([`super::counted`]).
    pub(super) told: PathBuf,
}

/// How a process ended, and all that it said.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) said: String,
}

/// A process that was started.
pub(super) struct Started {
    child: Child,
    /// Files and not pipes: nobody has to read while it runs.
    output: std::fs::File,
    /// The words that say where it runs.
    before: Vec<String>,
}

/// A program, and what stands around it.
#[derive(Clone, Copy, Default)]
pub(super) struct Call<'a> {
    /// The words that say where it runs: of a network namespace.
    pub(super) before: &'a [String],
    pub(super) words: &'a [&'a str],
    pub(super) env: &'a [(&'a str, &'a str)],
    /// Whether it has no device: what it moves by itself is measured.
    pub(super) bare: bool,
}

impl Runner {
    /// Of what was built for release.
    pub(super) fn new(target: &Path, only: Option<String>) -> Result<Runner> {
        let elver = target.join("release/elver");
        let library = target.join("release/lib/elver/libibverbs.so.1");
        for needed in [&elver, &library] {
            ensure!(
                needed.is_file(),
                "there is no {}: run `cargo build --release --bin elver` and `cargo xtask preload`",
                needed.display()
            );
        }
        Ok(Runner { elver, only, told: target.join("conformance-told") })
    }

    /// Whether what has this name is to be run.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }

    pub(super) fn runs_all(&self) -> bool {
        self.only.is_none()
    }

    /// Runs a program until it ends.
    pub(super) fn alone(&self, words: &[&str], at: &Path, env: &[(&str, &str)]) -> Result<Ended> {
        self.start(&Call { words, env, ..Call::default() }, at)?.end()
    }

    /// Runs a server and its client, which tries again until the server is ready or has ended.
    pub(super) fn pair(
        &self,
        server: &Call<'_>,
        client: &Call<'_>,
        at: &Path,
    ) -> Result<[Ended; 2]> {
        let mut serving = self.start(server, at)?;
        let asking = self.ask(&mut serving, client, at)?;
        Ok([serving.end()?, asking])
    }

    /// Runs a client, which tries again until its server is ready or has ended.
    pub(super) fn ask(&self, serving: &mut Started, client: &Call<'_>, at: &Path) -> Result<Ended> {
        let begun = Instant::now();
        loop {
            let over = serving.child.try_wait()?.is_some() || begun.elapsed() > MEETING;
            let ended = self.start(client, at)?.end()?;
            if over || ended.status.success() {
                return Ok(ended);
            }
        }
    }

    pub(super) fn start(&self, call: &Call<'_>, at: &Path) -> Result<Started> {
        let output = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC)
            .context("no file for output")?;
        let output = std::fs::File::from(output);
        let mut command = Command::new("timeout");
        command.args(["-k", "2", LIMIT]).args(call.before);
        if !call.bare {
            command.arg(&self.elver).args(["run", "--"]);
        }
        command.args(call.words).current_dir(at).env("XDG_RUNTIME_DIR", &self.told);
        command.envs(call.env.iter().copied()).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child =
            command.spawn().with_context(|| format!("cannot run {}", call.words.join(" ")))?;
        Ok(Started { child, output, before: call.before.to_vec() })
    }
}

/// How long processes that were started by one that has ended are waited for, in tenths of a second.
const LAST_TENTHS: u32 = 100;

impl Started {
    pub(super) fn end(mut self) -> Result<Ended> {
        let status = self.child.wait()?;
        Ok(Ended { status, said: self.said()? })
    }

    /// All that it has said so far.
    fn said(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        // Another descriptor of the same file would share its place, and the program writes there.
        let mut own = std::fs::File::open(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&self.output)
        ))?;
        own.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until it has said something, and returns what stands behind that up to the next blank.
    pub(super) fn hear(&mut self, word: &str) -> Result<String> {
        let begun = Instant::now();
        loop {
            let said = self.said()?;
            let rest = said.split_once(word).and_then(|(_, rest)| rest.split_once(['\n', ' ']));
            if let Some((found, _)) = rest {
                return Ok(found.to_string());
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > MEETING {
                bail!("it did not say {word:?} ({ended:?}), and ended so: {}", last_line(&said));
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Waits until a port of rdma_cm's for connections is listened on: each is a name of Unix sockets.
    pub(super) fn await_listener(&mut self, port: u16) -> Result<()> {
        let name = format!("@elver-rdma_cm/0106/{port}/");
        let begun = Instant::now();
        while !self.unix_sockets()?.contains(&name) {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > MEETING {
                bail!("nobody listens on port {port} ({ended:?}): {}", last_line(&self.said()?));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Those of where it runs.
    fn unix_sockets(&self) -> Result<String> {
        const LIST: &str = "/proc/net/unix";
        let Some((program, words)) = self.before.split_first() else {
            return std::fs::read_to_string(LIST).context(LIST);
        };
        let said = Command::new(program).args(words).args(["cat", LIST]).output();
        Ok(String::from_utf8_lossy(&said.context(LIST)?.stdout).into_owned())
    }

    /// It was told to end: waits for that, so that it tells what it counted, and stops it if it does not.
    pub(super) fn dismiss(mut self) -> Result<Ended> {
        if self.child.try_wait()?.is_some() {
            // Its number may be another's by now.
            return self.end();
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        let mut ends = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        if rustix::event::poll(&mut ends, Some(&DISMISSAL))? == 0 {
            return self.stop();
        }
        self.end()
    }

    /// Has it end, and what it started: it would serve for ever.
    pub(super) fn stop(mut self) -> Result<Ended> {
        // `timeout` has a group of its own.
        let group = rustix::process::Pid::from_child(&self.child);
        if self.child.try_wait()?.is_none() {
            rustix::process::kill_process_group(group, rustix::process::Signal::TERM)?;
        }
        let ended = self.end();
        // A program may be started by another that ends before it: what runs next may need its address.
        for _ in 0..LAST_TENTHS {
            if rustix::process::test_kill_process_group(group).is_err() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        ended
    }
}

/// The last line that says something.
pub(super) fn last_line(said: &str) -> &str {
    said.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing")
}
