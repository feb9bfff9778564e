//! Calls with a stream of bytes, there or back.

use super::call::Call;
use super::connection::Wait;
use crate::error::Error;
use crate::message::Message;

/// A call whose request goes on in a stream of bytes. Dropped, it is cancelled.
#[derive(Debug)]
#[must_use = "a call that is dropped is cancelled"]
pub struct Upload<Response> {
    call: Call<Response>,
}

impl<Response: Message> Upload<Response> {
    pub(super) fn new(call: Call<Response>) -> Upload<Response> {
        Upload { call }
    }

    /// Sends bytes, waiting for credit: the server takes no more ahead than its window.
    ///
    /// # Errors
    /// The call has failed: with the server's status, or because nobody is there any more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut rest = bytes;
        let mut wait = Wait::default();
        while !rest.is_empty() {
            let room = self.room(&mut wait)?;
            let (piece, more) = rest.split_at(room.min(rest.len()));
            let mut connection = self.call.connection().borrow_mut();
            connection.caller.upload(self.call.id(), piece, false);
            connection.pump();
            rest = more;
        }
        Ok(())
    }

    /// Ends the stream, and waits for the answer.
    ///
    /// # Errors
    /// The server's status, or why there is none.
    pub fn finish(self) -> Result<Response, Error> {
        let mut wait = Wait::default();
        // The end takes no credit, but its turn behind what was written.
        loop {
            let mut connection = self.call.connection().borrow_mut();
            let id = self.call.id();
            if connection.caller.outcome(id).is_some() {
                break;
            }
            if connection.caller.is_sent(id) {
                connection.caller.upload(id, &[], true);
                break;
            }
            let came = connection.pump();
            connection.rest(&mut wait, came, None)?;
        }
        self.call.wait()
    }

    /// How many bytes may be sent, once some may.
    fn room(&self, wait: &mut Wait) -> Result<usize, Error> {
        loop {
            if let Some(error) = self.call.failure() {
                return Err(error);
            }
            let mut connection = self.call.connection().borrow_mut();
            match connection.caller.upload_room(self.call.id()) {
                Some(room @ 1..) => return Ok(room),
                _ => {
                    let came = connection.pump();
                    connection.rest(wait, came, None)?;
                }
            }
        }
    }
}

/// A call from which a stream of bytes comes back, and then its response. Dropped, it is cancelled.
#[derive(Debug)]
#[must_use = "a call that is dropped is cancelled"]
pub struct Download<Response> {
    call: Call<Response>,
}

impl<Response: Message> Download<Response> {
    pub(super) fn new(call: Call<Response>) -> Download<Response> {
        Download { call }
    }

    /// Reads bytes, waiting for some: how many. 0 when the stream has ended.
    ///
    /// # Errors
    /// The call has failed: what it sent before may be a part of what it should have.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        if into.is_empty() {
            return Ok(0);
        }
        let mut wait = Wait::default();
        loop {
            if let Some(error) = self.call.failure() {
                return Err(error);
            }
            let mut connection = self.call.connection().borrow_mut();
            match connection.caller.download(self.call.id(), into) {
                Some(0) => {
                    let came = connection.pump();
                    connection.rest(&mut wait, came, None)?;
                }
                Some(len) => return Ok(len),
                None => return Ok(0),
            }
        }
    }

    /// Waits for the response. What was not read of the stream is passed over.
    ///
    /// # Errors
    /// The server's status, or why there is none.
    pub fn finish(mut self) -> Result<Response, Error> {
        let mut passed_over = [0; 4096];
        while self.read(&mut passed_over)? > 0 {}
        self.call.wait()
    }
}
