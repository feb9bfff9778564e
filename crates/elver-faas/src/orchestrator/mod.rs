//! The orchestrator: what the [schedule](crate::schedule) decides, done with real containers.
//!
//! All of it runs on one thread, so that nothing is locked. `RefCell`s are never held over an `await`.

mod api;
mod callers;
mod code_checks;
mod control;
mod core;
mod front;
mod http;
mod limits;
mod node;
mod room;
mod said;
mod stuck;
mod tables;
mod terms;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};

use self::core::{Orchestrator, Services};
use crate::config::Config;
use crate::state::{Programs, StateDirectory};

pub use self::tables::ServeError;

/// Serves until SIGINT or SIGTERM; then it takes no more requests, waits for those that it has, at most so long as the
/// configuration says or until another signal, and ends all containers. `ready` is called when callers may ask.
///
/// # Errors
/// [`ServeError`] if it cannot begin.
pub fn serve(
    config: Config,
    programs: &Programs<'_>,
    ready: impl FnOnce(&Path),
) -> Result<(), ServeError> {
    let file = |what: &str| {
        let what = what.to_string();
        move |error| ServeError::File { what, error }
    };
    let path = config.platform.state.clone().unwrap_or_else(StateDirectory::default_path);
    let directory = StateDirectory::open(&path, programs).map_err(file(&format!(
        "cannot use {} with {}",
        path.display(),
        programs.init.display()
    )))?;
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(file("cannot make an event loop"))?;
    let services = Services {
        door: |orchestrator, listener, container, process| {
            Box::pin(api::serve(orchestrator, listener, container, process))
        },
        control: |orchestrator, listener, id, expected| {
            Box::pin(control::serve(orchestrator, listener, id, expected))
        },
    };
    let orchestrator = Orchestrator::new(config, directory, services);
    let tasks = LocalSet::new();
    executor.block_on(tasks.run_until(until_signal(orchestrator, ready)))
}

async fn until_signal(
    orchestrator: Rc<Orchestrator>,
    ready: impl FnOnce(&Path),
) -> Result<(), ServeError> {
    let signals = |error| ServeError::File { what: "cannot hear signals".into(), error };
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupted = signal(SignalKind::interrupt()).map_err(signals)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(signals)?;
    let drain = Duration::from_secs(orchestrator.config.platform.drain_s);
    orchestrator.find_containers().await?;
    let socket = orchestrator.directory.own_front_socket();
    let file =
        |error| ServeError::File { what: format!("cannot listen at {}", socket.display()), error };
    let (serving, ending) = watch::channel(());
    let mut front = front::listen(orchestrator.clone(), &socket, ending).map_err(file)?;
    ready(&socket);
    let clock = spawn_local(orchestrator.clone().keep_time());
    let node = spawn_local(orchestrator.clone().keep_node());
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    drop(serving);
    tokio::select! {
        _ = &mut front => {}
        () = tokio::time::sleep(drain) => {}
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    front.abort();
    clock.abort();
    node.abort();
    orchestrator.end().await;
    Ok(())
}
