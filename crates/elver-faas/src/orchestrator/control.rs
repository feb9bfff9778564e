//! A container's side of the orchestrator: orders go to its `elver-init`, reports come back.
//!
//! A new container's first connection is `elver-init`'s, since nothing else runs before it, and the only one. That of one
//! that was found is of its first process, as the system says. When it ends, the container has.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout_at};

use super::core::Orchestrator;
use super::tables::{Expected, ORDERS_MAX};
use crate::accepting;
use crate::protocol::{LINE_MAX, Order, Report};
use crate::schedule::{ContainerId, Found};

/// How long a container that was found running may take to connect and to tell of its processes.
const FOUND_MAX: Duration = Duration::from_secs(5);

/// Reports of one container after which others are served: what has been read of them already asks for no wait.
const REPORTS_AT_ONCE: usize = 32;

/// Serves a container until it ends.
pub(super) async fn serve(
    orchestrator: Rc<Orchestrator>,
    listener: UnixListener,
    id: ContainerId,
    expected: Expected,
) {
    let most = match expected {
        Expected::New => Duration::from_secs(orchestrator.config.platform.init_timeout_s),
        Expected::Found(_) => FOUND_MAX,
    };
    let why = match greeted(listener, expected, most).await {
        Err(why) => why,
        Ok(greeted) => match hear(&orchestrator, greeted, id, expected).await {
            Ok(()) => "its first process ended".to_string(),
            Err(error) => format!("its elver-init said what cannot be read: {error}"),
        },
    };
    orchestrator.delete(id, &why);
}

/// A container's `elver-init` that has said its first word.
#[derive(Debug)]
struct Greeted {
    reading: BufReader<OwnedReadHalf>,
    writing: OwnedWriteHalf,
    processes: Vec<Found>,
}

/// The error is why the container is ended.
async fn greeted(
    listener: UnixListener,
    expected: Expected,
    most: Duration,
) -> Result<Greeted, String> {
    let until = Instant::now() + most;
    let Ok(stream) = timeout_at(until, first_process(&listener, expected)).await else {
        return Err(format!("its elver-init did not connect within {} ms", most.as_millis()));
    };
    // Nobody else is to be taken for elver-init.
    drop(listener);
    let (reading, writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    match timeout_at(until, receive(&mut reading)).await {
        Ok(Ok(Some(Report::Hello { processes }))) => Ok(Greeted { reading, writing, processes }),
        Ok(Ok(None)) => Err("its first process ended".into()),
        Ok(Ok(Some(_))) => Err("its elver-init's first word is no hello".into()),
        Ok(Err(error)) => Err(format!("its elver-init said what cannot be read: {error}")),
        Err(_) => {
            Err(format!("its elver-init connected and said nothing within {} ms", most.as_millis()))
        }
    }
}

async fn first_process(listener: &UnixListener, expected: Expected) -> UnixStream {
    loop {
        let (stream, _) = accepting::next(|cx| listener.poll_accept(cx)).await;
        let pid = stream.peer_cred().ok().and_then(|cred| cred.pid());
        match expected {
            Expected::New => return stream,
            Expected::Found(first) if pid == Some(first) => return stream,
            // A function's process, which would be taken for it.
            Expected::Found(_) => {}
        }
    }
}

async fn hear(
    orchestrator: &Rc<Orchestrator>,
    greeted: Greeted,
    id: ContainerId,
    expected: Expected,
) -> io::Result<()> {
    let Greeted { mut reading, writing, processes } = greeted;
    let (orders, to_write) = mpsc::channel(ORDERS_MAX);
    spawn_local(write(writing, to_write));
    if let Some(home) = orchestrator.state.borrow_mut().homes.get_mut(&id) {
        home.orders = Some(orders);
    }
    match expected {
        Expected::New => orchestrator.with(|schedule, now| schedule.container_runs(now, id)),
        Expected::Found(_) => adopt(orchestrator, id, processes),
    }
    let mut heard: usize = 0;
    while let Some(report) = receive(&mut reading).await? {
        handle(orchestrator, id, report);
        heard = heard.wrapping_add(1);
        if heard.is_multiple_of(REPORTS_AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

fn adopt(orchestrator: &Rc<Orchestrator>, id: ContainerId, processes: Vec<Found>) {
    for found in processes {
        let (process, function) = (found.process, found.function.clone());
        orchestrator.with(|schedule, now| schedule.adopt_process(now, id, found));
        if orchestrator.state.borrow().schedule.container_of(process) != Some(id) {
            continue;
        }
        match orchestrator.open_door(id, process, &function) {
            Ok(door) => {
                orchestrator.state.borrow_mut().doors.insert(process, door);
            }
            Err(error) => eprintln!("cannot listen for a process that was found: {error}"),
        }
    }
    orchestrator.with(|schedule, now| schedule.container_runs(now, id));
}

/// What a container tells counts for its own processes alone.
fn handle(orchestrator: &Rc<Orchestrator>, id: ContainerId, report: Report) {
    let is_its = |process| orchestrator.state.borrow().schedule.container_of(process) == Some(id);
    match report {
        Report::Connected { process, connections } if is_its(process) => {
            orchestrator.with(|schedule, _| schedule.connected(process, connections));
        }
        Report::ChildEnded { process, request, why } if is_its(process) => {
            orchestrator.with(|schedule, now| schedule.child_ended(now, process, request, &why));
        }
        Report::RequestLost { process, request, why } if is_its(process) => {
            orchestrator.with(|schedule, now| schedule.lost(now, process, request, &why));
        }
        Report::HasThreads { process } if is_its(process) => {
            orchestrator.with(|schedule, now| schedule.has_threads(now, process));
        }
        Report::ProcessEnded { process, why } if is_its(process) => {
            let door = orchestrator.state.borrow_mut().doors.remove(&process);
            let failed = door.and_then(|mut door| door.start_failed.take());
            let why = failed.unwrap_or(why);
            orchestrator.with(|schedule, now| schedule.process_ended(now, process, &why));
        }
        // Of a process that is gone, or never was its own.
        _ => {}
    }
}

async fn write(mut writing: OwnedWriteHalf, mut orders: mpsc::Receiver<Order>) {
    while let Some(order) = orders.recv().await {
        let Ok(mut line) = serde_json::to_vec(&order) else { return };
        line.push(b'\n');
        if writing.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn receive(reading: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Report>> {
    let mut line = Vec::new();
    reading.take(LINE_MAX as u64).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that connected and said nothing was waited for without an end.
    #[tokio::test(start_paused = true)]
    async fn who_connects_says_hello_in_time() {
        const HELLO: &[u8] = b"{\"hello\":{\"processes\":[]}}\n";
        for (said, is_greeted) in [(HELLO, true), (&HELLO[..9], false), (b"", false)] {
            let place = tempfile::tempdir().unwrap();
            let socket = place.path().join("control");
            let listener = UnixListener::bind(&socket).unwrap();
            let mut init = UnixStream::connect(&socket).await.unwrap();
            init.write_all(said).await.unwrap();
            let expected = Expected::Found(std::process::id().try_into().unwrap());
            let greeted = greeted(listener, expected, FOUND_MAX);
            match tokio::time::timeout(FOUND_MAX * 2, greeted).await.expect("it ends") {
                Ok(greeted) => assert!(is_greeted && greeted.processes.is_empty()),
                Err(why) => assert!(!is_greeted && why.contains("said nothing"), "{why}"),
            }
        }
    }
}
