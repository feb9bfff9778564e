//! What an INIT process makes ready: connections of its own, and sessions for its children. It begins both and waits for
//! neither.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use elver::{
    ConnectOptions, Connecting, Destination, Gid, HeirState, Heirs, Policy, PrepareOptions,
    Preparing, Session, Vqp, VqpOptions,
};
use rustix::process::Pid;

use crate::assignments::{Assignments, QpNumber, Which};
use crate::error::{Error, system};
use crate::found::Found;
use crate::rdma::{MR_BYTES, NODE, Rdma, Unassigned};

/// How long until what the node refused, or a node that was away, is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long an INIT process waits for its sessions before it takes orders.
const SETTLE: Duration = Duration::from_millis(2);

/// A spell in which children begin without a connection is over when none has for so long.
const SPELL: Duration = Duration::from_secs(60);

/// Why a connection of a leased function may lack, beside a node that does not answer: who has no room, and what counts it.
const NO_ROOM: &str = "there was no room for a leased queue pair, at this node (transfer.leased_wrs_max; `elver status` \
     counts leases_refused), for this account (its share of that, or quota.leased_wrs; leases_refused_user) or at the peer \
     for this node (the peer's transfer.leased_wrs_max; leases_refused_peer), or the node could not connect them";

/// A connection that has been begun.
#[derive(Debug)]
struct Begun {
    /// None once this process has it.
    vqp: Option<Vqp>,
    going: Rc<Connecting>,
}

/// How many sessions are made ready for children, and with how many QPs beside those to the function's destinations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amounts {
    /// Of a set.
    pub(crate) sessions: u32,
    pub(crate) sessions_max: u32,
    pub(crate) unassigned: u32,
}

#[derive(Debug)]
pub(crate) struct Ahead {
    destinations: Vec<Gid>,
    amounts: Amounts,
    connect: ConnectOptions,
    /// Nothing is asked of the node before.
    again: Option<Instant>,
    session: Session,
    begun: Vec<Begun>,
    sets: Vec<Heirs>,
    preparing: Option<Preparing>,
    table: Assignments,
    found: Found,
    told: BTreeSet<Gid>,
    /// When a child last began without a connection of the function's.
    lacked: Option<Instant>,
}

impl Ahead {
    pub(crate) fn start(
        session: Session,
        destinations: Vec<Gid>,
        amounts: Amounts,
        connect: ConnectOptions,
    ) -> Result<Ahead, Error> {
        let table = Assignments::new(destinations.clone(), amounts.unassigned);
        let begun = begin(&session, &destinations, connect)?;
        let sessions = amounts.sessions.min(amounts.sessions_max);
        let mut ahead = Ahead {
            destinations,
            amounts: Amounts { sessions, ..amounts },
            connect,
            again: None,
            session,
            begun,
            sets: Vec::new(),
            preparing: None,
            table,
            found: Found::new().map_err(system("making a pipe for children"))?,
            told: BTreeSet::new(),
            lacked: None,
        };
        ahead.grow();
        Ok(ahead)
    }

    /// Begins anew if the node has ended, and another one is there.
    fn look_after(&mut self) {
        if !matches!(self.session.poll(), Err(elver::Error::NodeGone)) || !self.may_ask() {
            return;
        }
        self.again = Some(Instant::now() + AGAIN);
        // What is of the node that has ended is nobody's.
        self.sets.clear();
        self.preparing = None;
        self.table.clear();
        self.found.begin_anew();
        match self.begin_anew() {
            Ok(()) => self.grow(),
            Err(error) => eprintln!("elver-handler: nothing is made ready: {error}"),
        }
    }

    fn begin_anew(&mut self) -> Result<(), Error> {
        let session = open()?;
        self.begun = begin(&session, &self.destinations, self.connect)?;
        self.session = session;
        self.told.clear();
        self.again = None;
        Ok(())
    }

    fn may_ask(&self) -> bool {
        self.again.is_none_or(|again| Instant::now() >= again)
    }

    /// Prepares more sessions while fewer than half of a set are free, or of its QPs without a destination.
    fn grow(&mut self) {
        let Amounts { sessions, sessions_max, unassigned } = self.amounts;
        let have: u32 = self.sets.iter().map(Heirs::len).sum();
        let is_enough = sessions == 0 || have + sessions > sessions_max;
        if is_enough || self.preparing.is_some() || !self.may_ask() {
            return;
        }
        let has_half = |count: usize, of: u32| count * 2 >= of as usize;
        let has_sessions = has_half(self.table.free(|which| self.is_free(which)).count(), sessions);
        let has_qps = has_half(self.table.count_unassigned(), sessions * unassigned);
        if have > 0 && has_sessions && has_qps {
            return;
        }
        let connect = self.connect;
        let to = |gid: &Gid| Destination { connect, ..Destination::new(*gid) };
        let to: Vec<_> = self.destinations.iter().map(to).collect();
        let options = PrepareOptions {
            mr_len: MR_BYTES,
            must_connect: false,
            unassigned,
            connect_assigned: connect,
            ..PrepareOptions::default()
        };
        match self.session.prepare_start(sessions, &to, options) {
            Ok(preparing) => self.preparing = Some(preparing),
            Err(error) => self.later(&error),
        }
    }

