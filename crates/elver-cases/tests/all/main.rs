//! The case studies over rings.

mod examples;
