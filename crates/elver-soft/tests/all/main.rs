//! Two devices and what goes between them: one program of tests, so that what they
//! share is used by all of it.

mod beside;
mod clock;
mod common;
mod counters;
mod frames;
mod frames_tap;
mod intake;
mod loopback;
mod multicast;
mod wire_capture;
