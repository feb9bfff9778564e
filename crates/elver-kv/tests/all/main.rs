//! The table, alone, under writers, and over devices: one program of tests.

mod common;
mod interleaving;
mod loopback;
mod simulated;
mod table;
