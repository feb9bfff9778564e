//! A program's two ends, each pinned to a core of its own, each for a bounded time.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elver_console::Failure;
use elver_testbed::pair::{self, Client, Placement};

use crate::running::{Running, Said};

/// How long the ends are waited for.
#[derive(Clone, Copy)]
struct Patience {
    /// Until a server listens.
    listens: Duration,
    /// Until a server ends behind its client.
    ends: Duration,
    /// For the whole of an end.
    all: Duration,
}

const USUAL: Patience = Patience {
    listens: Duration::from_secs(30),
    ends: Duration::from_secs(60),
    all: Duration::from_secs(120),
};
/// How often it is looked at whether a server listens.
const GLANCE: Duration = Duration::from_millis(2);
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
        let mut command = Command::new(self.elver.unwrap_or(Path::new(self.words[0])));
        if self.elver.is_some() {
            command.arg("run");
            if way == Way::Packets {
                command.arg("--no-direct");
            }
            if way == Way::Netns {
                command.args(["--address", &own.to_string()]);
            }
            command.args(["--", self.words[0]]);
            // Ends that give up on each other soon would be measured by packets.
            command.env("ELVER_DIRECT_PATIENCE_MS", "20000");
        }
        command.args(&self.words[1..]);
        command
    }
}

/// Runs both; what the client said, which is given its server's address as its last word.
pub(super) fn run(way: Way, part: Part<'_>) -> Result<String, Failure> {
    run_for(way, part, USUAL)
}

fn run_for(way: Way, part: Part<'_>, patience: Patience) -> Result<String, Failure> {
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
            ensure!(
                part.opens == Opens::Unseen || !listens(part.port)?,
                "somebody else listens on port {}: end that program first",
                part.port
            );
            let server = Running::start(part.command(way, end.own))?;
            match serve(&server, part, client, patience) {
                Ok(()) => server.finish(patience.all).map(drop),
                Err(error) => {
                    let said = server.end()?.errors;
                    Err(error.context(format!("the server said: {}", said.trim())))
                }
            }
        },
        |end| {
            let began = Instant::now();
            loop {
                let mut command = part.command(way, end.own);
                command.args(part.client).arg(end.peer.to_string());
                let ended = Running::start(command)?.finish(patience.all);
                let Said { status, out, errors } = ended.with_context(|| program.to_string())?;
                if part.opens == Opens::Unseen
                    && errors.contains(REFUSED)
                    && began.elapsed() < patience.listens
                {
                    continue;
                }
                ensure!(status.success(), "{program}: {status}: {out}{errors}");
                return Ok(out);
            }
        },
    )?;
    Ok(said)
}

/// Lets the client begin when the server listens, and waits for the server's end behind the client's.
fn serve(server: &Running, part: Part<'_>, client: &Client, patience: Patience) -> Result<()> {
    let port = part.port;
    while part.opens == Opens::Socket && !listens(port)? {
        ensure!(server.began.elapsed() < patience.listens, "it does not listen on port {port}");
        if server.ends_within(GLANCE)? {
            bail!("it ended before it listened on port {port}");
        }
    }
    client.begin();
    client.wait_gone();
    ensure!(server.ends_within(patience.ends)?, "it did not end behind its client");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::with_word;

    const SOON: Duration = Duration::from_millis(200);

    fn sleeps(words: &'static [&'static str]) -> Part<'static> {
        let port = 18_529;
        Part { elver: None, words, client: &[], opens: Opens::Socket, port, package: "dash" }
    }

    #[test]
    fn a_server_that_never_listens_is_an_error_and_leaves_nobody() {
        const WORD: &str = "100017.25";
        let part = sleeps(&["sh", "-c", "exec sleep 100017.25"]);
        let patience = Patience { listens: SOON, ..USUAL };
        let Err(Failure::Failed(why)) = run_for(Way::Loopback, part, patience) else {
            panic!("nobody listened")
        };
        assert!(format!("{why:#}").contains("does not listen"), "{why:#}");
        assert_eq!(with_word(WORD), 0);
    }
}
