//! QEMU's migration over RDMA: what the source's memory holds must be the destination's.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::super::process::{Call, Started};
use super::super::programs::{free_port, split};
use super::stage::{Said, Stage};

/// What is put into the source's memory, and where.
pub(super) const PATTERN: u64 = 8 << 20;
const AT: u64 = 16 << 20;
/// A machine that does not run: its memory stays as it was made.
const MACHINE: &str =
    "qemu-system-x86_64 -machine pc,accel=tcg -m 64 -display none -nodefaults -no-user-config -S";
const LIMIT: Duration = Duration::from_secs(40);
const GLANCE: Duration = Duration::from_millis(50);

pub(super) fn migrates(stage: &Stage<'_>) -> Result<Said> {
    let pattern: Vec<u8> = (0..PATTERN).map(|at| (at * 7 % 251) as u8).collect();
    let file = stage.scratch.join("pattern");
    fs::write(&file, &pattern)?;
    let [there, _] = &stage.place.addresses;
    let uri = format!("rdma:{there}:{}", free_port()?);
    let loader = format!("loader,file={},addr={AT},force-raw=on", file.display());
    let mut destination = Machine::start(stage, 0, &["-incoming", &uri])?;
    let mut source = Machine::start(stage, 1, &["-device", &loader])?;
    let came_to = migrated(&mut source, &mut destination, &uri, &stage.scratch.join("dump"));
    // Both are ended, whatever came of it.
    let ended = [source.process.stop(), destination.process.stop()];
    let dump = came_to?;
    for ended in ended {
        ended?;
    }
    ensure!(dump == pattern, "the destination's memory is not the source's");
    Ok(Said::default())
}

/// Migrates, and returns what the destination's memory has where the source's has the pattern.
fn migrated(
    source: &mut Machine,
    destination: &mut Machine,
    uri: &str,
    dump: &Path,
) -> Result<Vec<u8>> {
    source.ask("migrate", json!({ "uri": uri }))?;
    let begun = Instant::now();
    loop {
        let state = source.ask("query-migrate", json!({}))?;
        match state["status"].as_str() {
            Some("completed") => break,
            Some("failed") => bail!("the migration failed: {state}"),
            _ => ensure!(begun.elapsed() < LIMIT, "the migration takes too long: {state}"),
        }
        std::thread::sleep(GLANCE);
    }
    let arguments = json!({ "val": AT, "size": PATTERN, "filename": dump });
    destination.ask("pmemsave", arguments)?;
    fs::read(dump).with_context(|| format!("{}", dump.display()))
}

/// A virtual machine, and the socket by which it is told what to do (QMP).
struct Machine {
    process: Started,
    lines: BufReader<UnixStream>,
}

impl Machine {
    fn start(stage: &Stage<'_>, end: usize, more: &[&str]) -> Result<Machine> {
        let socket: PathBuf = stage.scratch.join(format!("monitor-{end}"));
        let _ = fs::remove_file(&socket);
        let monitor = format!("unix:{},server=on,wait=off", socket.display());
        let words = [&split(MACHINE)[..], &["-qmp", &monitor], more].concat();
        let before = &stage.place.before[end];
        let call = Call { before, words: &words, ..Call::default() };
        let process = stage.runner.start(&call, &stage.scratch)?;
        match connected(&socket) {
            Ok(lines) => {
                let mut machine = Machine { process, lines };
                machine.line()?;
                machine.ask("qmp_capabilities", json!({}))?;
                Ok(machine)
            }
            Err(error) => {
                let ended = process.stop()?;
                Err(error.context(ended.said))
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the machine has ended");
        Ok(serde_json::from_str(&line)?)
    }

    /// Has a command done, and returns its answer; events in between are of no interest.
    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let asked = json!({ "execute": command, "arguments": arguments });
        writeln!(self.lines.get_mut(), "{asked}")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {error}");
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }
}

fn connected(socket: &Path) -> Result<BufReader<UnixStream>> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                stream.set_read_timeout(Some(LIMIT))?;
                return Ok(BufReader::new(stream));
            }
            Err(error) if begun.elapsed() > LIMIT => {
                return Err(error).with_context(|| format!("{}", socket.display()));
            }
            Err(_) => std::thread::sleep(GLANCE),
        }
    }
}
