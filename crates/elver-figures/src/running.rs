//! Another's program, for a bounded time.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use elver_testbed::programs::die_with_parent;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

/// A program that runs, which goes with whoever runs it: `elver run` becomes the program itself, so that what ends the
/// one ends the other.
pub(crate) struct Running {
    child: Child,
    ended: OwnedFd,
    said: [Option<JoinHandle<String>>; 2],
    pub(crate) began: Instant,
}

/// How a program ended, and what it said until then.
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Result<Running> {
        die_with_parent(&mut command);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let (out, errors) = (child.stdout.take(), child.stderr.take());
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let began = Instant::now();
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // It goes with the error, and may have ended.
                let _ = child.kill();
                let _ = child.wait();
                return Err(anyhow!(error).context("cannot watch a process"));
            }
        };
        Ok(Running { child, ended, said: [out.map(all_of), errors.map(all_of)], began })
    }

    pub(crate) fn ends_within(&self, wait: Duration) -> Result<bool> {
        let mut ends = [PollFd::new(&self.ended, PollFlags::IN)];
        Ok(poll(&mut ends, Some(&Timespec::try_from(wait)?))? > 0)
    }

    /// Waits until it ends, or ends it when its time is over.
    pub(crate) fn finish(self, at_most: Duration) -> Result<Said> {
        let in_time = self.ends_within(at_most.saturating_sub(self.began.elapsed()))?;
        let said = self.end()?;
        let Said { out, errors, .. } = &said;
        ensure!(
            in_time,
            "it did not end within {} s; it said: {out}{errors}",
            at_most.as_secs_f64()
        );
        Ok(said)
    }

    /// Ends it, unless it has ended.
    pub(crate) fn end(mut self) -> Result<Said> {
        self.child.kill()?;
        let status = self.child.wait()?;
        let [out, errors] = std::array::from_fn(|stream| {
            self.said[stream].take().and_then(|said| said.join().ok()).unwrap_or_default()
        });
        Ok(Said { status, out, errors })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All that a program says: it must not wait for somebody to hear it.
fn all_of(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut said = Vec::new();
        // What came before an error is told.
        let _ = stream.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    })
}

/// Processes that were started with this word.
#[cfg(test)]
pub(crate) fn with_word(word: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let words = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    words.filter(|words| words.split(|byte| *byte == 0).any(|one| one == word.as_bytes())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        const WORD: &str = "100018.25";
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; exec sleep 100018.25"]);
        let Err(why) = Running::start(command).unwrap().finish(SOON) else { panic!("it ended") };
        assert!(why.to_string().contains("did not end within 0.2 s"), "{why:#}");
        assert_eq!(with_word(WORD), 0);
    }

    /// As when the benchmark is killed: nobody drops anything.
    #[test]
    fn a_program_goes_with_who_started_it() {
        let started = thread::spawn(|| {
            let mut command = Command::new("sh");
            command.args(["-c", "exec sleep 100019.25"]);
            std::mem::ManuallyDrop::new(Running::start(command).unwrap())
        });
        let running = started.join().unwrap();
        assert!(running.ends_within(LONG).unwrap(), "it goes on");
    }
}
