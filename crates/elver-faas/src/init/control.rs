//! The socket to the orchestrator, over which orders come. An orchestrator that starts again listens at
//! the same place, and finds the container there.

use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use super::event::Event;
use super::log::say;
use crate::protocol::{CONTROL_SOCKET, receive};

/// How long to wait until the next attempt.
const AGAIN: Duration = Duration::from_millis(50);

pub(super) fn start(sockets: &Path, events: SyncSender<Event>) -> io::Result<()> {
    let path = sockets.join(CONTROL_SOCKET);
    let serve = move || {
        while connect(&path, &events) {
            thread::sleep(AGAIN);
        }
    };
    thread::Builder::new().name("orders".into()).spawn(serve).map(drop)
}

/// Listens to one orchestrator until it is gone. Whether another one is of use.
fn connect(path: &PathBuf, events: &SyncSender<Event>) -> bool {
    let Ok(stream) = UnixStream::connect(path) else { return true };
    let Ok(reading) = stream.try_clone() else { return true };
    if events.send(Event::Orchestrator(stream)).is_err() {
        return false;
    }
    let mut reading = BufReader::new(reading);
    loop {
        match receive(&mut reading) {
            Ok(Some(order)) => {
                if events.send(Event::Order(order)).is_err() {
                    return false;
                }
            }
            Ok(None) => return true,
            Err(error) => {
                say(format_args!("the orchestrator's order cannot be read: {error}"));
                // It ends the container then, which would hear nothing more.
                let _ = reading.get_ref().shutdown(Shutdown::Both);
                return true;
            }
        }
    }
}
