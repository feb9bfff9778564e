//! The parts of the demonstration. Each checks what it claims.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use elver_node::SessionStatus;
use elver_node::Status;
use elver_testbed::cluster::Cluster;
use elver_testbed::seat::pin;
use elver_testbed::tcp;
use elver_testbed::worker::client::{ConnectTime, First, Held, Moved, Steady, Switched};
use elver_testbed::worker::{Known, Place, STEP, Task, Worker};
use serde_json::{Value, json};

use crate::demo::nodes::{A, B, BESIDE_A, millis};
use crate::demo::say::Say;

type Step = fn(&Cluster, &mut Say) -> Result<Value>;

/// In order, with their keys in the JSON.
pub(super) const ALL: [(&str, Step); 4] =
    [("connect", connect), ("traffic", traffic), ("switch", switch), ("killed", killed)];

/// Repetitions of each way to connect.
const REPEATS: u32 = 200;
/// New processes whose first connect is timed.
const FIRSTS: usize = 5;
/// By then an engine without work sleeps.
const ASLEEP: Duration = Duration::from_millis(5);
/// TCP is measured for so long.
const TCP: Duration = Duration::from_millis(100);
/// What a killed process had must be back within this.
const RECLAIM_MAX: Duration = Duration::from_secs(60);
/// Time between two looks at the status.
const LOOK: Duration = Duration::from_millis(2);
/// How long the victim and the bystander run side by side before the kill.
const SIDE_BY_SIDE: Duration = Duration::from_millis(200);

/// How long it takes to have a connection. One is measured at a time, and by one process; who has no
/// part in it sleeps.
fn connect(cluster: &Cluster, say: &mut Say) -> Result<Value> {
    say.doing("connecting");
    let tcp = tcp_us(cluster)?;
    let (target, to) = target(cluster, B)?;
    // While node a knows nothing of node b.
    let first = first_us(cluster, to)?;
    // Their node answers: the process that offers the memory is not needed.
    let mut table = Vec::new();
    for way in ["vqp-dccache", "vqp-uncached"] {
        table.push(connect_us(cluster, to, way)?);
    }
    table.push(ConnectTime { name: "first-connect".into(), p50_us: first });
    table.push(connect_us(cluster, to, "verbs")?);
    table.push(ConnectTime { name: "tcp".into(), p50_us: tcp });
    drop(target);
    say.title("Connecting, from a process on node a to node b (medians, one at a time)");
    for row in &table {
        let what = match row.name.as_str() {
            "vqp-dccache" => "a VQP, the peer known",
            "vqp-uncached" => "a VQP, asking the meta server",
            "first-connect" => "a new process, to its first READ",
            "verbs" => "an RC QP of its own, as with verbs",
            _ => "TCP, to its first echo",
        };
        say.row(what, &format!("{:>9.1} µs", row.p50_us));
    }
    Ok(serde_json::to_value(table)?)
}

/// One way to connect, by a process that does nothing else.
fn connect_us(cluster: &Cluster, to: Known, way: &str) -> Result<ConnectTime> {
    fall_asleep();
    let task = Task::Connects { at: place(cluster, A), to, way: way.into(), repeats: REPEATS };
    Worker::start(cluster, A, &task)?.hear(STEP)
}

/// New processes, one after the other.
fn first_us(cluster: &Cluster, to: Known) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..FIRSTS {
        fall_asleep();
        let task = Task::First { at: place(cluster, A), to };
        let first: First = Worker::start(cluster, A, &task)?.hear(STEP)?;
        times.push(first.total_us);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[FIRSTS / 2])
}

/// Lets whoever has nothing to do go to sleep: an engine looks around for a fifth of a millisecond.
fn fall_asleep() {
    std::thread::sleep(ASLEEP);
}

/// TCP beside: connect to the first echo.
fn tcp_us(cluster: &Cluster) -> Result<f64> {
    let at = (cluster.address(B), tcp::PORT).into();
    let listener = cluster.on(B, move || tcp::listen(at))??;
    // On a thread of its own, since it is pinned, which the host's must not be.
    let asking = move || {
        pin(0);
        tcp::ask(at, 1, TCP)
    };
    let sample = tcp::while_serving(&listener, || {
        let asked = cluster.on(A, move || std::thread::spawn(asking).join())?;
        asked.map_err(|_| anyhow!("the client's thread panicked"))?
    })?;
    Ok((sample.us(50.0) * 1e3).round() / 1e3)
}

/// Bytes in all ways, between processes that never met.
fn traffic(cluster: &Cluster, say: &mut Say) -> Result<Value> {
    say.doing("moving data");
    let (_target, to) = target(cluster, B)?;
    // Two on the one node, one on the target's own.
    let clients = [(A, 2), (A, 3), (B, 5)].map(|(node, seed)| {
        Worker::start(cluster, node, &Task::Traffic { at: place(cluster, node), to, seed })
    });
    let (mut read, mut written, mut echoed, mut echoes) = (0, 0, 0, 0);
    for client in clients {
        let moved: Moved = client?.hear(STEP)?;
        read += moved.read_bytes;
        written += moved.written_bytes;
        echoed += moved.echoed_bytes;
        echoes += moved.echoes;
    }
    say.title("Three processes and a fourth that never met, every byte compared");
    say.holds(&format!("{read} bytes READ, {written} bytes WRITTEN"));
    say.holds(&format!("{echoes} messages of 8 bytes to 200 KB answered, {echoed} bytes"));
    Ok(json!({
        "clients": 3,
        "read_bytes": read,
        "written_bytes": written,
        "echoes": echoes,
        "echoed_bytes": echoed,
        "verified": true,
    }))
}

