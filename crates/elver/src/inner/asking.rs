//! Commands to the node, and who asks for their answers.

use std::time::Instant;

use elver_portal::{Command, First, RefusalCode, VqpOptions};
use elver_verbs::AccessFlags;

use super::Inner;
use super::awaited::{Awaited, Outcome, next};
use super::late::Late;
use crate::Error;
use crate::arena::Piece;
use crate::mr::Kind;
use crate::wait::Wait;

impl Inner {
    /// Gives a command whose answer will be asked for; returns its request.
    pub(crate) fn ask(&mut self, command: &Command<'_>) -> Result<u32, Error> {
        self.ask_within(self.link.patient(), command)
    }

    /// As [`Inner::ask`], while there is no room for it until a time at most: for who asks much.
    pub(crate) fn ask_until(
        &mut self,
        deadline: Option<Instant>,
        command: &Command<'_>,
    ) -> Result<u32, Error> {
        self.ask_within(Wait::until(deadline), command)
    }

    fn ask_within(&mut self, wait: Wait, command: &Command<'_>) -> Result<u32, Error> {
        let request = self.next_request();
        self.awaited.push(Awaited::new(request));
        let told = self.tell_within(wait, request, command);
        if told.is_err() {
            self.forget(request);
        }
        told.map(|()| request)
    }

    /// Asks for a VQP to be connected; returns the request.
    pub(crate) fn ask_connect(
        &mut self,
        vqp: u32,
        is_own_node: bool,
        command: &Command<'_>,
    ) -> Result<u32, Error> {
        let request = self.ask(command)?;
        let before = self.vqps.get_mut(&vqp).map(|entry| entry.begin_connect(request, is_own_node));
        if let Some(awaited) = self.awaited.iter_mut().find(|awaited| awaited.request == request) {
            // Not while there was no room for the command: what was told then is of the VQP as it is.
            (awaited.connects, awaited.before) = (Some(vqp), before);
        }
        Ok(request)
    }

    /// The greeting asked for a VQP and its connect, whose ends will be asked for.
    pub(crate) fn expect_first(&mut self, options: VqpOptions) {
        let create = Awaited { creates: Some(options), ..Awaited::new(First::CREATE) };
        self.awaited.extend([create, Awaited::new(First::CONNECT)]);
        self.last_request = First::CONNECT;
    }

    /// Gives a command whose answer nobody asks for.
    pub(crate) fn tell_only(&mut self, command: &Command<'_>) -> Result<(), Error> {
        let request = self.next_request();
        self.tell(request, command)
    }

    /// Deregisters a region, of which a piece of the arena may become free; returns when that is over.
    pub(crate) fn deregister(&mut self, lkey: u32, piece: Option<Piece>) -> Result<(), Error> {
        match self.ask(&Command::DeregisterMr { lkey }) {
            Ok(request) => {
                self.regions.remove(lkey);
                self.leaving.extend(piece.map(|piece| (request, piece)));
                self.outcome(request, Wait::for_an_answer()).map(drop)
            }
            // It was not told, and is later: who waited for room has waited for long enough.
            Err(error) => {
                self.is_unheard |= matches!(error, Error::TimedOut);
                self.let_go(Late::Region { lkey, piece });
                Err(error)
            }
        }
    }

    /// Tells the node that something was dropped: at once, or when it takes what it is told. If it is gone, so is what was
    /// dropped.
    pub(crate) fn let_go(&mut self, gone: Late) {
        if let Late::Region { lkey, .. } = gone {
            self.regions.remove(lkey);
        }
        if !self.is_own() {
            return;
        }
        self.late.push_back(gone);
        // Who drops much waits for a node that stands still but once.
        let mut wait = self.link.patient();
        while self.tell_late().is_ok() && !self.late.is_empty() && !self.is_unheard {
            if self.make_room(&mut wait).is_err() {
                self.is_unheard = true;
            }
        }
    }

    /// Gives a command and waits for the answer.
    pub(crate) fn call(&mut self, command: &Command<'_>) -> Result<Outcome, Error> {
        let request = self.ask(command)?;
        self.outcome(request, Wait::for_an_answer())
    }

