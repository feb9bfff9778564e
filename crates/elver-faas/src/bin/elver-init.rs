//! The first process of a function's container; the orchestrator starts it.

fn main() -> std::io::Result<()> {
    elver_faas::init::run()
}
