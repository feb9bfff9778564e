//! The RNIC as its caller and its peers meet it: one program of tests, so that what they
//! share is used by all of it.

mod addresses;
mod amplification;
mod change;
mod common;
mod cqs;
mod dc;
mod later;
mod long;
mod multicast;
mod rights;
mod same;
mod shares;
mod strangers;
mod transport;
mod turns;
mod xrc;
