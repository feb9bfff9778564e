//! The group's life: its ranks meet, and end together.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use elver_console::Failure;
use elver_msg::Rendezvous;
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use crate::ranks::Ranks;

/// What is passed on to ranks.
const PASSED_ON: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
/// Between looks at the rendezvous: what a peer writes wakes nobody there.
const LOOK: Duration = Duration::from_millis(1);
/// Between looks at ranks otherwise, should a signal be lost.
const LONGEST: Duration = Duration::from_secs(1);

/// Signals that this process gets, from now on.
pub(crate) fn signals() -> Result<Receiver<i32>> {
    let all = PASSED_ON.into_iter().chain([SIGCHLD]);
    let mut signals = Signals::new(all).context("cannot take signals")?;
    let (tell, told) = channel();
    std::thread::Builder::new().name("elver-signals".into()).spawn(move || {
        for signal in signals.forever() {
            if tell.send(signal).is_err() {
                return;
            }
        }
    })?;
    Ok(told)
}

pub(crate) struct Group<'a> {
    ranks: Ranks<'a>,
    /// Answers are read from here: it stays as long as the ranks.
    place: Rendezvous,
    have_met: bool,
    grace: Duration,
    /// A signal that was passed on.
    asked: Option<i32>,
    /// Why the ranks are ended, and until when they may end by themselves.
    over: Option<(End, Instant)>,
    /// Those that did not.
    killed: usize,
}

/// Why a group ends before its ranks have all come to a good end.
enum End {
    Failed {
        rank: u32,
        how: ExitStatus,
        others: usize,
    },
    /// It ended well, and others wait for it at the rendezvous.
    NeverCame {
        rank: u32,
        waiting: usize,
    },
    /// The node is gone.
    NoNode(elver_msg::Error),
}

impl<'a> Group<'a> {
    pub(crate) fn new(ranks: Ranks<'a>, place: Rendezvous, grace: Duration) -> Group<'a> {
        Group { ranks, place, have_met: false, grace, asked: None, over: None, killed: 0 }
    }

    /// Until all ranks have ended.
    pub(crate) fn run(mut self, signals: &Receiver<i32>) -> Result<(), Failure> {
        loop {
            self.reap()?;
            if self.ranks.left() == 0 {
                break;
            }
            self.meet();
            let now = Instant::now();
            let pause = match &self.over {
                Some((_, end)) if *end <= now && self.killed == 0 => {
                    self.killed = self.ranks.left();
                    self.ranks.signal(Signal::KILL);
                    LONGEST
                }
                Some((_, end)) if *end > now => LONGEST.min(*end - now),
                Some(_) => LONGEST,
                None if self.have_met => LONGEST,
                None => LOOK,
            };
            match signals.recv_timeout(pause) {
                Ok(signal) => self.pass_on(signal),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    Err(anyhow::anyhow!("no signals are taken any more"))?;
                }
            }
        }
        self.ranks.hear_out();
        self.told()
    }

    /// Hears of ranks that have ended.
    fn reap(&mut self) -> Result<()> {
        let over = self.ranks.reap()?;
        let failed = over.into_iter().filter(|(_, how)| !how.success());
        // One that was killed is why others failed, and not the other way round.
        let first = failed.min_by_key(|(rank, how)| (how.signal().is_none(), *rank));
        if let Some((rank, how)) = first {
            let others = self.ranks.left();
            self.end(End::Failed { rank, how, others });
        }
        Ok(())
    }

    /// Lets the ranks find each other.
    fn meet(&mut self) {
        if self.have_met || self.over.is_some() {
            return;
        }
        match self.place.poll() {
            Ok(true) => self.have_met = true,
            Ok(false) => {
                let missing = self.place.missing();
                let waiting = self.ranks.count() - missing.len();
                let never = missing.into_iter().find(|rank| self.ranks.has_ended(*rank));
                if let Some(rank) = never.filter(|_| waiting > 0) {
                    self.end(End::NeverCame { rank, waiting });
                }
            }
            Err(error) => self.end(End::NoNode(error)),
        }
    }

    /// Ends those that are left; the first reason counts.
    fn end(&mut self, why: End) {
        if self.over.is_none() {
            self.over = Some((why, Instant::now() + self.grace));
            self.ranks.signal(Signal::TERM);
        }
    }

    fn pass_on(&mut self, signal: i32) {
        if signal == SIGCHLD {
            return;
        }
        self.asked = self.asked.or(Some(signal));
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.ranks.signal(signal);
        }
    }

    /// What became of it.
    fn told(self) -> Result<(), Failure> {
        let Some((why, _)) = self.over else { return Ok(()) };
        let by_force = match self.killed {
            0 => String::new(),
            killed => {
                let grace = humantime::format_duration(self.grace);
                format!("; {killed} did not end within {grace}, and were killed")
            }
        };
        match why {
            End::Failed { rank, how, others } => {
                let code = code(how);
                let was_asked = self.asked.is_some() && self.asked == how.signal();
                let what = match how.signal() {
                    Some(signal) if was_asked => format!("ended by {}", name(signal)),
                    Some(signal) => format!("rank {rank} was killed by {}", name(signal)),
                    None => format!("rank {rank} ended with exit code {code}"),
                };
                let others = match others {
                    _ if was_asked => String::new(),
                    0 => String::new(),
                    1 => ", so that the other one was ended".into(),
                    others => format!(", so that the {others} others were ended"),
                };
                Err(Failure::handed_on(code, format!("{what}{others}{by_force}")))
            }
            End::NeverCame { rank, waiting } => Err(Failure::Failed(anyhow::anyhow!(
                "rank {rank} ended without joining the group, for which {waiting} others waited{by_force}; all \
                 ranks call elver_msg::Group::from_env, or none"
            ))),
            End::NoNode(error) => {
                let error = anyhow::Error::new(error);
                Err(error.context(format!("the ranks cannot meet{by_force}")).into())
            }
        }
    }
}

/// As a shell has it.
fn code(how: ExitStatus) -> u8 {
    let code = how.code().unwrap_or_else(|| 128 + how.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn name(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_string)
}
