//! The communication manager (IBTA vol. 1, chapter 12) as a state machine: connections are asked for,
//! agreed to, refused and ended by messages on QP 1, and UD services are looked up by them.
//!
//! Input: commands of the consumer's, received messages with the address that they came from, the time.
//! Output: messages to send, and events. It keeps one timer for each connection.
//!
//! Peers are not trusted. A connection's number is drawn, all of its 32 bits, and a message that names it
//! counts only from the address that the connection is with. What strangers can make it hold is bounded:
//! requests that the consumer has not taken by each listener's backlog, and all of it by
//! [`Config::max_connections`]. No answer is longer than what it answers.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod command;
mod config;
mod connection;
mod event;
mod manager;
mod parting;
mod receive;
mod timer;

pub use config::{Config, Counters};
pub use event::{Answer, Event, Id, Offer, Refused, Request, Service};
pub use manager::Manager;

/// The rate of a connection's path, as REQ and path records have it (`IBV_RATE_100_GBPS`): about what memory moves, as the
/// port says, for programs that copy once more for a slow path.
pub const RATE: u8 = 16;

/// Why a REJ refuses (IBTA vol. 1, table 107), as far as it is said here.
pub mod reason {
    /// No room for another connection.
    pub const NO_RESOURCES: u16 = 3;
    /// Nobody answered in time.
    pub const TIMEOUT: u16 = 4;
    /// The connection that is named does not exist.
    pub const INVALID_COMMUNICATION_ID: u16 = 6;
    /// Nobody listens there.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// Another transport than RC and UC.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The number is of a connection that has ended.
    pub const STALE_CONNECTION: u16 = 10;
    /// The path's MTU is larger than the device's.
    pub const INVALID_PATH_MTU: u16 = 26;
    /// The consumer does not want it.
    pub const CONSUMER: u16 = 28;
}

/// What a SIDR_REP answers (IBTA vol. 1, table 121), as far as it is said here.
pub mod sidr {
    /// There is such a QP.
    pub const VALID: u8 = 0;
    /// Nobody listens there.
    pub const UNSUPPORTED: u8 = 1;
    /// The consumer does not want it.
    pub const REJECTED: u8 = 2;
}
