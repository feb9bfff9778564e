//! The core on simulated devices.

mod accepted;
mod backpressure;
mod churn;
mod common;
mod crowds;
mod deregistrations;
mod distances;
mod fate;
mod forged;
mod keep_alive;
mod links;
mod memory;
mod mute;
mod not_ready;
mod one_sided;
mod order;
mod outages;
mod qos;
mod random;
mod reads_in_flight;
mod recovery;
mod restart;
mod runs;
mod terms;
mod together;
mod two_sided;
