//! gRPC's calls, by a program of their own (crate elver-rivals), so that what they need is not in this one.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use elver_console::Failure;
use elver_testbed::pair;
use elver_testbed::programs::die_with_parent;
use elver_testbed::sample::Sample;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::args::Stage;
use crate::running::{Running, Said};

const PORT: u16 = 50_051;
/// How long it may take to begin, and to end.
const SLACK: Duration = Duration::from_secs(20);

/// What the rival's client prints.
#[derive(serde::Deserialize)]
struct Told {
    seconds: f64,
    counts: Vec<(u64, u64)>,
}

/// A server that ends with this.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is asked of it.
pub(super) struct Calls {
    /// Calls under way.
    pub(super) in_flight: u32,
    /// Bytes of each, there and back.
    pub(super) size: usize,
    pub(super) duration: Duration,
}

impl Calls {
    /// Each end is a process on the core, and in the namespace, that our own end has.
    pub(super) fn echo(&self, stage: Stage, program: &Path) -> Result<Sample, Failure> {
        let (_, sample) = pair::run(
            stage.pair(),
            |end, client| {
                let serving = serve(program, SocketAddr::new(end.own, PORT))?;
                client.begin();
                client.wait_gone();
                drop(serving);
                Ok(())
            },
            |end| self.call(program, SocketAddr::new(end.peer, PORT)),
        )?;
        Ok(sample)
    }

    fn call(&self, program: &Path, address: SocketAddr) -> Result<Sample> {
        let Calls { in_flight, size, duration } = self;
        let mut command = Command::new(program);
        command
            .args(["call", &address.to_string(), "--in-flight", &in_flight.to_string()])
            .args(["--duration", &duration.as_secs_f64().to_string()])
            .args(["--size", &size.to_string()]);
        // The warm-up takes less than the measurement.
        let at_most = 2 * *duration + SLACK;
        let ended = Running::start(command)?.finish(at_most);
        let Said { status, out, errors } = ended.with_context(|| program.display().to_string())?;
        if !status.success() {
            bail!("{} call: {}", program.display(), errors.trim());
        }
        let told: Told = serde_json::from_str(&out).context("what the rival prints")?;
        let mut sample = Sample::new()?;
        sample.add_counts(&told.counts);
        sample.took(Duration::try_from_secs_f64(told.seconds)?);
        Ok(sample)
    }
}

fn serve(program: &Path, address: SocketAddr) -> Result<Serving> {
    let mut command = Command::new(program);
    command.args(["serve", &address.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    die_with_parent(&mut command);
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    let says = child.stdout.take();
    let serving = Serving(child);
    let says = says.context("its output is a pipe")?;
    let wait = Timespec::try_from(SLACK)?;
    // It writes its line at once, or ends.
    if poll(&mut [PollFd::new(&says, PollFlags::IN)], Some(&wait))? == 0 {
        bail!("{} serve {address} says nothing in {} s", program.display(), SLACK.as_secs());
    }
    let mut line = String::new();
    BufReader::new(says).read_line(&mut line)?;
    ensure!(line.starts_with("ready"), "{} serve {address} did not get ready", program.display());
    Ok(serving)
}
