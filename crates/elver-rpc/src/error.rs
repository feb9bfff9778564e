use std::sync::Arc;

use elver_ring::Refusal;

use crate::message::Malformed;
use crate::status::{Code, Executed, Status};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{status}")]
pub struct Error {
    /// What is wrong: the server's words, or those of this end.
    pub status: Status,
    /// Whether the server may have done what was asked. Nothing is tried again by itself.
    pub executed: Executed,
    /// What failed below, if the connection did.
    #[source]
    pub cause: Option<Arc<elver_ring::Error>>,
}

impl Error {
    pub(crate) fn new(status: Status, executed: Executed) -> Error {
        Error { status, executed, cause: None }
    }

    /// What the ring said, before anything was sent.
    pub(crate) fn of_ring(error: elver_ring::Error) -> Error {
        let status = ring_status(&error);
        Error { status, executed: Executed::No, cause: Some(Arc::new(error)) }
    }

    /// The status' code.
    pub fn code(&self) -> Code {
        self.status.code
    }
}

/// A connection's end, in gRPC's words.
pub(crate) fn ring_status(error: &elver_ring::Error) -> Status {
    let code = match error {
        elver_ring::Error::TimedOut => Code::DeadlineExceeded,
        elver_ring::Error::Config(_) | elver_ring::Error::Transfer { .. } => Code::InvalidArgument,
        elver_ring::Error::Refused {
            reason: Refusal::PeerShare | Refusal::Connection | Refusal::Crowded,
        }
        | elver_ring::Error::NoQueuePair { .. } => Code::ResourceExhausted,
        elver_ring::Error::Version { .. } => Code::FailedPrecondition,
        _ => Code::Unavailable,
    };
    Status::new(code, format!("the server cannot be reached: {error}"))
}

/// What cannot be read, of a server that answers something else than was agreed on.
pub(crate) fn unreadable(malformed: Malformed) -> Error {
    let why = format!("the response cannot be read: {malformed}");
    Error::new(Status::new(Code::Internal, why), Executed::Maybe)
}
