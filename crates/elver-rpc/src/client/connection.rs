//! What all calls of a client have in common.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elver::{Gid, Session};
use elver_ring::{Carrier, Pause};

use super::options::ClientOptions;
use crate::error::{Error, ring_status};
use crate::link::Link;
use crate::protocol::{Begun, CallId, Caller, Greeting, Outlet};
use crate::ring::APPLICATION;
use crate::status::{Code, Executed, Status};

/// Frames that are taken before deadlines are looked at: a server may never stop to send.
const FRAMES_AT_ONCE: u32 = 256;

pub(super) struct Connection {
    pub(super) caller: Caller,
    link: Link,
    clock: Instant,
    /// What the connection failed with.
    cause: Option<Arc<elver_ring::Error>>,
}

impl Connection {
    pub(super) fn open(
        session: &Session,
        gid: Gid,
        port: u16,
        options: &ClientOptions,
        at_most: Option<Duration>,
    ) -> Result<Connection, Error> {
        let began = Instant::now();
        let ring = elver_ring::Options { application: APPLICATION, ..options.ring };
        let ends =
            elver_ring::connect(session, gid, port, ring, at_most).map_err(Error::of_ring)?;
        let link = Link::new(ends);
        let Some(body_max) = link.body_max() else {
            let why =
                "the ring to the server is too short for a frame: make its slots longer, or more";
            return Err(Error::new(Status::new(Code::InvalidArgument, why), Executed::No));
        };
        let caller = Caller::new(options.limits, body_max);
        let mut connection = Connection { caller, link, clock: began, cause: None };
        let mut wait = Wait::default();
        while connection.caller.server().is_none() {
            let came = connection.pump();
            if let Some(status) = connection.caller.over() {
                let error = Error::new(status.clone(), Executed::No);
                return Err(Error { cause: connection.cause(), ..error });
            }
            let left = at_most.map(|at_most| at_most.saturating_sub(began.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                let why = "the server did not answer the greeting in time";
                let status = Status::new(Code::DeadlineExceeded, why);
                return Err(Error::new(status, Executed::No));
            }
            connection.rest(&mut wait, came, left)?;
        }
        Ok(connection)
    }

    pub(super) fn server(&self) -> Option<&Greeting> {
        self.caller.server()
    }

    pub(super) fn now_us(&self) -> u64 {
        self.clock.elapsed().as_micros() as u64
    }

    pub(super) fn cause(&self) -> Option<Arc<elver_ring::Error>> {
        self.cause.clone()
    }

    /// Why a call has failed.
    pub(super) fn error(&self, status: &Status, executed: Executed) -> Error {
        Error { cause: self.cause(), ..Error::new(status.clone(), executed) }
    }

    pub(super) fn begin(
        &mut self,
        now_us: u64,
        call: Begun,
        encode: impl FnMut(&mut [u8]),
    ) -> Result<CallId, (Status, Executed)> {
        match self.caller.begin(now_us, call, encode, &mut self.link.outgoing) {
            Ok(begun) => begun.map_err(|status| (status, Executed::No)),
            Err(error) => {
                let status = ring_status(&error);
                self.failed(error);
                let may_go = self.link.outgoing.is_in_doubt();
                Err((status, if may_go { Executed::Maybe } else { Executed::No }))
            }
        }
    }

    /// Takes in what has come, and sends what there is; whether anything came.
    pub(super) fn pump(&mut self) -> bool {
        match self.try_pump() {
            Ok(came) => came,
            Err(error) => {
                self.failed(error);
                true
            }
        }
    }

    fn try_pump(&mut self) -> Result<bool, elver_ring::Error> {
        if self.caller.over().is_some() {
            return Ok(false);
        }
        let came = self.take_in(FRAMES_AT_ONCE)?;
        if self.caller.over().is_some() {
            return Ok(true);
        }
        let now_us = self.now_us();
        self.caller.handle_time(now_us);
        let sent = self.caller.transmit(now_us, &mut self.link.outgoing);
        if let Err(error) = sent.and_then(|_| self.link.outgoing.flush()) {
            // What the server said before it went counts: as much as a ring may hold.
            self.take_in(self.link.incoming.frames_max())?;
            return Err(error);
        }
        Ok(came)
    }

    /// Takes in what has come, as far as it is no more than so many frames; whether anything was there.
    fn take_in(&mut self, frames_max: u32) -> Result<bool, elver_ring::Error> {
        for taken in 0..frames_max {
            let Some(len) = self.link.incoming.try_next()? else {
                if self.link.incoming.is_ended() {
                    let why = "the server ended the connection";
                    self.caller.disconnect(&Status::new(Code::Unavailable, why));
                    return Ok(true);
                }
                return Ok(taken > 0);
            };
            if self.caller.handle(self.link.incoming.frame(len)).is_err() {
                // It is over, and whoever waits has been told.
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn failed(&mut self, error: elver_ring::Error) {
        let Status { message, .. } = ring_status(&error);
        self.caller.disconnect(&Status::new(Code::Unavailable, message));
        self.cause.get_or_insert(Arc::new(error));
    }

    /// To be called when a pump did not bring what is waited for.
    ///
    /// # Errors
    /// A signal ends the wait, which leaves the connection as it is.
    pub(super) fn rest(
        &mut self,
        wait: &mut Wait,
        came: bool,
        at_most: Option<Duration>,
    ) -> Result<(), Error> {
        if self.caller.over().is_some() {
            return Ok(());
        }
        if came {
            wait.pause = None;
            return Ok(());
        }
        let pause = wait.pause.get_or_insert_with(|| {
            let now_us = self.clock.elapsed().as_micros() as u64;
            let next = self.caller.next_deadline();
            let deadline = next.map(|next| Duration::from_micros(next.saturating_sub(now_us)));
            let both = [at_most, deadline];
            Pause::new(both.into_iter().flatten().min())
        });
        match self.link.wire().rest(pause) {
            Ok(()) => {}
            // A deadline has come.
            Err(elver_ring::Error::TimedOut) => wait.pause = None,
            // Meant for somebody else's wait on the session.
            Err(elver_ring::Error::Carrier(elver::Error::Woken)) => {}
            Err(elver_ring::Error::Carrier(elver::Error::Interrupted)) => {
                let status = Status::new(Code::Cancelled, "a signal has ended the wait");
                return Err(Error::new(status, Executed::Maybe));
            }
            Err(error) => self.failed(error),
        }
        Ok(())
    }
}

/// A wait that is going on.
#[derive(Default)]
pub(super) struct Wait {
    pause: Option<Pause>,
}
