//! A program's two ends, each pinned to a core of its own, each for a bounded time.

use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver_console::Failure;
use elver_testbed::pair::{self, Client, Placement};
use elver_testbed::programs::die_with_parent;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

/// The longest that an end may take, in seconds: `timeout` ends it.
const LIMIT: &str = "60";
/// How long a server may take until it listens, and how often that is looked at.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// How long a server may take to end behind its client.
const ENDS_WITHIN: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// What a client says whose server does not listen yet.
const REFUSED: &str = "Connection refused";
/// State of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// How data goes from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By whoever posts, between two processes of one user.
    Direct,
    /// Between the same processes, through sockets.
    Packets,
    /// Between two network namespaces.
    Netns,
    /// Without Elver, between two processes of one host.
    Memory,
    Loopback,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Packets => "packets",
            Way::Netns => "netns",
            Way::Memory => "shared memory",
            Way::Loopback => "loopback",
        }
    }
}

/// How it is seen that a server is ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opens {
    /// It listens at a port of the system's.
    Socket,
    /// It does not show: a client that is refused tries again.
    Unseen,
}

/// What both ends run.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    /// The program whose `run` puts the library under it; none where it runs as it is.
    pub(super) elver: Option<&'a Path>,
    pub(super) words: &'a [&'a str],
    /// What the client's words end with, before its server's address.
    pub(super) client: &'a [&'a str],
    pub(super) opens: Opens,
    /// Where the server listens for its client.
    pub(super) port: u16,
    /// Who has the program.
    pub(super) package: &'static str,
}

impl Part<'_> {
    fn command(&self, way: Way, own: IpAddr) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "2", LIMIT]);
        if let Some(elver) = self.elver {
            command.arg(elver).arg("run");
            if way == Way::Packets {
                command.arg("--no-direct");
            }
            if way == Way::Netns {
                command.args(["--address", &own.to_string()]);
            }
            command.arg("--");
            // Ends that give up on each other soon would be measured by packets.
            command.env("ELVER_DIRECT_PATIENCE_MS", "20000");
        }
        command.args(self.words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_parent(&mut command);
        command
    }
}

/// Runs both; what the client said, which is given its server's address as its last word.
pub(super) fn run(way: Way, part: Part<'_>) -> Result<String, Failure> {
    let program = part.words[0];
    if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|place| place.join(program).is_file())
    {
        let package = part.package;
        let what = format!("there is no {program}: `apt-get install {package}` brings it");
        return Err(Failure::unusable(what));
    }
    let placement = if way == Way::Netns { Placement::Netns } else { Placement::Loopback };
    let (_, said) = pair::run(
        placement,
        |end, client| {
            let mut server = part.command(way, end.own).spawn().context("cannot run `timeout`")?;
            let served = serve(&mut server, part, client);
            if served.is_err() {
                // It may have ended; then there is nothing to do.
                let _ = server.kill();
            }
            let mut said = String::new();
            let errors = server.stderr.take().map(|mut errors| errors.read_to_string(&mut said));
            server.wait()?;
            errors.transpose().context("what the server said")?;
            served.with_context(|| format!("the server said: {}", said.trim()))
        },
        |end| {
            let began = Instant::now();
            loop {
                let mut command = part.command(way, end.own);
                let ended = command.args(part.client).arg(end.peer.to_string()).output()?;
                let said = String::from_utf8_lossy(&ended.stdout).into_owned();
                let errors = String::from_utf8_lossy(&ended.stderr);
                if part.opens == Opens::Unseen
                    && errors.contains(REFUSED)
                    && began.elapsed() < LISTENS_WITHIN
                {
                    continue;
                }
                ensure!(ended.status.success(), "{program}: {}: {said}{errors}", ended.status);
                return Ok(said);
            }
        },
    )?;
    Ok(said)
}

/// Lets the client begin when the server listens, and waits for the server's end behind the client's.
fn serve(server: &mut Child, part: Part<'_>, client: &Client) -> Result<()> {
    let port = part.port;
    let pidfd = pidfd_open(Pid::from_child(server), PidfdFlags::empty())?;
    let has_ended = |wait: &Timespec| {
        let mut ends = [PollFd::new(&pidfd, PollFlags::IN)];
        Ok::<_, anyhow::Error>(poll(&mut ends, Some(wait))? > 0)
    };
    let began = Instant::now();
    while part.opens == Opens::Socket && !listens(port)? {
        ensure!(began.elapsed() < LISTENS_WITHIN, "it does not listen on port {port}");
        if has_ended(&GLANCE)? {
            bail!("it ended before it listened on port {port}");
        }
    }
    client.begin();
    client.wait_gone();
    ensure!(has_ended(&ENDS_WITHIN)?, "it did not end behind its client");
    Ok(())
}

/// Whether somebody of this thread's network namespace listens on a port.
fn listens(port: u16) -> Result<bool> {
    let wanted = format!(":{port:04X}");
    for table in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let sockets = std::fs::read_to_string(table).with_context(|| table.to_string())?;
        let listens = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let (own, state) = (words.next(), words.nth(1));
            own.is_some_and(|own| own.ends_with(&wanted)) && state == Some(LISTENS)
        };
        if sockets.lines().skip(1).any(listens) {
            return Ok(true);
        }
    }
    Ok(false)
}
