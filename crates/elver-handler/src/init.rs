//! The INIT process: it has made things ready, and forks for each order.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use elver::{Gid, Session};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use serde::{Deserialize, Serialize};

use crate::ahead::{Ahead, Amounts, gids};
use crate::api::Invocation;
use crate::assignments::QpNumber;
use crate::context::{Context, Source};
use crate::error::{Error, system};
use crate::policy::connect_options;
use crate::process::{Forked, fork, keep_ended, keep_strays};
use crate::rdma::NODE;
use crate::strays;

/// The request that this process is started for.
const FIRST: &str = "ELVER_FIRST";

/// QPs of each prepared session that go nowhere yet.
const UNASSIGNED: &str = "ELVER_UNASSIGNED";

/// The longest order, in bytes.
const ORDER_MAX: usize = 64 << 10;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// For a request that wants connections to some destinations.
    Fork(u64, BTreeSet<String>),
    Kill(u64),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Connected(Vec<String>),
    Ended(u64, String),
    Serving,
}

#[derive(Debug)]
struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    request: u64,
}

/// What this process is now.
#[derive(Debug)]
enum Role {
    Parent,
    Child(Option<QpNumber>),
}

#[derive(Debug)]
pub(crate) struct Init {
    pub(crate) first: u64,
    destinations: Vec<String>,
    ahead: Option<Ahead>,
    orders: UnixStream,
    /// What came of an order that is not whole.
    heard: Vec<u8>,
    children: Vec<Child>,
    role: Role,
}

