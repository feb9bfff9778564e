//! Messages of the communication manager: management datagrams (MADs) that set up and end connections
//! of queue pairs (IBTA vol. 1, 12.6; the header, 13.4.3), and the private data by which rdma_cm tells
//! of IP addresses (annex A11).
//!
//! They travel in UD datagrams from QP 1 to QP 1 under [`QKEY`]. [`Mad::parse`] checks received bytes;
//! [`Mad::write`] makes them.

mod error;
mod ip;
mod mad;
mod message;

pub use error::CmError;
pub use ip::{IpHeader, service_id};
pub use mad::{MAD_LEN, Mad};
pub use message::{Message, Rejected, Rep, Req, SidrRep};

/// The Q_Key of QP 1 (IBTA vol. 1, 10.2.4).
pub const QKEY: u32 = 0x8001_0000;
