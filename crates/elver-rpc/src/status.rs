use std::fmt;

/// Why a call did not succeed, in gRPC's words and with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// Who called wants no answer any more.
    Cancelled = 1,
    /// Nobody knows: what a peer of another version says, for example.
    Unknown = 2,
    /// The request makes no sense, whatever the state of the server.
    InvalidArgument = 3,
    /// The time that was given has passed.
    DeadlineExceeded = 4,
    /// What was asked for is not there.
    NotFound = 5,
    /// What was to be made is there already.
    AlreadyExists = 6,
    /// Who called may not do that.
    PermissionDenied = 7,
    /// A bound was reached: of calls, of bytes, of clients.
    ResourceExhausted = 8,
    /// The server is not in a state for that; to try again does not help until it is.
    FailedPrecondition = 9,
    /// It collided with something else, and may be tried again from the beginning.
    Aborted = 10,
    /// Beyond the end of what is there.
    OutOfRange = 11,
    /// There is no such method.
    Unimplemented = 12,
    /// Something is broken at the server.
    Internal = 13,
    /// The server cannot be reached now.
    Unavailable = 14,
    /// Data are lost or broken.
    DataLoss = 15,
    /// Who called has not said who he is.
    Unauthenticated = 16,
}

impl Code {
    /// All of them, by number from 1 on.
    pub const ALL: [Code; 16] = [
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// The code of a number, which a peer may have made up: one that is none is [`Code::Unknown`], as in
    /// gRPC. 0 is success and no code.
    pub fn from_number(number: u8) -> Option<Code> {
        let at = usize::from(number.checked_sub(1)?);
        Some(Code::ALL.get(at).copied().unwrap_or(Code::Unknown))
    }

    /// gRPC's name.
    pub fn name(self) -> &'static str {
        match self {
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a call failed: a code for programs, a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    /// What kind of failure.
    pub code: Code,
    /// What was wrong, and what to do. Of at most [`Status::MESSAGE_MAX`] bytes when it is sent.
    pub message: String,
}

impl Status {
    /// Most bytes of a sentence that are sent; what is beyond is cut off.
    pub const MESSAGE_MAX: usize = 512;

    /// A status.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into() }
    }

    /// The sentence as it is sent in frames with bodies of at most so many bytes.
    pub(crate) fn sent_message(&self, body_max: usize) -> &str {
        let end = self.message.floor_char_boundary(body_max.min(Status::MESSAGE_MAX));
        &self.message[..end]
    }
}

/// Whether a call that failed was done all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// The server has done nothing for it: it may be tried again.
    No,
    /// It has, or may have.
    Maybe,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_grpc() {
        for (at, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, at + 1);
            assert_eq!(Code::from_number(code as u8), Some(code));
        }
        assert_eq!(Code::from_number(0), None);
        assert_eq!(Code::from_number(200), Some(Code::Unknown));
        assert_eq!((Code::DeadlineExceeded as u8, Code::Unavailable as u8), (4, 14));
    }

    #[test]
    fn a_long_sentence_is_cut_between_characters() {
        let status = Status::new(Code::Internal, "é".repeat(1000) + "x");
        assert_eq!(status.sent_message(1000).len(), 512);
        let status = Status::new(Code::Internal, format!("x{}", "é".repeat(1000)));
        assert_eq!(status.sent_message(1000).len(), 511);
        assert_eq!(status.sent_message(64).len(), 63);
    }
}
