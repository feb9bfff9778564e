//! The first process of a container is the parent of all that lost theirs: it waits for every end.

use std::io;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;

use rustix::process::{WaitOptions, WaitStatus, wait};

use super::event::Event;

/// Starts to wait. What comes back is to be told of each process that was started.
pub(super) fn start(events: SyncSender<Event>) -> io::Result<Sender<()>> {
    let (started, processes) = mpsc::channel::<()>();
    let serve = move || {
        // Between two starts there may be no child to wait for.
        while processes.recv().is_ok() {
            while let Ok(Some((pid, status))) = wait(WaitOptions::empty()) {
                if events.send(Event::Reaped(pid, describe(status))).is_err() {
                    return;
                }
            }
        }
    };
    thread::Builder::new().name("reaper".into()).spawn(serve)?;
    Ok(started)
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for no reason that the system gives".into(),
    }
}
