//! The first process of a function's container; the orchestrator starts it.

use std::io::{Error, ErrorKind};

fn main() -> std::io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [] => elver_faas::init::run(),
        [keep, program] if keep == "keep" => {
            elver_faas::init::become_keeper(program).map(|never| match never {})
        }
        _ => Err(Error::new(ErrorKind::InvalidInput, "usage: elver-init [keep PROGRAM]")),
    }
}
