//! The methods of a server, without their types.

use std::collections::HashMap;

use super::context::{Context, Place, Responder, Returns};
use crate::message::{Encoder, Malformed, Message, decode};
use crate::method::Method;
use crate::status::{Code, Status};

/// What takes a request's stream of bytes.
pub trait Sink {
    /// What it answers in the end.
    type Response: Message;

    /// Takes bytes. More come when it returns: one that is slow keeps its thread's other calls waiting.
    ///
    /// # Errors
    /// A status ends the call.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Status>;

    /// The stream has ended.
    ///
    /// # Errors
    /// A status, instead of a response.
    fn end(&mut self) -> Result<Self::Response, Status>;
}

/// What gives a stream of bytes back.
pub trait Source {
    /// What it answers in the end.
    type Response: Message;

    /// Fills in bytes: how many; 0 when there are no more. It is asked for no more than the client has
    /// room for.
    ///
    /// # Errors
    /// A status ends the call.
    fn read(&mut self, room: &mut [u8]) -> Result<usize, Status>;

    /// All was read.
    ///
    /// # Errors
    /// A status, instead of a response.
    fn end(&mut self) -> Result<Self::Response, Status>;
}

/// As [`Sink`], with its response as bytes.
pub(super) trait BytesSink {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Status>;
    fn end(&mut self, reply: &mut Vec<u8>) -> Result<(), Status>;
}

impl<S: Sink> BytesSink for S {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Status> {
        Sink::write(self, bytes)
    }

    fn end(&mut self, reply: &mut Vec<u8>) -> Result<(), Status> {
        Sink::end(self).map(|response| put(&response, reply))
    }
}

/// As [`Source`], with its response as bytes.
pub(super) trait BytesSource {
    fn read(&mut self, room: &mut [u8]) -> Result<usize, Status>;
    fn end(&mut self, reply: &mut Vec<u8>) -> Result<(), Status>;
}

impl<S: Source> BytesSource for S {
    fn read(&mut self, room: &mut [u8]) -> Result<usize, Status> {
        Source::read(self, room)
    }

    fn end(&mut self, reply: &mut Vec<u8>) -> Result<(), Status> {
        Source::end(self).map(|response| put(&response, reply))
    }
}

type Unary = dyn FnMut(&[u8], &Context, &mut Vec<u8>) -> Result<(), Status>;
type Deferred = dyn FnMut(&[u8], Later) -> Result<(), Malformed>;
type Uploading = dyn FnMut(&[u8], &Context) -> Result<Box<dyn BytesSink>, Status>;
type Downloading = dyn FnMut(&[u8], &Context) -> Result<Box<dyn BytesSource>, Status>;

/// What does a method.
pub(super) enum Handler {
    Unary(Box<Unary>),
    Deferred(Box<Deferred>),
    Upload(Box<Uploading>),
    Download(Box<Downloading>),
}

/// What a responder is made of.
pub(super) struct Later {
    pub(super) returns: Returns,
    pub(super) place: Place,
    pub(super) context: Context,
}

/// Methods by number.
#[derive(Default)]
pub(super) struct Methods {
    handlers: HashMap<u32, (&'static str, Handler)>,
}

impl Methods {
    pub(super) fn get(&mut self, method: u32) -> Option<&mut Handler> {
        self.handlers.get_mut(&method).map(|(_, handler)| handler)
    }

    pub(super) fn add<Q, R>(&mut self, method: Method<Q, R>, handler: Handler) {
        let (id, name) = (method.id(), method.name());
        if let Some((other, _)) = self.handlers.insert(id, (name, handler)) {
            panic!("methods {other} and {name} have the same number, {id}");
        }
    }

    pub(super) fn unary<Q: Message, R: Message>(
        mut handler: impl FnMut(Q, &Context) -> Result<R, Status> + 'static,
    ) -> Handler {
        Handler::Unary(Box::new(move |message, context, reply| {
            let response = handler(request(message)?, context)?;
            put(&response, reply);
            Ok(())
        }))
    }

    pub(super) fn bytes(
        handler: impl FnMut(&[u8], &Context, &mut Vec<u8>) -> Result<(), Status> + 'static,
    ) -> Handler {
        Handler::Unary(Box::new(handler))
    }

    pub(super) fn deferred<Q: Message, R: Message>(
        mut handler: impl FnMut(Q, Responder<R>) + 'static,
    ) -> Handler {
        Handler::Deferred(Box::new(move |message, later| {
            let request = decode(message)?;
            let Later { returns, place, context } = later;
            handler(request, Responder::new(returns, place, context));
            Ok(())
        }))
    }

    pub(super) fn upload<Q: Message, S: Sink + 'static>(
        mut handler: impl FnMut(Q, &Context) -> Result<S, Status> + 'static,
    ) -> Handler {
        Handler::Upload(Box::new(move |message, context| {
            Ok(Box::new(handler(request(message)?, context)?))
        }))
    }

    pub(super) fn download<Q: Message, S: Source + 'static>(
        mut handler: impl FnMut(Q, &Context) -> Result<S, Status> + 'static,
    ) -> Handler {
        Handler::Download(Box::new(move |message, context| {
            Ok(Box::new(handler(request(message)?, context)?))
        }))
    }
}

fn request<Q: Message>(message: &[u8]) -> Result<Q, Status> {
    decode(message).map_err(unreadable)
}

pub(super) fn unreadable(malformed: Malformed) -> Status {
    Status::new(Code::InvalidArgument, format!("the request cannot be read: {malformed}"))
}

/// A response into an empty buffer.
fn put<R: Message>(response: &R, reply: &mut Vec<u8>) {
    reply.resize(response.encoded_len(), 0);
    response.encode(&mut Encoder::new(reply));
}
