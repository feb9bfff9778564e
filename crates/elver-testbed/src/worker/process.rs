//! A worker, as its parent sees it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::Cluster;
use crate::programs::die_with_parent;
use crate::worker::task::Task;
use crate::worker::tell::Failed;

/// A running worker; dropping it kills it.
pub struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts a worker on the host of a node.
    ///
    /// # Errors
    ///
    /// It cannot be started, or its task cannot be written.
    pub fn start(cluster: &Cluster, node: usize, task: &Task) -> Result<Worker> {
        Worker::start_with(cluster, node, task, |_| ())
    }

    /// The same; and when its `exec` began, by the monotonic clock.
    ///
    /// # Errors
    ///
    /// It cannot be started, or ended before it told the time.
    pub fn start_clocked(cluster: &Cluster, node: usize, task: &Task) -> Result<(Worker, u64)> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context("pipe")?;
        let worker = Worker::start_with(cluster, node, task, move |command| {
            let tell_the_time = move || {
                let now = elver_node::now().0.to_ne_bytes();
                rustix::io::write(&write, &now)?;
                Ok(())
            };
            // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
            unsafe { command.pre_exec(tell_the_time) };
        })?;
        let mut bytes = [0; 8];
        let read_bytes = rustix::io::read(&read, &mut bytes).context("a program's clock")?;
        ensure!(read_bytes == bytes.len(), "a program did not say when it began");
        Ok((worker, u64::from_ne_bytes(bytes)))
    }

    fn start_with(
        cluster: &Cluster,
        node: usize,
        task: &Task,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Worker> {
        let mut command = cluster.programs().worker(&serde_json::to_string(task)?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        die_with_parent(&mut command);
        prepare(&mut command);
        let seat = task.place().seat;
        let child = cluster.on(node, move || {
            // It begins there: on the core of a daemon that spins it would disturb that one.
            seat.take();
            command.spawn()
        })?;
        let mut child = child.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::AGAIN | Errno::MFILE) => anyhow!(
                "cannot start another process: {error}; allow more of them (`ulimit -u`, \
                 `ulimit -n`), or ask for fewer clients"
            ),
            _ => anyhow::Error::new(error).context("cannot start a process"),
        })?;
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

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that it tells.
    ///
    /// # Errors
    ///
    /// It says nothing in that time, has ended, failed, or says something else.
    pub fn hear<T: DeserializeOwned>(&mut self, at_most: Duration) -> Result<T> {
        match self.lines.recv_timeout(at_most) {
            Ok(line) => match serde_json::from_str::<Failed>(&line) {
                Ok(Failed { failed }) => bail!("a process failed: {failed}"),
                Err(_) => serde_json::from_str(&line)
                    .with_context(|| format!("a worker said what was not expected: {line}")),
            },
            Err(RecvTimeoutError::Timeout) => {
                bail!("a worker said nothing for {} s", at_most.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("a worker ended with {}", self.child.wait()?)
            }
        }
    }

    /// Tells it to go on.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub fn go(&mut self) -> Result<()> {
        self.ask(&"go")
    }

    /// Tells it something.
    ///
    /// # Errors
    ///
    /// It is gone, or was told to end.
    pub fn ask(&mut self, what: &impl Serialize) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the worker was told to end")?;
        let line = serde_json::to_string(what)? + "\n";
        stdin.write_all(line.as_bytes()).context("a process is gone")
    }

    /// Tells it to end.
    pub fn end(&mut self) {
        drop(self.stdin.take());
    }

    /// Kills it, as `kill -9` does.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn kill(&mut self) -> Result<()> {
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
