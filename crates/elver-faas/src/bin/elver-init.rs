//! The first process of a function's container; the orchestrator starts it.

use std::io::{Error, ErrorKind};

fn main() -> std::io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [] => elver_faas::init::run(),
        [start, memory_max, keep, program, arguments @ ..] if start == "start" => {
            let memory_max = memory_max.to_str().and_then(|number| number.parse().ok());
            let keeps = keep == "keep";
            let memory_max = memory_max.ok_or_else(usage)?;
            elver_faas::init::become_program(memory_max, keeps, program, arguments)
                .map(|never| match never {})
        }
        _ => Err(usage()),
    }
}

fn usage() -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "usage: elver-init [start MEMORY_BYTES keep|leave PROGRAM [ARGUMENT]...]",
    )
}
