//! `/dev/infiniband/rdma_cm`, as the genuine librdmacm speaks to it: what it writes is answered here, over
//! the communication manager of [`elver_cm`] on QP 1 of the device.

pub mod abi;
mod address;
mod bound;
mod calls;
mod carrier;
mod command;
mod copies;
mod drawn;
mod ends;
pub(crate) mod fd;
mod multicast;
mod parting;
mod ports;
pub(crate) mod state;
