//! A worker, as its parent sees it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::cluster::{Cluster, die_with_parent};
use crate::pair::pin;
use crate::worker::{Place, Task};

/// A running worker; dropping it kills it.
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts a worker on the host of a node.
    pub(crate) fn start(cluster: &Cluster, node: usize, task: &Task) -> Result<Worker> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command
            .arg("worker")
            .arg(serde_json::to_string(task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        die_with_parent(&mut command);
        let core = task.place().core;
        let child = cluster.on(node, move || {
            if let Some(core) = core {
                pin(core);
            }
            command.spawn()
        })?;
        let mut child = child.context("cannot start a worker")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a worker without output")?;
        let (tx, lines) = channel();
        thread::Builder::new().name("worker".into()).spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if tx.send(line).is_err() {
                    return;
                }
            }
        })?;
        Ok(Worker { child, stdin, lines })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that it tells.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self, at_most: Duration) -> Result<T> {
        match self.lines.recv_timeout(at_most) {
            Ok(line) => serde_json::from_str(&line)
                .with_context(|| format!("a worker said what was not expected: {line}")),
            Err(RecvTimeoutError::Timeout) => {
                bail!("a worker said nothing for {} s", at_most.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("a worker ended with {}", self.child.wait()?)
            }
        }
    }

    /// Tells it to go on.
    pub(crate) fn go(&mut self) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the worker was told to end")?;
        stdin.write_all(b"go\n").context("the worker is gone")
    }

    /// Tells it to end.
    pub(crate) fn end(&mut self) {
        drop(self.stdin.take());
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.kill();
    }
}

impl Task {
    fn place(&self) -> &Place {
        match self {
            Task::Target { at }
            | Task::Connects { at, .. }
            | Task::Traffic { at, .. }
            | Task::Steady { at, .. }
            | Task::Victim { at, .. }
            | Task::Hot { at, .. }
            | Task::First { at, .. }
            | Task::Storm { at, .. } => at,
        }
    }
}
