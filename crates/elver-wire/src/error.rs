use thiserror::Error;

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// Shorter than its headers.
    #[error("{got} bytes, but the headers and the ICRC need {needed}")]
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        got: usize,
    },
    /// Payload longer than the largest path MTU, or where none belongs.
    #[error("{got} bytes of payload, but at most {max} belong here")]
    Oversized {
        /// Bytes there.
        got: usize,
        /// Most allowed.
        max: usize,
    },
    /// Unknown version of the transport header, or of our DC header.
    #[error("unknown header version {0}")]
    Version(u8),
    /// Unknown opcode.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// More padding than payload, or a length that is no multiple of 4.
    #[error("padding does not fit the length")]
    Padding,
    /// A reserved field of our DC headers is not zero, or a DC response says that it connects.
    #[error("a reserved field is not zero")]
    Reserved,
    /// Unknown syndrome.
    #[error("unknown syndrome {0:#04x}")]
    Syndrome(u8),
}

impl ParseError {
    /// A short name of the kind, in kebab case, for counters and labels.
    pub const fn reason(&self) -> &'static str {
        match self {
            ParseError::Truncated { .. } => "truncated",
            ParseError::Oversized { .. } => "oversized",
            ParseError::Version(_) => "version",
            ParseError::Opcode(_) => "opcode",
            ParseError::Padding => "padding",
            ParseError::Reserved => "reserved",
            ParseError::Syndrome(_) => "syndrome",
        }
    }
}
