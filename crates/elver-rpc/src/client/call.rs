use std::marker::PhantomData;
use std::rc::Rc;

use elver::SessionCell;

use super::connection::{Connection, Wait};
use crate::error::{Error, unreadable};
use crate::message::{Message, decode};
use crate::protocol::{CallId, Outcome};

/// A call that is under way. Dropped, it is cancelled.
#[must_use = "a call that is dropped is cancelled"]
pub struct Call<Response> {
    connection: Rc<SessionCell<Connection>>,
    id: CallId,
    response: PhantomData<fn() -> Response>,
}

impl<Response: Message> Call<Response> {
    pub(super) fn new(connection: Rc<SessionCell<Connection>>, id: CallId) -> Call<Response> {
        Call { connection, id, response: PhantomData }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The server's status, or why there is none: [`Code::Cancelled`](crate::Code::Cancelled) also if a signal came
    /// ([`elver::SessionOptions::end_on_signal`]), which ends this call and no other.
    pub fn wait(self) -> Result<Response, Error> {
        let mut wait = Wait::default();
        loop {
            // What came for others before may be it.
            if let Some(answer) = self.answer() {
                return answer;
            }
            let mut connection = self.connection.borrow_mut();
            let came = connection.pump();
            if connection.caller.outcome(self.id).is_none() {
                connection.rest(&mut wait, came, None)?;
            }
        }
    }

    /// The answer, if it is there by now: once. Takes in what has come, and sends what was started.
    pub fn poll(&mut self) -> Option<Result<Response, Error>> {
        if !self.is_done() {
            self.connection.borrow_mut().pump();
        }
        self.answer()
    }

    /// Whether the answer is there, as far as is known: without looking for what has come.
    pub fn is_done(&self) -> bool {
        self.connection.borrow().caller.outcome(self.id).is_some()
    }

    /// Gives it up: the server is told, and the answer is [`Code::Cancelled`](crate::Code::Cancelled),
    /// unless it is there.
    pub fn cancel(&mut self) {
        let mut connection = self.connection.borrow_mut();
        connection.caller.cancel(self.id);
        connection.pump();
    }

    fn answer(&self) -> Option<Result<Response, Error>> {
        let connection = self.connection.borrow();
        Some(match connection.caller.outcome(self.id)? {
            Outcome::Answered => decode(connection.caller.message(self.id)).map_err(unreadable),
            Outcome::Failed(status, executed) => Err(connection.error(status, *executed)),
        })
    }

    pub(super) fn connection(&self) -> &SessionCell<Connection> {
        &self.connection
    }

    pub(super) fn id(&self) -> CallId {
        self.id
    }

    /// Why it failed, if it has. Whether a response can be read is seen when that is taken.
    pub(super) fn failure(&self) -> Option<Error> {
        let connection = self.connection.borrow();
        match connection.caller.outcome(self.id)? {
            Outcome::Answered => None,
            Outcome::Failed(status, executed) => Some(connection.error(status, *executed)),
        }
    }
}

impl<Response> Drop for Call<Response> {
    fn drop(&mut self) {
        let mut connection = self.connection.borrow_mut();
        let was_done = connection.caller.outcome(self.id).is_some();
        connection.caller.drop_call(self.id);
        if !was_done {
            connection.pump();
        }
    }
}

impl<Response> std::fmt::Debug for Call<Response> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("id", &self.id).finish_non_exhaustive()
    }
}
