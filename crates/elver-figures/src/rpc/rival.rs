//! gRPC's calls, by a program of their own (crate elver-rivals), so that what they need is not in this one.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use elver_console::Failure;
use elver_testbed::pair;
use elver_testbed::sample::Sample;

use crate::args::Stage;

const PORT: u16 = 50_051;

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
        let output = Command::new(program)
            .args(["call", &address.to_string(), "--in-flight", &in_flight.to_string()])
            .args(["--duration", &duration.as_secs_f64().to_string()])
            .args(["--size", &size.to_string()])
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} call: {}", program.display(), said.trim());
        }
        let told: Told = serde_json::from_slice(&output.stdout).context("what the rival prints")?;
        let mut sample = Sample::new()?;
        sample.add_counts(&told.counts);
        sample.took(Duration::try_from_secs_f64(told.seconds)?);
        Ok(sample)
    }
}

fn serve(program: &Path, address: SocketAddr) -> Result<Serving> {
    let mut child = Command::new(program)
        .args(["serve", &address.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let says = child.stdout.take();
    let serving = Serving(child);
    let mut line = String::new();
    BufReader::new(says.context("its output is a pipe")?).read_line(&mut line)?;
    ensure!(line.starts_with("ready"), "{} serve {address} did not get ready", program.display());
    Ok(serving)
}
