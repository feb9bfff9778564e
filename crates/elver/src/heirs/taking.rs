//! How a child gets a session.
//!
//! The node looks who the child is, and the child makes meanwhile what it will have of the session: rings that it may write,
//! and handles. It writes nothing there before the node has said that the session is its own; if that says something else, the
//! child has no access to it any more.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use elver_portal::{Message, Received, Record, Socket, VqpOptions};
use elver_verbs::{Gid, QpState};

use super::{Heir, Heirs, PrepareOptions};
use crate::fork::{Origin, generation};
use crate::inner::UNEXPECTED;
use crate::link::{self, GREETING, Link};
use crate::wait::{SLEEP_MAX, sleep};
use crate::{Error, Mr, NotInherited, Session, Vqp};

#[cfg(test)]
mod tests;

impl Heirs {
    /// Takes a session over, in a child: it is the child's until that ends, and nobody else's. The node
    /// asks the system who the child is, and whose; no answer of the child's own counts. The session by which the
    /// set was prepared is left to the parent ([`Session::leave_to_parent`]).
    ///
    /// # Errors
    /// [`Error::NotInherited`] says why this process does not get it; [`Error::Rejected`] is what the
    /// node has against it: it changed its user, the parent has ended, or the node was started anew.
    /// [`Error::NoDaemon`] and [`Error::NodeGone`].
    pub fn take(&self, heir: u32) -> Result<Heir, Error> {
        if heir >= self.len() {
            return Err(NotInherited::NoSuch { heir, count: self.len() }.into());
        }
        self.check()?;
        match self.all.record(heir) {
            Record::Free => self.claim(Some(heir)),
            Record::Taken { pid } => Err(NotInherited::Taken { heir, pid }.into()),
            Record::Making => Err(NotInherited::Making { heir }.into()),
        }
    }

    /// As [`Heirs::take`], any that is free: for parents that do not say which is whose.
    ///
    /// # Errors
    /// As [`Heirs::take`]; [`Error::Rejected`] if none is free.
    pub fn take_any(&self) -> Result<Heir, Error> {
        self.check()?;
        self.claim(None)
    }

    /// Whether this process may take one.
    fn check(&self) -> Result<(), NotInherited> {
        match generation().wrapping_sub(self.generation) {
            0 => Err(NotInherited::Parent),
            1 => match self.taken.get() {
                Some(heir) => Err(NotInherited::Twice { heir }),
                None => Ok(()),
            },
            _ => Err(NotInherited::Grandchild),
        }
    }

    fn claim(&self, wanted: Option<u32>) -> Result<Heir, Error> {
        let socket = Socket::connect(&self.path, self.session.patience).map_err(|reason| {
            match reason.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NodeGone,
                io::ErrorKind::TimedOut => Error::Silent,
                _ => Error::Connect { path: self.path.clone(), reason },
            }
        })?;
        let socket = Rc::new(socket);
        socket.send(&Message::Inherit { set: self.set, heir: wanted }, None).map_err(|reason| {
            match reason.kind() {
                io::ErrorKind::BrokenPipe => Error::NodeGone,
                _ => Error::System { call: "greeting the node", reason },
            }
        })?;
        // While the node looks who this is.
        link::trusted(&self.path, &socket)?;
        self.parent.leave_to_parent()?;
        let heir = match wanted {
            Some(number) => self.await_grant(number, &socket)?,
            None => self.make(self.granted(&socket, None)?, &socket)?,
        };
        let (number, inner) = (heir.number, &heir.session.inner);
        self.taken.set(Some(number));
        self.all.keep(number).map_err(|reason| system("leaving the other sessions", reason))?;
        inner.borrow_mut().belongs_to(Origin(generation()));
        Ok(heir)
    }

    /// What a child has of a session, made while the node looks who this is.
    fn await_grant(&self, number: u32, socket: &Rc<Socket>) -> Result<Heir, Error> {
        let times = self.all.times(number);
        let heir = self.make(number, socket)?;
        let granted = self.granted(socket, Some(number));
        if granted.is_ok() && self.all.times(number) == times {
            return Ok(heir);
        }
        // It is another's; or was, and is not the same any more.
        drop(heir);
        self.all.close(number).map_err(|reason| system("closing a session", reason))?;
        self.make(granted?, socket)
    }

    /// What a child has of a session, as the records say. It is not the child's before [`Inner::belongs_to`] says so: until then
    /// nothing that is made or dropped writes into the rings.
    fn make(&self, number: u32, socket: &Rc<Socket>) -> Result<Heir, Error> {
        let end = self.all.open(number).map_err(|reason| system("opening a session", reason))?;
        let mut link = Link::over(socket.clone(), end, self.welcome, self.session);
        link.path = Some(self.path.clone());
        let session = Session::of(link);
        session.inner.borrow_mut().belongs_to(Origin(self.generation));
        let inherit = |at: u32, options: &VqpOptions, peer: Option<Gid>| {
            let (id, via) = self.all.vqp(number, at);
            let state = if via.is_some() { QpState::Rts } else { QpState::Reset };
            Vqp::inherited(&session, id, state, options, peer)
        };
        let destinations = self.destinations.iter().zip(0..);
        let vqps = destinations.map(|(to, at)| inherit(at, &to.options, Some(to.gid))).collect();
        let (named, assigned) = (self.destinations.len() as u32, self.assigned.borrow());
        let unassigned = (0..self.options.unassigned).map(|at| {
            let peer = assigned.get(&(number, at)).copied();
            inherit(named + at, &VqpOptions::default(), peer)
        });
        let unassigned = unassigned.collect();
        let PrepareOptions { mr_len, access, .. } = self.options;
        let mr = Mr::inherited(&session, mr_len, self.all.keys(number), access);
        Ok(Heir { number, session, vqps, unassigned, mr })
    }

    /// Waits for the node's answer: which session it is, of this set and the one that was asked for.
    fn granted(&self, socket: &Socket, wanted: Option<u32>) -> Result<u32, Error> {
        let number = granted(socket, self.session.patience)?;
        let is_right = number < self.len() && wanted.is_none_or(|wanted| wanted == number);
        if is_right { Ok(number) } else { Err(UNEXPECTED) }
    }
}

fn system(call: &'static str, reason: io::Error) -> Error {
    Error::System { call, reason }
}

/// Waits for the node's answer: which session it is.
fn granted(socket: &Socket, patience: Duration) -> Result<u32, Error> {
    let began = Instant::now();
    loop {
        match link::receive(socket)? {
            Received::Message(Message::Inherited { heir }, _) => return Ok(heir),
            Received::Message(Message::Rejected { text }, _) => {
                return Err(Error::Rejected { text });
            }
            Received::Invalid(error) => return Err(Error::Version(error)),
            Received::Closed => return Err(Error::NodeGone),
            Received::Message(..) | Received::Nothing => {}
        }
        let waited = began.elapsed();
        if waited > patience {
            return Err(Error::Silent);
        }
        if waited > GREETING {
            sleep(socket, None, SLEEP_MAX)?;
        }
    }
}
