//! The `elver` command.
fn main() {}
