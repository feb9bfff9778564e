//! An orchestrator of functions (`elver faas serve`) in a process of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A running one. It takes its containers with it when it ends, so that the next one begins cold.
#[derive(Debug)]
pub struct Orchestrator(Child);

impl Orchestrator {
    /// Starts `elver` with a configuration of functions, and waits until it takes requests.
    ///
    /// # Errors
    /// If it does not start; it has said why on standard error.
    pub fn start(elver: &Path, config: &Path) -> Result<Orchestrator> {
        let process = Command::new(elver)
            .args(["faas", "serve"])
            .arg(config)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start an orchestrator")?;
        let mut orchestrator = Orchestrator(process);
        let mut ready = String::new();
        if let Some(said) = orchestrator.0.stdout.take() {
            BufReader::new(said).read_line(&mut ready)?;
        }
        ensure!(ready.starts_with("ready"), "the orchestrator did not start; it has said why");
        Ok(orchestrator)
    }

    /// Ends it as its user would, and with it all containers.
    ///
    /// # Errors
    /// If it ends otherwise than well.
    pub fn end(mut self) -> Result<()> {
        self.terminate();
        let status = self.0.wait()?;
        ensure!(status.success(), "the orchestrator ended with {status}");
        Ok(())
    }

    fn terminate(&self) {
        // One that has ended needs no signal.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
    }
}

impl Drop for Orchestrator {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.terminate();
            let _ = self.0.wait();
        }
    }
}