    fn later(&mut self, error: &elver::Error) {
        self.again = Some(Instant::now() + AGAIN);
        eprintln!("elver-handler: no more sessions are prepared for children now: {error}");
    }

    /// Waits a moment for what is prepared. It is longer under way only if a destination does not answer.
    pub(crate) fn settle(&mut self) {
        let until = Instant::now() + SETTLE;
        while self.preparing.is_some() && Instant::now() < until {
            self.gather();
            rustix::thread::sched_yield();
        }
    }

    /// Takes what was prepared, if it is there.
    fn gather(&mut self) {
        let Some(preparing) = &self.preparing else { return };
        if matches!(preparing.poll(), Ok(false)) {
            return;
        }
        match self.preparing.take().map(Preparing::finish) {
            Some(Ok(heirs)) => {
                self.table.add(self.sets.len(), heirs.len());
                self.sets.push(heirs);
            }
            Some(Err(error)) => self.later(&error),
            None => {}
        }
    }

    fn is_free(&self, Which { set, number }: Which) -> bool {
        self.sets[set].state(number) == Some(HeirState::Free)
    }

    fn is_connected(&self, Which { set, number }: Which, at: usize) -> bool {
        u32::try_from(at).is_ok_and(|at| self.sets[set].is_connected(number, at))
    }

    /// The first QP of the session for a child that is about to be forked, to be connected to what is wanted if there is
    /// such a one; none if all are in use.
    pub(crate) fn choose(&mut self, wanted: &BTreeSet<Gid>) -> Option<QpNumber> {
        self.look_after();
        self.gather();
        self.hear();
        let is_connected = |which, at| self.is_connected(which, at);
        let first = self.table.choose(wanted, |which| self.is_free(which), is_connected);
        if let Some(first) = first {
            self.say_lacking(first);
        }
        first
    }

    /// Says that a child begins without connections of the function's: once, until none has for a while.
    fn say_lacking(&mut self, first: QpNumber) {
        let session = self.table.session(first);
        let lacks = |at: &usize| !self.is_connected(session, *at);
        let lacking: Vec<_> = (0..self.destinations.len()).filter(lacks).collect();
        if lacking.is_empty() {
            return;
        }
        let now = Instant::now();
        if self.lacked.replace(now).is_none_or(|last| now - last > SPELL) {
            let names: Vec<_> =
                lacking.iter().map(|at| self.destinations[*at].to_string()).collect();
            let why = match self.connect.policy {
                Policy::Leased => NO_ROOM,
                _ => "the node could not connect them",
            };
            let names = names.join(", ");
            eprintln!("elver-handler: children begin without a connection to {names}: {why}");
        }
    }

    pub(crate) fn assign(&mut self, first: Option<QpNumber>, child: Pid) {
        if let Some(first) = first {
            self.table.assign(first, child);
        }
        self.grow();
    }

    /// A child has ended. The node has its session ready again a moment later.
    pub(crate) fn ended(&mut self, child: Pid) {
        self.hear();
        self.table.ended(child);
    }

    /// What becomes readable when a child has something to tell.
    pub(crate) fn reports(&self) -> &OwnedFd {
        self.found.reports()
    }

    /// Hears where children have connected QPs of theirs: so they stay.
    pub(crate) fn hear(&mut self) {
        for (qp, destination) in self.found.take() {
            if let Some((Which { set, number }, place)) = self.table.connected(qp, destination)
                && let Err(error) = self.sets[set].assign(number, place, destination)
            {
                eprintln!("elver-handler: a connection is not kept: {error}");
            }
        }
    }

    /// Destinations that it is connected to, if they are others than were told.
    pub(crate) fn connected(&mut self) -> Option<Vec<String>> {
        let named = self.destinations.iter().zip(&self.begun);
        let is_there = |begun: &Begun| matches!(begun.going.poll(), Ok(Some(_)));
        let named = named.filter(|(_, begun)| is_there(begun)).map(|(gid, _)| *gid);
        let now: BTreeSet<Gid> = named.chain(self.table.reached()).collect();
        if now == self.told {
            return None;
        }
        self.told = now;
        Some(self.told.iter().map(Gid::to_string).collect())
    }

