//! What an INIT process makes ready: connections of its own, and sessions for its children. It begins both and waits for
//! neither.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use elver::{
    ConnectOptions, Connecting, Destination, Gid, HeirState, Heirs, PrepareOptions, Preparing,
    Session, Vqp, VqpOptions,
};
use rustix::process::Pid;

use crate::error::Error;
use crate::rdma::{MR_BYTES, NODE, Rdma};

/// How long until what the node refused, or a node that was away, is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long an INIT process waits for its sessions before it takes orders.
const SETTLE: Duration = Duration::from_millis(2);

/// Which session: of which set, and its number there.
pub(crate) type Which = (usize, u32);

/// A connection that has been begun.
#[derive(Debug)]
struct Begun {
    /// None once this process has it.
    vqp: Option<Vqp>,
    going: Rc<Connecting>,
}

/// It has the Assignment Table: which child has which session.
#[derive(Debug)]
pub(crate) struct Ahead {
    destinations: Vec<(String, Gid)>,
    /// Of a set.
    sessions: u32,
    sessions_max: u32,
    /// Nothing is asked of the node before.
    again: Option<Instant>,
    session: Session,
    begun: Vec<Begun>,
    sets: Vec<Heirs>,
    preparing: Option<Preparing>,
    assigned: BTreeMap<Which, Pid>,
    told: usize,
}

impl Ahead {
    pub(crate) fn start(
        session: Session,
        destinations: &[String],
        (sessions, sessions_max): (u32, u32),
    ) -> Result<Ahead, Error> {
        let parse = |text: &String| match text.parse() {
            Ok(gid) => Ok((text.clone(), gid)),
            Err(_) => Err(Error::NoGid(text.clone())),
        };
        let destinations = destinations.iter().map(parse).collect::<Result<Vec<_>, Error>>()?;
        let begun = begin(&session, &destinations)?;
        let mut ahead = Ahead {
            destinations,
            sessions: sessions.min(sessions_max),
            sessions_max,
            again: None,
            session,
            begun,
            sets: Vec::new(),
            preparing: None,
            assigned: BTreeMap::new(),
            told: 0,
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
        self.assigned.clear();
        match self.begin_anew() {
            Ok(()) => self.grow(),
            Err(error) => eprintln!("elver-handler: nothing is made ready: {error}"),
        }
    }

    fn begin_anew(&mut self) -> Result<(), Error> {
        let session = open()?;
        self.begun = begin(&session, &self.destinations)?;
        self.session = session;
        self.told = 0;
        self.again = None;
        Ok(())
    }

    fn may_ask(&self) -> bool {
        self.again.is_none_or(|again| Instant::now() >= again)
    }

    /// Prepares more sessions while fewer than half of a set are free.
    fn grow(&mut self) {
        let have: u32 = self.sets.iter().map(Heirs::len).sum();
        let is_enough = self.sessions == 0 || have + self.sessions > self.sessions_max;
        if is_enough || self.preparing.is_some() || !self.may_ask() {
            return;
        }
        if have > 0 && self.free().count() * 2 >= self.sessions as usize {
            return;
        }
        let to: Vec<_> = self.destinations.iter().map(|(_, gid)| Destination::new(*gid)).collect();
        let options =
            PrepareOptions { mr_len: MR_BYTES, must_connect: false, ..PrepareOptions::default() };
        match self.session.prepare_start(self.sessions, &to, options) {
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
            Some(Ok(heirs)) => self.sets.push(heirs),
            Some(Err(error)) => self.later(&error),
            None => {}
        }
    }

    fn free(&self) -> impl Iterator<Item = Which> + '_ {
        let all = self.sets.iter().enumerate().flat_map(|(index, heirs)| {
            (0..heirs.len()).map(move |number| ((index, number), heirs.state(number)))
        });
        all.filter(|(which, state)| {
            *state == Some(HeirState::Free) && !self.assigned.contains_key(which)
        })
        .map(|(which, _)| which)
    }

    /// The first free session, for a child that is about to be forked; none if all are in use.
    pub(crate) fn choose(&mut self) -> Option<Which> {
        self.look_after();
        self.gather();
        self.free().next()
    }

    pub(crate) fn assign(&mut self, which: Option<Which>, child: Pid) {
        if let Some(which) = which {
            self.assigned.insert(which, child);
        }
        self.grow();
    }

    /// A child has ended. The node has its session ready again a moment later.
    pub(crate) fn ended(&mut self, child: Pid) {
        self.assigned.retain(|_, of| *of != child);
    }

    /// Destinations that it is connected to, if there are more of them than were told.
    pub(crate) fn connected(&mut self) -> Option<Vec<String>> {
        let named = self.destinations.iter().zip(&self.begun);
        let is_there = |begun: &Begun| matches!(begun.going.poll(), Ok(Some(_)));
        let now: Vec<String> =
            named.filter(|(_, begun)| is_there(begun)).map(|((name, _), _)| name.clone()).collect();
        let more = now.len() > self.told;
        self.told = now.len();
        more.then_some(now)
    }

    /// What the INIT process itself has.
    pub(crate) fn own(&mut self) -> Result<Rdma, Error> {
        let mut rdma = Rdma::own(self.session.clone())?;
        for ((name, _), begun) in self.destinations.iter().zip(&mut self.begun) {
            if let Some(vqp) = begun.vqp.take() {
                rdma.begun.insert(name.clone(), (vqp, begun.going.clone()));
            }
        }
        Ok(rdma)
    }

    /// What a child takes over.
    pub(crate) fn inherit(&self, (index, number): Which) -> Result<Rdma, Error> {
        let heir = self.sets[index].take(number)?;
        let names = self.destinations.iter().map(|(name, _)| name.clone());
        // One whose node was away is connected anew, or says then why not.
        let there = names.zip(heir.vqps).filter(|(_, vqp)| vqp.failure().is_none());
        let Some(mr) = heir.mr else {
            return Err(elver::Error::Invalid { what: "a session without its region" }.into());
        };
        Ok(Rdma {
            session: heir.session,
            mr,
            inherited: true,
            vqps: there.collect(),
            begun: BTreeMap::new(),
        })
    }
}

/// A session at the platform's node.
pub(crate) fn open() -> Result<Session, Error> {
    match std::env::var_os(NODE) {
        Some(path) if Path::new(&path).exists() => Ok(Session::connect(path)?),
        _ => Err(Error::NoNode),
    }
}

fn begin(session: &Session, to: &[(String, Gid)]) -> Result<Vec<Begun>, elver::Error> {
    let begin = |(_, gid): &(String, Gid)| {
        let vqp = session.create_vqp(VqpOptions::default())?;
        let going = vqp.qconnect_start(*gid, 0, ConnectOptions::default())?;
        Ok(Begun { vqp: Some(vqp), going: Rc::new(going) })
    };
    to.iter().map(begin).collect()
}
