//! What an INIT process makes ready for its children's RDMA, by a thread of its own while the runtime
//! imports the handler (Swift, §4.1.2): the node looks the destinations up, so that connecting there
//! takes no request more. A runtime that has the module for Python connects then itself; of others, it is told what
//! the node knows.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::thread;

use elver::{Gid, Session};

use super::event::Event;
use super::log::say;
use crate::protocol::NODE_SOCKET;
use crate::schedule::ProcessId;

/// Begins, where there are destinations and a node. What the node knows then is told to `events`.
pub(super) fn start(process: ProcessId, destinations: &[Gid], events: Option<SyncSender<Event>>) {
    let socket = Path::new(NODE_SOCKET);
    if destinations.is_empty() || !socket.exists() {
        return;
    }
    let destinations = destinations.to_vec();
    let look_up = move || match warm(socket, &destinations) {
        Ok(connections) => {
            if let Some(events) = events {
                // Nobody is there to be told only if the container ends.
                let _ = events.send(Event::Connected(process, connections));
            }
        }
        Err(error) => say(format_args!("the node made nothing ready: {error}")),
    };
    if let Err(error) = thread::Builder::new().name("node".into()).spawn(look_up) {
        say(format_args!("no thread to ask the node: {error}"));
    }
}

/// Which destinations the node knows now.
fn warm(socket: &Path, destinations: &[Gid]) -> Result<BTreeSet<Gid>, elver::Error> {
    let session = Session::connect(socket)?;
    let mut known = BTreeSet::new();
    for gid in destinations {
        if session.warm(&[*gid])?.0 == 1 {
            known.insert(*gid);
        } else {
            say(format_args!("{gid} did not answer; the function connects to it itself"));
        }
    }
    session.close()?;
    Ok(known)
}