    /// What the INIT process itself has.
    pub(crate) fn own(&mut self) -> Result<Rdma, Error> {
        let mut rdma = Rdma::own(self.session.clone(), self.connect)?;
        for (gid, begun) in self.destinations.iter().zip(&mut self.begun) {
            if let Some(vqp) = begun.vqp.take() {
                rdma.begun.insert(*gid, (vqp, begun.going.clone()));
            }
        }
        Ok(rdma)
    }

    /// A child has no part in its parent's session: what its handler writes harms nobody.
    pub(crate) fn leave(&self) -> Result<(), Error> {
        Ok(self.session.leave_to_parent()?)
    }

    /// What a child takes over.
    pub(crate) fn inherit(&self, first: QpNumber) -> Result<Rdma, Error> {
        let Which { set, number } = self.table.session(first);
        let heir = self.sets[set].take(number)?;
        // What befell its QPs while it was nobody's.
        heir.session.poll()?;
        let Some(mr) = heir.mr else {
            return Err(elver::Error::Invalid { what: "a session without its region" }.into());
        };
        let (mut vqps, mut unassigned) = (BTreeMap::new(), Vec::new());
        let finder = self.found.finder();
        let entries = self.table.destinations(first);
        for ((qp, destination), vqp) in entries.zip(heir.vqps.into_iter().chain(heir.unassigned)) {
            let is_there = vqp.is_connected() && vqp.failure().is_none();
            match destination {
                Some(destination) if is_there => {
                    vqps.insert(destination, vqp);
                }
                // Its parent has not heard yet of where it went.
                None if is_there => {}
                // One with a destination was made before the node was told, or its node was away, or had no room: it is
                // connected when it is asked for, or says then why not.
                destination => {
                    unassigned.push((qp, destination, vqp));
                }
            }
        }
        let unassigned = Some(Unassigned { qps: unassigned, finder });
        let begun = BTreeMap::new();
        let (session, connect) = (heir.session, self.connect);
        Ok(Rdma { session, mr, inherited: true, connect, vqps, begun, unassigned })
    }
}

/// A session at the platform's node.
pub(crate) fn open() -> Result<Session, Error> {
    match std::env::var_os(NODE) {
        Some(path) if Path::new(&path).exists() => Ok(Session::connect(path)?),
        _ => Err(Error::NoNode),
    }
}

/// What a process that has no children has: a session, and connections that have been begun.
pub(crate) fn connecting(
    session: Session,
    destinations: &[Gid],
    connect: ConnectOptions,
) -> Result<Rdma, Error> {
    let begun = begin(&session, destinations, connect)?;
    let mut rdma = Rdma::own(session, connect)?;
    for (gid, Begun { vqp, going }) in destinations.iter().zip(begun) {
        rdma.begun.extend(vqp.map(|vqp| (*gid, (vqp, going))));
    }
    Ok(rdma)
}

/// What a text names with spaces between: each once, in whichever spelling.
pub(crate) fn gids(text: &str) -> Result<Vec<Gid>, Error> {
    let mut gids = Vec::new();
    for word in text.split_whitespace() {
        let gid = word.parse().map_err(|_| Error::NoGid(word.to_string()))?;
        if !gids.contains(&gid) {
            gids.push(gid);
        }
    }
    Ok(gids)
}

fn begin(
    session: &Session,
    to: &[Gid],
    connect: ConnectOptions,
) -> Result<Vec<Begun>, elver::Error> {
    let begin = |gid: &Gid| {
        let vqp = session.create_vqp(VqpOptions::default())?;
        let going = vqp.qconnect_start(*gid, 0, connect)?;
        Ok(Begun { vqp: Some(vqp), going: Rc::new(going) })
    };
    to.iter().map(begin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A destination that was spelled in two ways was connected, and leased, twice.
    #[test]
    fn a_destination_is_one_in_whichever_spelling() {
        let named = gids("10.0.0.1 ::ffff:10.0.0.1  ::FFFF:a00:1 fe80::1 FE80:0::0001").unwrap();
        assert_eq!(named.iter().map(Gid::to_string).collect::<Vec<_>>(), ["10.0.0.1", "fe80::1"]);
        assert_eq!(gids("").unwrap(), []);
        // Of what could be another number to others nothing is made.
        for wrong in ["nowhere", "10.0.0.01", "10.0.0.1/8", "fe80::1%eth0"] {
            let said = gids(&format!("10.0.0.1 {wrong}")).unwrap_err().to_string();
            assert!(said.contains(wrong), "{said}");
        }
    }
}
