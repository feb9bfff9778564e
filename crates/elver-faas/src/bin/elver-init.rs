//! The first process of a function's container.

fn main() {}
