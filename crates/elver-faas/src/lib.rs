//! Serverless functions whose RDMA is ready when they start (Swift).

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod config;
pub mod schedule;
pub mod tables;

pub use config::Config;
