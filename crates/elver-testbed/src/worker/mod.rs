//! Processes that demonstrations and benchmarks start: their own program again
//! ([`Programs`](crate::programs::Programs)), with a task. What they have to say goes out as lines of
//! JSON; the end of their standard input ends them.

#[cfg(feature = "nodes")]
mod abroad;
pub mod client;
pub mod member;
mod process;
pub mod program;
mod sink;
mod target;
mod task;
mod tell;

use elver_console::Failure;

pub use process::Worker;
pub use task::{Known, OFFERED, Place, STEP, Task};

use crate::worker::tell::{Failed, tell};

/// Runs a worker with its task, in JSON.
///
/// # Errors
/// The task is not understood, or what it asks for failed.
pub fn run(task: &str) -> Result<(), Failure> {
    let task: Task = serde_json::from_str(task)
        .map_err(|error| Failure::unusable(format!("this is no task: {error}")))?;
    let done = match &task {
        // Nobody hears them any more when they have begun: what goes wrong they say to people.
        Task::Target { at } => return Ok(target::run(at)?),
        Task::Sink { at } => return Ok(sink::run(at)?),
        #[cfg(feature = "nodes")]
        Task::Abroad { at: _, meta, first, hosts } => {
            return Ok(abroad::run(*meta, *first, *hosts)?);
        }
        Task::Program { at, to } => program::read(at, to),
        Task::TcpProgram { at: _, server } => program::echo(*server),
        Task::Connects { at, to, way, repeats } => client::connects(at, to, way, *repeats),
        Task::Traffic { at, to, seed } => client::traffic(at, to, *seed),
        Task::Steady { at, to } => client::steady(at, to),
        Task::Victim { at, to } => client::victim(at, to),
        Task::Hot { at, to, repeats } => client::hot(at, to, *repeats),
        Task::First { at, to } => client::first(at, to),
        Task::Storm { at, to } => client::storm(at, to),
        Task::Member { at, alone } => member::run(at, *alone),
    };
    match done.or_else(|error| tell(&Failed { failed: format!("{error:#}") })) {
        // The parent has gone, and nobody waits for anything.
        Err(error) if is_unheard(&error) => Ok(()),
        done => done.map_err(Failure::Failed),
    }
}

fn is_unheard(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}