/// A process dies in the middle of what it does.
fn killed(cluster: &Cluster, say: &mut Say) -> Result<Value> {
    say.doing("killing a process");
    let (_target, to) = target(cluster, B)?;
    let mut bystander = Worker::start(cluster, A, &Task::Steady { at: place(cluster, A), to })?;
    let _: Steady = bystander.hear(STEP)?;
    let socket = cluster.socket(A);
    let before = Status::fetch(&socket)?;
    let mut victim = Worker::start(cluster, A, &Task::Victim { at: place(cluster, A), to })?;
    let held: Held = victim.hear(STEP)?;
    std::thread::sleep(SIDE_BY_SIDE);
    let pid = victim.pid();
    let (session, in_flight) = with_work_under_way(&socket, pid)?;
    ensure!(session.vqps == held.vqps && session.mrs >= held.mrs, "the node shows other holdings");
    let (vqps, mrs, bytes) = (session.vqps, session.mrs, session.bytes);

    let since = Instant::now();
    victim.kill()?;
    loop {
        let now = Status::fetch(&socket)?;
        let gone = now.sessions.iter().all(|one| one.pid != pid as i32);
        // Less than before is possible: what earlier processes had may still have been going.
        let holds = holdings(&now).iter().zip(holdings(&before)).any(|(now, before)| *now > before);
        if gone && !holds {
            break;
        }
        if since.elapsed() > RECLAIM_MAX {
            bail!("the node still holds something of the killed process: {:?}", holdings(&now));
        }
        std::thread::sleep(LOOK);
    }
    let reclaimed_ms = millis(since.elapsed());
    bystander.end();
    let steady: Steady = bystander.hear(STEP)?;
    ensure!(steady.reads > 0, "the other process did nothing");
    say.title("A process killed with work under way (kill -9)");
    say.row(
        "it had",
        &format!(
            "{vqps} VQPs, {mrs} memory regions ({} MB in all), {in_flight} operations under way",
            bytes >> 20
        ),
    );
    say.holds(&format!(
        "the node had taken everything back after {reclaimed_ms:.0} ms, when the leases of its \
         memory had run out"
    ));
    say.holds(&format!(
        "another process READ on meanwhile: {} words of 8 bytes, all of them right",
        steady.reads
    ));
    Ok(json!({
        "pid": pid,
        "vqps": vqps,
        "mrs": mrs,
        "bytes": bytes,
        "in_flight": in_flight,
        "reclaimed_ms": reclaimed_ms,
        "bystander_reads": steady.reads,
        "reclaimed": true,
    }))
}

/// The session of a process, and how many operations it has under way: some, in the end.
fn with_work_under_way(socket: &Path, pid: u32) -> Result<(SessionStatus, u32)> {
    let since = Instant::now();
    loop {
        let status = Status::fetch(socket)?;
        let session = status.sessions.iter().find(|one| one.pid == pid as i32);
        let session = session.context("the node does not know of the process to kill")?;
        match outstanding(&status, session.client) {
            0 => ensure!(since.elapsed() < STEP, "the process to kill has nothing under way"),
            in_flight => return Ok((session.clone(), in_flight)),
        }
        std::thread::sleep(LOOK);
    }
}

/// What all processes of a node have: sessions, clients, VQPs and regions.
fn holdings(status: &Status) -> [u64; 4] {
    let core = |name| status.core.get(name).copied().unwrap_or(0);
    [status.sessions.len() as u64, core("clients"), core("vqps"), core("mrs")]
}

/// Operations of a client that have not completed.
fn outstanding(status: &Status, client: u32) -> u32 {
    status.vqps.iter().filter(|vqp| vqp.client == client).map(|vqp| vqp.outstanding).sum()
}

/// A connection moves from DC to RC while it is used.
fn switch(cluster: &Cluster, say: &mut Say) -> Result<Value> {
    say.doing("waiting for a connection to move");
    let (_target, to) = target(cluster, B)?;
    let task = Task::Hot { at: place(cluster, A), to, repeats: REPEATS };
    let switched: Switched = Worker::start(cluster, A, &task)?.hear(2 * STEP)?;
    ensure!(
        switched.from == "dc" && switched.to == "rc",
        "it went from {} to {}",
        switched.from,
        switched.to
    );
    ensure!(switched.transfers > 0, "the node counted no transfer");
    let status = Status::fetch(&cluster.socket(A))?;
    let peer = status.peers.iter().find(|peer| peer.address == cluster.address(B));
    ensure!(peer.is_some_and(|peer| peer.rc_qps > 0), "node a shows no RC QP to node b");
    say.title("A busy connection moved from DC to RC while it was used");
    say.holds(&format!(
        "after {} READs and {:.0} ms; no READ was lost or wrong, and the status shows it",
        switched.reads, switched.ms
    ));
    say.row("the next VQPs connect in", &format!("{:>9.1} µs", switched.connect_us));
    Ok(serde_json::to_value(switched)?)
}

fn place(cluster: &Cluster, node: usize) -> Place {
    Place { socket: cluster.socket(node), seat: BESIDE_A }
}

/// A process on a node that offers memory and answers messages.
fn target(cluster: &Cluster, node: usize) -> Result<(Worker, Known)> {
    let mut worker = Worker::start(cluster, node, &Task::Target { at: place(cluster, node) })?;
    let known = worker.hear(STEP)?;
    Ok((worker, known))
}
