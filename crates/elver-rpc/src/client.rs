//! The client: a connection, and calls over it.

mod call;
mod connection;
mod options;
mod streams;

use std::rc::Rc;
use std::time::{Duration, Instant};

use elver::{Gid, Session, SessionCell};

use crate::error::Error;
use crate::message::{Encoder, Message};
use crate::method::Method;
use crate::protocol::{Begun, CallerCounters, Greeting};

pub use call::Call;
pub use options::ClientOptions;
pub use streams::{Download, Upload};

use connection::Connection;

/// A connection to a server. Clones are the same connection.
///
/// A call that was [started](Client::start) goes with those after it, at the latest when something is
/// waited for or [`Client::flush`] is called. Answers come while something is waited for, or polled.
#[derive(Clone)]
pub struct Client {
    connection: Rc<SessionCell<Connection>>,
}

impl Client {
    /// Connects to a server's port, waiting at most so long.
    ///
    /// # Errors
    /// `Code::Unavailable` if nothing answers there, `Code::DeadlineExceeded`,
    /// `Code::FailedPrecondition` if the versions differ, and whatever the server refuses with, as
    /// `Code::ResourceExhausted`.
    pub fn connect(
        session: &Session,
        gid: Gid,
        port: u16,
        options: ClientOptions,
        at_most: Option<Duration>,
    ) -> Result<Client, Error> {
        let began = Instant::now();
        let first = Connection::open(session, gid, port, &options, at_most)?;
        let group = first.server().map_or((0, 0), |server| server.group);
        let own = options.spread.and_then(|spread| {
            let at = spread.checked_rem(group.1.into())? as u16;
            group.0.checked_add(at)
        });
        let connection = match own {
            Some(own) if own != port => {
                drop(first);
                let left = at_most.map(|at_most| at_most.saturating_sub(began.elapsed()));
                Connection::open(session, gid, own, &options, left)?
            }
            _ => first,
        };
        Ok(Client { connection: Rc::new(SessionCell::new(session, connection)) })
    }

    /// What the server said of itself: how many calls it takes at once, and how long ones.
    pub fn server(&self) -> Greeting {
        *self.connection.borrow().server().expect("it is connected")
    }

    /// What this end did.
    pub fn counters(&self) -> CallerCounters {
        *self.connection.borrow().caller.counters()
    }

    /// Calls that the server has not answered.
    pub fn under_way(&self) -> usize {
        self.connection.borrow().caller.under_way()
    }

    /// Calls, and waits for the answer.
    ///
    /// # Errors
    /// The server's status, or why there is none.
    pub fn call<Request: Message, Response: Message>(
        &self,
        method: Method<Request, Response>,
        request: &Request,
        deadline: Option<Duration>,
    ) -> Result<Response, Error> {
        self.start(method, request, deadline)?.wait()
    }

    /// Begins a call. As many may be under way as the server takes ([`Client::server`]).
    ///
    /// # Errors
    /// Nothing was sent: `Code::ResourceExhausted` if it is too long or too many are under way,
    /// `Code::Unavailable` if the connection is over. If that ends in this very call, the request may have gone:
    /// [`Error::executed`] tells.
    pub fn start<Request: Message, Response: Message>(
        &self,
        method: Method<Request, Response>,
        request: &Request,
        deadline: Option<Duration>,
    ) -> Result<Call<Response>, Error> {
        self.begin(method, request, deadline, (false, false))
    }

    /// Begins a call that a stream of bytes follows.
    ///
    /// # Errors
    /// As [`Client::start`].
    pub fn upload<Request: Message, Response: Message>(
        &self,
        method: Method<Request, Response>,
        request: &Request,
        deadline: Option<Duration>,
    ) -> Result<Upload<Response>, Error> {
        Ok(Upload::new(self.begin(method, request, deadline, (true, false))?))
    }

    /// Begins a call that a stream of bytes comes back from.
    ///
    /// # Errors
    /// As [`Client::start`].
    pub fn download<Request: Message, Response: Message>(
        &self,
        method: Method<Request, Response>,
        request: &Request,
        deadline: Option<Duration>,
    ) -> Result<Download<Response>, Error> {
        Ok(Download::new(self.begin(method, request, deadline, (false, true))?))
    }

    /// Sends what was started, and takes in what has come, without waiting. Whether anything came.
    pub fn flush(&self) -> bool {
        self.connection.borrow_mut().pump()
    }

    fn begin<Request: Message, Response: Message>(
        &self,
        method: Method<Request, Response>,
        request: &Request,
        deadline: Option<Duration>,
        (uploads, downloads): (bool, bool),
    ) -> Result<Call<Response>, Error> {
        let mut connection = self.connection.borrow_mut();
        let now_us = connection.now_us();
        let deadline_us = deadline.map(|deadline| {
            // One that is beyond all clocks is none.
            now_us.saturating_add(u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX))
        });
        let (method, len) = (method.id(), request.encoded_len());
        let begun = Begun { method, deadline_us, len, uploads, downloads };
        let encode = |room: &mut [u8]| request.encode(&mut Encoder::new(room));
        match connection.begin(now_us, begun, encode) {
            Ok(id) => {
                drop(connection);
                Ok(Call::new(self.connection.clone(), id))
            }
            Err((status, executed)) => {
                let cause = connection.cause();
                Err(Error { cause, ..Error::new(status, executed) })
            }
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("counters", &self.counters()).finish_non_exhaustive()
    }
}
