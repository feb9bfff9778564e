use thiserror::Error;

/// Why bytes are no message of the communication manager, or values fit none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CmError {
    /// A management datagram has 256 bytes.
    #[error("{got} bytes, but a management datagram has 256")]
    Length {
        /// Bytes there.
        got: usize,
    },
    /// Unknown version of the header or of the class.
    #[error("base version {base} and class version {class}, but 1 and 2 are known")]
    Version {
        /// Version of the header.
        base: u8,
        /// Version of the class.
        class: u8,
    },
    /// Another class of management than communication management.
    #[error("management class {0:#04x} is not communication management")]
    Class(u8),
    /// Another method than Send, which all these messages have.
    #[error("method {0:#04x} is not Send")]
    Method(u8),
    /// An unknown message.
    #[error("unknown attribute {0:#06x}")]
    Attribute(u16),
    /// A field holds a reserved value.
    #[error("{field} is {value}, which is reserved")]
    Reserved {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: u8,
    },
    /// More private data or information than the message has room for.
    #[error("{got} bytes of {what}, but there is room for {max}")]
    Room {
        /// Which part.
        what: &'static str,
        /// Bytes given.
        got: usize,
        /// Most allowed.
        max: usize,
    },
    /// Private data that does not begin as rdma_cm's does.
    #[error("the private data has no header of rdma_cm's")]
    IpHeader,
}

impl CmError {
    /// A short name of the kind, in kebab case, for counters and labels.
    pub const fn reason(&self) -> &'static str {
        match self {
            CmError::Length { .. } => "length",
            CmError::Version { .. } => "version",
            CmError::Class(_) => "class",
            CmError::Method(_) => "method",
            CmError::Attribute(_) => "attribute",
            CmError::Reserved { .. } => "reserved",
            CmError::Room { .. } => "room",
            CmError::IpHeader => "ip-header",
        }
    }
}
