//! What rings and sessions say, as errors of IO: the kind is the one that a socket's user expects, and the
//! cause stays inside.

use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;

use elver::RefusalCode;
use elver_ring::Error;

/// Of a stream that is connected, or a listener.
#[cold]
pub(crate) fn of(error: Error) -> io::Error {
    let kind = match &error {
        // Without an allocation: these are no failures.
        Error::Full => return ErrorKind::WouldBlock.into(),
        Error::TimedOut => return ErrorKind::TimedOut.into(),
        Error::Ended | Error::Deaf => ErrorKind::BrokenPipe,
        Error::Fault(_) => ErrorKind::InvalidData,
        Error::Config(_) | Error::TooLong { .. } | Error::Transfer { .. } => {
            ErrorKind::InvalidInput
        }
        Error::Refused { .. } | Error::NoListener { .. } | Error::Version { .. } => {
            ErrorKind::ConnectionRefused
        }
        Error::NoQueuePair { .. } => ErrorKind::QuotaExceeded,
        Error::Carrier(error) => below(error),
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// What the client library says of a VQP or of the node.
fn below(error: &elver::Error) -> ErrorKind {
    match error {
        elver::Error::Interrupted => ErrorKind::Interrupted,
        elver::Error::NodeGone => ErrorKind::ConnectionAborted,
        // A waker's wait ends: who tries again (`read_exact`) would wait on.
        elver::Error::Woken | elver::Error::Forked | elver::Error::Invalid { .. } => {
            ErrorKind::Other
        }
        elver::Error::Refused { code, .. } => match code {
            RefusalCode::PortInUse => ErrorKind::AddrInUse,
            RefusalCode::Limit => ErrorKind::QuotaExceeded,
            RefusalCode::NoMemory => ErrorKind::OutOfMemory,
            RefusalCode::Permission => ErrorKind::PermissionDenied,
            _ => ErrorKind::ConnectionReset,
        },
        _ => ErrorKind::ConnectionReset,
    }
}

/// Of a stream that is being connected.
pub(crate) fn connecting(error: Error) -> io::Error {
    let Error::Carrier(below) = &error else { return of(error) };
    let kind = match below {
        elver::Error::Refused { code, .. } => match code {
            RefusalCode::NoSuchPort | RefusalCode::PeerGone | RefusalCode::Overrun => {
                ErrorKind::ConnectionRefused
            }
            RefusalCode::NoSuchNode | RefusalCode::NoMetaServer | RefusalCode::Unreachable => {
                ErrorKind::HostUnreachable
            }
            _ => return of(error),
        },
        _ => return of(error),
    };
    io::Error::new(kind, error)
}

/// A buffer that cannot be made.
pub(crate) fn buffer(bytes: u32, may_be: RangeInclusive<u32>) -> io::Error {
    let (least, most) = (may_be.start(), may_be.end());
    let text = format!("a stream's buffer has {least} to {most} bytes, and not {bytes}");
    io::Error::new(ErrorKind::InvalidInput, text)
}