    /// Asks for memory that the node makes: the request, and what came of it. A node of an older version makes it wherever it
    /// likes.
    pub(crate) fn allocate(
        &mut self,
        (len, addr): (u64, u64),
        access: AccessFlags,
        kind: Kind,
    ) -> Result<(u32, Outcome), Error> {
        let huge = kind.huge;
        if let Some(near) = kind.near.filter(|_| !self.places_nothing) {
            let command = Command::AllocMrNear { len, addr, access, huge, near };
            let request = self.ask(&command)?;
            match self.outcome(request, Wait::for_an_answer()) {
                Err(Error::Refused { code: RefusalCode::Unsupported, .. }) => {
                    self.places_nothing = true;
                }
                // The daemon may know of fewer nodes: it began before this one came, or is told of others.
                Err(Error::Refused { code: RefusalCode::OutOfRange, .. }) if !kind.is_named => {}
                outcome => return Ok((request, outcome?)),
            }
        }
        let request = self.ask(&Command::AllocMr { len, addr, access, huge })?;
        Ok((request, self.outcome(request, Wait::for_an_answer())?))
    }

    /// Waits for an answer. What the node makes for one that comes later is undone.
    pub(crate) fn outcome(&mut self, request: u32, wait: Wait) -> Result<Outcome, Error> {
        match self.wait(wait, |inner| inner.take(request)) {
            Ok(outcome) => outcome,
            // The answer may have come just before what is wrong.
            Err(error) => match self.take(request) {
                Some(outcome) => outcome,
                None => {
                    self.abandon(request);
                    Err(error)
                }
            },
        }
    }

    /// Takes an answer, if it is there.
    pub(crate) fn take(&mut self, request: u32) -> Option<Result<Outcome, Error>> {
        let at = self.awaited.iter().position(|awaited| awaited.request == request)?;
        self.awaited[at].outcome.as_ref()?;
        self.awaited.swap_remove(at).outcome.map(Outcome::into_result)
    }

    /// How a connect ended, if it has; as often as it is asked.
    pub(crate) fn ended(&mut self, request: u32) -> Option<Result<Outcome, Error>> {
        let awaited = self.awaited.iter_mut().find(|awaited| awaited.request == request)?;
        let outcome = awaited.outcome.clone()?;
        awaited.told = true;
        Some(outcome.into_result())
    }

    /// Nobody asks for an answer any more. A connect goes on, and its VQP is connected by it; what else is made, is undone.
    pub(crate) fn abandon(&mut self, request: u32) {
        let Some(at) = self.awaited.iter().position(|awaited| awaited.request == request) else {
            return;
        };
        if self.awaited[at].outcome.is_some() {
            self.awaited.swap_remove(at);
        } else {
            self.awaited[at].abandoned = true;
        }
    }

    /// Keeps a piece of the arena in use until the node answers a request that nobody asks for any more, and may yet register
    /// it.
    pub(crate) fn withhold(&mut self, request: u32, piece: Piece) {
        match self.awaited.iter_mut().find(|awaited| awaited.request == request) {
            Some(awaited) => awaited.piece = Some(piece),
            None => self.arena.give_back(piece),
        }
    }

    /// A VQP has gone: what it waited for concerns nobody.
    pub(crate) fn forget_connects(&mut self, vqp: u32) {
        self.awaited.retain(|awaited| !awaited.abandoned || awaited.connects != Some(vqp));
    }

    /// Asks for an answer no more.
    pub(crate) fn forget(&mut self, request: u32) {
        self.awaited.retain(|awaited| awaited.request != request);
    }

    fn next_request(&mut self) -> u32 {
        next(&mut self.last_request)
    }

    fn tell(&mut self, request: u32, command: &Command<'_>) -> Result<(), Error> {
        self.tell_within(self.link.patient(), request, command)
    }

    fn tell_within(
        &mut self,
        mut wait: Wait,
        request: u32,
        command: &Command<'_>,
    ) -> Result<(), Error> {
        self.check_own()?;
        // What was dropped goes first: it may be what a quota or a port is to be free of.
        while !self.late.is_empty() {
            self.tell_late()?;
            if !self.late.is_empty() {
                self.make_room(&mut wait)?;
            }
        }
        while !self.link.command(request, command)? {
            self.make_room(&mut wait)?;
        }
        self.ring()
    }

    /// Waits a little for the node to take something out of a full ring. What it tells meanwhile is
    /// taken, so that the two never wait for each other.
    #[cold]
    pub(super) fn make_room(&mut self, wait: &mut Wait) -> Result<(), Error> {
        self.ring()?;
        if !self.poll()? && self.link.rest(wait)? {
            self.rouse();
        }
        Ok(())
    }
}
