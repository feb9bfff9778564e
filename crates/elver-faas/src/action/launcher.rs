//! An action's process, which speaks ActionLoop.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use rustix::io::ioctl_fionread;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout_at};

use super::code::{Action, Code};
use super::group::{Group, Started};

/// The descriptor of answers.
const ANSWERS: i32 = 3;

/// The longest answer, in bytes.
const ANSWER_MAX: u64 = 6 << 20;

/// How long a start may take: OpenWhisk's own time for it.
const START_MAX: Duration = Duration::from_secs(60);

/// How long one that tells nothing is watched.
const LOOK: Duration = Duration::from_millis(5);

/// Says that the first line of answers is `{"ok":true}`.
const WAIT_FOR_ACK: &str = "__OW_WAIT_FOR_ACK";

/// Why there is no answer. The process is of no further use.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// It ended, or closed what it answers by.
    #[error("command exited")]
    Died,
    /// Its time was over.
    #[error("the action did not answer in time, and was killed")]
    Late,
    /// It does not end the line.
    #[error("the action's answer has more than {ANSWER_MAX} bytes")]
    TooLong,
    /// It has written what would be taken for the answer to a request that it has not had.
    #[error("the action wrote more than its answer's line, and was ended")]
    Ahead,
}

#[derive(Deserialize)]
struct Ack {
    ok: bool,
}

/// The process. It ends with this, and what it has started in its group.
#[derive(Debug)]
pub(super) struct Launcher {
    group: Group,
    orders: pipe::Sender,
    answers: BufReader<pipe::Receiver>,
}

impl Launcher {
    /// Starts it. It has the environment that `/init` brought, and what of this process's is OpenWhisk's.
    pub(super) async fn start(
        action: &Action,
        code: &Code,
        started: &Started,
    ) -> io::Result<Launcher> {
        let (answers, its) = io::pipe()?;
        let mapping = FdMapping { parent_fd: OwnedFd::from(its), child_fd: ANSWERS };
        let acknowledges = std::env::var("OW_WAIT_FOR_ACK").is_ok_and(|wait| !wait.is_empty());
        let (mut command, waits) = match action {
            Action::Program(file) => (Command::new(file), acknowledges),
            Action::Python { launcher, file, main } => {
                let mut command = Command::new("python3");
                command.args(["-X", "utf8"]).arg(launcher).args([file.as_os_str(), main.as_ref()]);
                command.env("PYTHONDONTWRITEBYTECODE", "1");
                (command, true)
            }
        };
        if acknowledges {
            command.env(WAIT_FOR_ACK, "1");
        }
        command.envs(code.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).fd_mappings(vec![mapping]).map_err(io::Error::other)?;
        let mut child = command.process_group(0).spawn()?;
        let group = Group::of(&child, started);
        // It has this side's copy of the descriptor, without which the end of the process is the answers' end.
        drop(command);
        let Some(orders) = child.stdin.take() else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let orders = pipe::Sender::from_owned_fd(OwnedFd::from(orders))?;
        let answers = BufReader::new(pipe::Receiver::from_owned_fd(OwnedFd::from(answers))?);
        let mut launcher = Launcher { group, orders, answers };
        launcher.wait_for_start(waits).await?;
        Ok(launcher)
    }

    async fn wait_for_start(&mut self, waits: bool) -> io::Result<()> {
        if !waits {
            return match tokio::time::timeout(LOOK, self.group.first_ended()).await {
                Ok(()) => Err(io::Error::other("command exited")),
                Err(_) => Ok(()),
            };
        }
        let line = match self.line(Instant::now() + START_MAX).await {
            Ok(line) => line,
            Err(NoAnswer::Died) => {
                return Err(io::Error::other(
                    "Command exited abruptly during initialization; its log has the reason",
                ));
            }
            Err(other) => return Err(io::Error::other(other)),
        };
        match serde_json::from_slice(&line) {
            Ok(Ack { ok: true }) => Ok(()),
            _ => Err(io::Error::other("The action did not initialize properly.")),
        }
    }

    /// Hands it a request in JSON as it is, and waits for the answer.
    pub(super) async fn interact(
        &mut self,
        request: &[u8],
        most: Duration,
    ) -> Result<Vec<u8>, NoAnswer> {
        let until = Instant::now() + most;
        if self.has_answered_ahead() {
            return Err(NoAnswer::Ahead);
        }
        // A line's end stands between words alone: within a string JSON has none.
        let blank = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
        let mut line: Vec<u8> = request.iter().map(blank).collect();
        line.push(b'\n');
        let written = timeout_at(until, self.orders.write_all(&line)).await;
        match written {
            Err(_) => return Err(NoAnswer::Late),
            Ok(Err(_)) => return Err(NoAnswer::Died),
            Ok(Ok(())) => {}
        }
        self.line(until).await
    }

    fn has_answered_ahead(&self) -> bool {
        // One that nobody can ask has nothing.
        let unread = || ioctl_fionread(self.answers.get_ref()).is_ok_and(|bytes| bytes > 0);
        !self.answers.buffer().is_empty() || unread()
    }

    async fn line(&mut self, until: Instant) -> Result<Vec<u8>, NoAnswer> {
        let mut line = Vec::new();
        let mut limited = (&mut self.answers).take(ANSWER_MAX);
        let read = async {
            tokio::select! {
                // Who answers and ends has answered.
                biased;
                read = limited.read_until(b'\n', &mut line) => read.map_err(|_| NoAnswer::Died),
                () = self.group.first_ended() => Err(NoAnswer::Died),
            }
        };
        match timeout_at(until, read).await {
            Err(_) => Err(NoAnswer::Late),
            Ok(Err(why)) => Err(why),
            Ok(Ok(_)) if line.last() == Some(&b'\n') => Ok(line),
            Ok(Ok(read)) if read as u64 == ANSWER_MAX => Err(NoAnswer::TooLong),
            Ok(Ok(_)) => Err(NoAnswer::Died),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It had its time anew once it had read the request.
    #[tokio::test(start_paused = true)]
    async fn a_request_has_its_time_once() {
        const MOST: Duration = Duration::from_secs(10);
        // Nobody waits for others' children, of which tests beside this one have some.
        let started = Started::default();
        let mut process = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let group = Group::of(&process, &started);
        let (orders, mut read) = pipe::pipe().unwrap();
        let (_silent, answers) = pipe::pipe().unwrap();
        let mut launcher = Launcher { group, orders, answers: BufReader::new(answers) };
        let reading = async {
            tokio::time::sleep(MOST * 9 / 10).await;
            tokio::io::copy(&mut read, &mut tokio::io::sink()).await
        };
        let begun = Instant::now();
        // More than a pipe keeps.
        let request = vec![b' '; 1 << 20];
        let late = tokio::select! {
            late = launcher.interact(&request, MOST) => late,
            read = reading => panic!("{read:?}"),
        };
        assert!(matches!(late, Err(NoAnswer::Late)), "{late:?}");
        assert!((MOST..MOST * 11 / 10).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        drop(launcher);
        process.wait().unwrap();
    }
}
