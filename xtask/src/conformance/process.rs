//! Programs over the library, each for a bounded time.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The longest that a process may take, in seconds: `timeout` ends it, and all that it started.
const LIMIT: &str = "100";
/// The longest that a client tries to reach its server.
const MEETING: Duration = Duration::from_secs(30);

/// Where `elver run` is.
pub(super) struct Runner {
    elver: PathBuf,
}

/// How a process ended, and all that it said.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) said: String,
}

/// A process that was started.
struct Started {
    child: Child,
    /// Files and not pipes: nobody has to read while it runs.
    output: std::fs::File,
}

impl Runner {
    /// Of what was built for release.
    pub(super) fn new(target: &Path) -> Result<Runner> {
        let elver = target.join("release/elver");
        let library = target.join("release/lib/elver/libibverbs.so.1");
        for needed in [&elver, &library] {
            ensure!(
                needed.is_file(),
                "there is no {}: run `cargo build --release --bin elver` and `cargo xtask preload`",
                needed.display()
            );
        }
        Ok(Runner { elver })
    }

    /// Runs a program until it ends.
    pub(super) fn alone(&self, words: &[&str], at: &Path, env: &[(&str, &str)]) -> Result<Ended> {
        self.start(words, at, env)?.end()
    }

    /// Runs a server and its client, which tries again until the server is ready or has ended.
    pub(super) fn pair(&self, server: &[&str], client: &[&str], at: &Path) -> Result<[Ended; 2]> {
        let mut serving = self.start(server, at, &[])?;
        let begun = Instant::now();
        loop {
            let over = serving.child.try_wait()?.is_some() || begun.elapsed() > MEETING;
            let ended = self.alone(client, at, &[])?;
            if over || ended.status.success() {
                return Ok([serving.end()?, ended]);
            }
        }
    }

    fn start(&self, words: &[&str], at: &Path, env: &[(&str, &str)]) -> Result<Started> {
        let output = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC)
            .context("no file for output")?;
        let output = std::fs::File::from(output);
        let mut command = Command::new("timeout");
        command.args(["-k", "2", LIMIT]).arg(&self.elver).args(["run", "--"]).args(words);
        command.current_dir(at).envs(env.iter().copied()).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child = command.spawn().with_context(|| format!("cannot run {}", words.join(" ")))?;
        Ok(Started { child, output })
    }
}

impl Started {
    fn end(mut self) -> Result<Ended> {
        let status = self.child.wait()?;
        let mut bytes = Vec::new();
        self.output.rewind()?;
        self.output.read_to_end(&mut bytes)?;
        Ok(Ended { status, said: String::from_utf8_lossy(&bytes).into_owned() })
    }
}