impl Init {
    /// Begins to make things ready. Orders come over standard input, which a handler finds empty.
    pub(crate) fn start() -> Result<Init, Error> {
        let first = variable(FIRST)?.parse().map_err(|_| Error::NoPlatform(FIRST))?;
        // No program that the handler starts has them.
        let orders = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3).map_err(io::Error::from);
        let orders = UnixStream::from(orders.map_err(system("dup"))?);
        let nothing = File::open("/dev/null").map_err(system("opening /dev/null"))?;
        rustix::stdio::dup2_stdin(&nothing).map_err(|error| system("dup2")(error.into()))?;
        keep_strays().map_err(system("becoming a subreaper"))?;
        let named = variable("ELVER_DESTINATIONS")?;
        let destinations = named.split_whitespace().map(String::from).collect();
        let ahead = match gids(&named).and_then(make_ready) {
            Ok(ahead) => ahead,
            Err(error) => {
                eprintln!("elver-handler: nothing is made ready: {error}");
                None
            }
        };
        let (heard, children) = (Vec::new(), Vec::new());
        Ok(Init { first, destinations, ahead, orders, heard, children, role: Role::Parent })
    }

    /// What the handler gets.
    pub(crate) fn context(&mut self, invocation: &Invocation) -> Context<'_> {
        let source = match (&mut self.ahead, &self.role) {
            (Some(ahead), Role::Parent) => Source::Own(ahead),
            (Some(ahead), Role::Child(Some(first))) => Source::Inherit(ahead, *first),
            (Some(_), Role::Child(None)) | (None, _) => Source::Open,
        };
        Context::new(invocation, self.destinations.clone(), source)
    }

    /// Tells which destinations it is connected to, if they are others than before.
    pub(crate) fn tell_connected(&mut self) -> Result<(), Error> {
        match self.ahead.as_mut().and_then(Ahead::connected) {
            Some(connections) => self.tell(&Report::Connected(connections)),
            None => Ok(()),
        }
    }

    /// Forks for each order. Returns in children alone, their request; and in the parent when nobody orders any more.
    pub(crate) fn serve(&mut self) -> Result<Option<u64>, Error> {
        keep_ended().map_err(system("setting what the end of a child does"))?;
        // What its own request left.
        strays::end(&[]).map_err(system("ending what the first request left"))?;
        if let Some(ahead) = &mut self.ahead {
            ahead.settle();
        }
        self.tell(&Report::Serving)?;
        loop {
            let readable = self.look(None).map_err(system("waiting for orders"))?;
            if readable.has_reports
                && let Some(ahead) = &mut self.ahead
            {
                ahead.hear();
                self.tell_connected()?;
            }
            self.reap(&readable.ended)?;
            if readable.has_orders {
                match self.obey()? {
                    Obeyed::All => {}
                    Obeyed::IsChild(request) => return Ok(Some(request)),
                    Obeyed::Closed => return Ok(None),
                }
            }
        }
    }

    /// Looks for orders, for children's reports and for their ends, and waits for one of them, without a limit or so long.
    fn look(&self, at_most: Option<&Timespec>) -> io::Result<Readable> {
        let mut seen: Vec<PollFd<'_>> = vec![PollFd::new(&self.orders, PollFlags::IN)];
        let reports = self.ahead.as_ref().map(Ahead::reports);
        seen.extend(reports.map(|reports| PollFd::new(reports, PollFlags::IN)));
        let first = seen.len();
        seen.extend(self.children.iter().map(|child| PollFd::new(&child.pidfd, PollFlags::IN)));
        loop {
            match poll(&mut seen, at_most) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => {
                    let is_readable = |fd: &PollFd<'_>| !fd.revents().is_empty();
                    return Ok(Readable {
                        has_orders: is_readable(&seen[0]),
                        has_reports: seen[1..first].iter().any(is_readable),
                        ended: seen[first..].iter().map(is_readable).collect(),
                    });
                }
            }
        }
    }

    fn obey(&mut self) -> Result<Obeyed, Error> {
        let mut part = [0; 4096];
        let more = self.orders.read(&mut part).map_err(system("reading orders"))?;
        if more == 0 || self.heard.len() > ORDER_MAX {
            return Ok(Obeyed::Closed);
        }
        self.heard.extend_from_slice(&part[..more]);
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(Order::Fork(request, wanted)) => {
                    if self.fork(request, &wanted)? {
                        return Ok(Obeyed::IsChild(request));
                    }
                }
                Ok(Order::Kill(request)) => {
                    for child in self.children.iter().filter(|child| child.request == request) {
                        // It may just have ended.
                        let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
                    }
                }
                Err(error) => {
                    return Err(Error::Conversation(format!("an order cannot be read: {error}")));
                }
            }
        }
        Ok(Obeyed::All)
    }

    /// Forks for a request; whether this is the child.
    fn fork(&mut self, request: u64, wanted: &BTreeSet<String>) -> Result<bool, Error> {
        // The node may know of an end before this process does, and have the session ready again.
        let readable = self.look(Some(&Timespec::default()));
        self.reap(&readable.map_err(system("looking for ended children"))?.ended)?;
        let parse = |to: &String| to.parse().map_err(|_| Error::NoGid(to.clone()));
        let wanted: BTreeSet<Gid> = wanted.iter().map(parse).collect::<Result<_, Error>>()?;
        let session = self.ahead.as_mut().and_then(|ahead| ahead.choose(&wanted));
        let pid = match fork() {
            Ok(Forked::Parent(pid)) => pid,
            Ok(Forked::Child) => {
                keep_strays().map_err(system("becoming a subreaper"))?;
                self.leave_parent().map_err(system("leaving the parent's descriptors"))?;
                if let Some(ahead) = &self.ahead {
                    ahead.leave()?;
                }
                self.role = Role::Child(session);
                return Ok(true);
            }
            Err(error) => {
                self.tell(&Report::Ended(request, format!("cannot fork: {error}")))?;
                return Ok(false);
            }
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => self.children.push(Child { pid, pidfd, request }),
            Err(error) => {
                // Nobody would learn of its end.
                strays::end(&self.known()).map_err(system("ending a child"))?;
                self.tell(&Report::Ended(request, format!("its child cannot be seen: {error}")))?;
                return Ok(false);
            }
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.assign(session, pid);
        }
        self.tell_connected()?;
        Ok(false)
    }

    /// A child has no business with its parent's orders, and none with its brothers.
    fn leave_parent(&mut self) -> io::Result<()> {
        self.children.clear();
        self.heard.clear();
        let (unconnected, _) = UnixStream::pair()?;
        self.orders = unconnected;
        Ok(())
    }

    fn reap(&mut self, ended: &[bool]) -> Result<(), Error> {
        if !ended.contains(&true) {
            return Ok(());
        }
        let mut at = 0;
        let (ended, going) = std::mem::take(&mut self.children).into_iter().partition(|_| {
            at += 1;
            ended.get(at - 1).copied().unwrap_or(false)
        });
        self.children = going;
        // What they left is ended before anybody learns that they have.
        let mut known = self.known();
        known.extend(ended.iter().map(|child: &Child| child.pid));
        strays::end(&known).map_err(system("ending what a child left"))?;
        for child in ended {
            let status = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
            let status = status.map_err(|error| system("waiting for a child")(error.into()))?;
            let why = match status.map(|s| (s.exit_status(), s.terminating_signal())) {
                Some((Some(code), _)) => format!("exit code {code}"),
                Some((None, Some(signal))) => format!("signal {signal}"),
                _ => "for no reason that the system gives".into(),
            };
            if let Some(ahead) = &mut self.ahead {
                ahead.ended(child.pid);
            }
            self.tell(&Report::Ended(child.request, why))?;
        }
        Ok(())
    }

    fn known(&self) -> Vec<Pid> {
        self.children.iter().map(|child| child.pid).collect()
    }

    fn tell(&mut self, report: &Report) -> Result<(), Error> {
        let mut line =
            serde_json::to_vec(report).map_err(|error| Error::Conversation(error.to_string()))?;
        line.push(b'\n');
        self.orders.write_all(&line).map_err(system("telling the platform"))
    }
}

/// What there is to hear.
struct Readable {
    has_orders: bool,
    has_reports: bool,
    /// Of each child, whether it has ended.
    ended: Vec<bool>,
}

/// What became of orders.
enum Obeyed {
    All,
    IsChild(u64),
    Closed,
}

fn variable(name: &'static str) -> Result<String, Error> {
    std::env::var(name).map_err(|_| Error::NoPlatform(name))
}

/// Begins, where there are destinations, or QPs for some, and a node.
fn make_ready(destinations: Vec<Gid>) -> Result<Option<Ahead>, Error> {
    let node = variable(NODE)?;
    let unassigned = variable(UNASSIGNED)?.parse().map_err(|_| Error::NoPlatform(UNASSIGNED))?;
    let is_asked = !destinations.is_empty() || unassigned > 0;
    if !is_asked || !std::path::Path::new(&node).exists() {
        return Ok(None);
    }
    let sessions = variable("ELVER_SESSIONS")?;
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
    let mut words = sessions.split(' ');
    let (Some(sessions), Some(sessions_max)) = (number(words.next()), number(words.next())) else {
        return Err(Error::NoPlatform("ELVER_SESSIONS"));
    };
    let amounts = Amounts { sessions, sessions_max, unassigned };
    Ok(Some(Ahead::start(Session::connect(node)?, destinations, amounts, connect_options()?)?))
}
