//! The ranks, as processes.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use elver_console::Failure;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};

use crate::labels::{Labels, To};

pub(crate) struct Ranks<'a> {
    program: &'a OsStr,
    arguments: &'a [OsString],
    labels: Option<Labels>,
    all: Vec<Rank>,
}

/// It is not reaped before all is over: its number stays that of what it has started.
struct Rank {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Rank {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl<'a> Ranks<'a> {
    /// Of a program; its lines with the rank before them, if asked for.
    pub(crate) fn new(command: &'a [OsString], are_labelled: bool) -> Result<Ranks<'a>> {
        let (program, arguments) = command.split_first().context("no program was named")?;
        let labels = are_labelled.then(Labels::new);
        Ok(Ranks { program, arguments, labels, all: Vec::new() })
    }

    /// Starts the next one, in a process group of its own: what a terminal sends reaches it once, by way of this
    /// command, and so do the processes that it starts.
    pub(crate) fn start(
        &mut self,
        variables: impl Iterator<Item = (&'static str, OsString)>,
    ) -> Result<(), Failure> {
        let mut command = Command::new(self.program);
        command.args(self.arguments).envs(variables).process_group(0);
        // A process that is not in the foreground may not read from a terminal.
        if !self.all.is_empty() || std::io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        if self.labels.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let rank = self.all.len();
        let mut child = command.spawn().map_err(|error| {
            let what = format!("cannot run {}: {error}", self.program.display());
            Failure::not_run(error.kind(), what)
        })?;
        if let Some(labels) = &mut self.labels {
            if let Some(said) = child.stdout.take() {
                labels.follow(rank, said, To::Output)?;
            }
            if let Some(said) = child.stderr.take() {
                labels.follow(rank, said, To::Errors)?;
            }
        }
        self.all.push(Rank { child, ended: None });
        Ok(())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// How many have not ended.
    pub(crate) fn left(&self) -> usize {
        self.all.iter().filter(|rank| rank.ended.is_none()).count()
    }

    /// Those that have ended since, and how.
    pub(crate) fn reap(&mut self) -> Result<Vec<(u32, ExitStatus)>> {
        let mut over = Vec::new();
        for (number, rank) in (0..).zip(&mut self.all) {
            if rank.ended.is_none() {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
                let how = waitid(WaitId::Pid(rank.pid()), options);
                rank.ended = how.context("cannot hear of a process's end")?.map(how_it_ended);
                over.extend(rank.ended.map(|how| (number, how)));
            }
        }
        Ok(over)
    }

    /// Whether a rank has ended.
    pub(crate) fn has_ended(&self, rank: u32) -> bool {
        self.all[rank as usize].ended.is_some()
    }

    /// Sends a signal to all, and to what they have started, also where a rank has ended itself.
    pub(crate) fn signal(&self, signal: Signal) {
        for rank in &self.all {
            // Where nobody is left, nobody needs it.
            let _ = kill_process_group(rank.pid(), signal);
        }
    }

    /// Hears out what they have said.
    pub(crate) fn hear_out(&mut self) {
        if let Some(labels) = &mut self.labels {
            labels.hear_out();
        }
    }
}

impl Drop for Ranks<'_> {
    /// None is left behind, however this command ends.
    fn drop(&mut self) {
        if self.left() > 0 {
            self.signal(Signal::KILL);
        }
        for rank in &mut self.all {
            let _ = rank.child.wait();
        }
    }
}

fn how_it_ended(status: WaitIdStatus) -> ExitStatus {
    // As `waitpid` has it: a code in the second byte, a signal in the first.
    let core = if status.dumped() { 0x80 } else { 0 };
    let signal = status.terminating_signal().map(|signal| signal | core);
    let code = status.exit_status().map(|code| (code & 0xff) << 8);
    ExitStatus::from_raw(signal.or(code).unwrap_or_default())
}
