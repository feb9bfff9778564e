//! Fork starts at a rate, of which every tenth child is killed at a random instruction: nothing is lost, nothing grows.
//!
//! Two seconds long here. `ELVER_SOAK_SECONDS` and `ELVER_SOAK_RATE`, in starts a second, make it another.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use elver_random::Rng;
use elver_testkit::{Examples, PATIENCE, Place, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::platform::wait_for_processes;
use crate::store::Store;

const PLACE: Place =
    Place { name: "faas-soak", network: 65, udp_ports: 29_000, registry_ports: 29_100 };

const UID: u32 = 62_201;

/// Requests at once.
const CALLERS: usize = 4;

/// One in so many requests has its child killed at least.
const KILLED_MIN: u64 = 20;

/// Name of the variable that tells the test that its process is its own.
const ALONE: &str = "ELVER_SOAK_ALONE";

/// What memory may grow by between the first fifth and the end, in KB: what allocators keep, and pages first touched late.
const GROWTH_KB_MAX: u64 = 4096;

static EXAMPLES: Examples =
    Examples::new("elver-handler", concat!(env!("CARGO_MANIFEST_DIR"), "/../elver-handler"), "");

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => otherwise,
    }
}

/// What became of the requests.
#[derive(Debug, Default)]
struct Counts {
    asked: AtomicU64,
    answered: AtomicU64,
    ended: AtomicU64,
    killed: AtomicU64,
    is_over: AtomicBool,
}

#[test]
fn every_tenth_child_is_killed_and_nothing_is_lost() {
    if std::env::var_os(ALONE).is_none() {
        return alone("soak::every_tenth_child_is_killed_and_nothing_is_lost");
    }
    let (seconds, rate) = (number("ELVER_SOAK_SECONDS", 2), number("ELVER_SOAK_RATE", 200));
    let seed = number("ELVER_SEED", std::process::id().into());
    // Shown when the test fails.
    println!("ELVER_SEED={seed}");
    let store = Store::new(&PLACE, 1);
    let functions = format!(
        "[owners.soak]\nuid = {UID}\n[functions.soak]\nowner = \"soak\"\ncode = \"@CODE@\"\nhandler = \"function\"\nruntime = \"native\"\ntimeout_s = 20\ndestinations = [\"{}\"]\nsessions = 8\nconcurrency_max = 8\n",
        store.gid()
    );
    let mut platform = store.platform(&functions);
    std::fs::copy(EXAMPLES.program("function"), platform.code().join("function")).unwrap();
    platform.answer("soak", store.event(json!({})));
    let begun_with = store.node.thread.status().unwrap().engine;
    let counts = Counts::default();
    wait_for_processes(UID, 2);
    let init = parent_of_children(UID);
    let (socket, event) = (platform.socket(), store.event(json!({})).to_string());
    let begun = Instant::now();
    let total = seconds * rate;
    let (first, last) = std::thread::scope(|scope| {
        let counts = &counts;
        let callers: Vec<_> = (0..CALLERS as u64)
            .map(|caller| {
                let (socket, event) = (&socket, &event);
                scope.spawn(move || {
                    let mut line = Caller::connect(socket);
                    for at in (caller..).step_by(CALLERS) {
                        // A killer who got no core goes on when he has one.
                        let is_late = begun.elapsed() > Duration::from_secs(seconds) + PATIENCE;
                        let killed = counts.killed.load(Ordering::Relaxed);
                        if at >= total && (killed * KILLED_MIN >= total || is_late) {
                            break;
                        }
                        counts.asked.fetch_add(1, Ordering::Relaxed);
                        let due = begun + Duration::from_micros(at * 1_000_000 / rate);
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                        line.ask(event, counts);
                    }
                })
            })
            .collect();
        let killer = scope.spawn(|| kill(&mut Rng::new(seed), init, rate, counts));
        let fifth = begun + Duration::from_secs(seconds) / 5;
        std::thread::sleep(fifth.saturating_duration_since(Instant::now()));
        let first = memory_kb(UID);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        counts.is_over.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        (first, memory_kb(UID))
    });
    let took = begun.elapsed().as_secs_f64();
    let [asked, answered, ended, killed] =
        [&counts.asked, &counts.answered, &counts.ended, &counts.killed]
            .map(|of| of.load(Ordering::Relaxed));
    println!(
        "{answered} answered, {ended} ended before, {killed} killed in {took:.1} s, {:.0} starts/s; {first} then {last} KB",
        (answered + ended) as f64 / took
    );
    assert_eq!(answered + ended, asked);
    assert!(killed * KILLED_MIN >= total && ended <= killed, "{killed} killed");
    // The container has its two processes, and the tables are empty but for one.
    wait_for_processes(UID, 2);
    let table = platform.list().processes;
    assert_eq!(table.iter().map(|row| row.requests).collect::<Vec<_>>(), [0]);
    assert!(last <= first + GROWTH_KB_MAX, "{first} KB in the first fifth, {last} at the end");
    // Each session has come back, and nothing of a child is left at the node.
    let count = |name: &str| store.count(name);
    wait_for("all sessions to be free", || (count("free") == count("prepared")).then_some(()));
    assert_eq!(count("prepared"), 8);
    assert_eq!(count("inherited"), count("returned"));
    // A child that is killed while it greets the node is one that the system no longer vouches for.
    assert!(count("refused") <= ended, "{} of {ended} refused", count("refused"));
    let now = store.node.thread.status().unwrap().engine;
    for name in ["sessions", "vqps", "mrs"] {
        assert_eq!(now.get(name), begun_with.get(name), "{name}");
    }
    platform.end();
    wait_for_processes(UID, 0);
}

/// Runs a test in a process of its own: the memory of this one is other tests' too.
fn alone(test: &str) {
    let own = std::env::current_exe().unwrap();
    let done =
        Command::new(own).args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let [out, error] = [done.stdout, done.stderr].map(|said| String::from_utf8(said).unwrap());
    print!("{out}");
    assert!(done.status.success() && out.contains("1 passed"), "{error}");
}

/// A connection to the front door.
struct Caller(BufReader<UnixStream>);

impl Caller {
    fn connect(socket: &Path) -> Caller {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Caller(BufReader::new(stream))
    }

    fn ask(&mut self, event: &str, counts: &Counts) {
        let length = event.len();
        let request = format!(
            "POST /functions/soak/invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{event}"
        );
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut length, mut line) = (String::new(), 0, String::new());
        while line != "\r\n" {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the orchestrator is gone");
            if status.is_empty() {
                status = line.clone();
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        let counter = match status.split(' ').nth(1) {
            Some("200") if answer["read"] == "greeting" => &counts.answered,
            Some("502") if answer["errorMessage"].as_str().unwrap().contains("signal 9") => {
                &counts.ended
            }
            _ => panic!("{status}{answer}"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Kills children, of those that there are at random times, until every tenth has been.
fn kill(random: &mut Rng, init: i32, rate: u64, counts: &Counts) {
    let begun = Instant::now();
    let mut last = 0;
    while !counts.is_over.load(Ordering::Relaxed) {
        let done = counts.answered.load(Ordering::Relaxed) + counts.ended.load(Ordering::Relaxed);
        let wanted = done / 10 > counts.killed.load(Ordering::Relaxed);
        let pause = random.next_u64() % if wanted { 200 } else { 2 * 10_000_000 / rate };
        std::thread::sleep(Duration::from_micros(pause));
        assert!(begun.elapsed() < Duration::from_secs(3600));
        // The system numbers processes one after the other, and begins anew at its largest number: a child is among
        // the newest.
        let newest = newest_process();
        let children = (newest.saturating_sub(8).max(1)..=newest).rev();
        let mut children = children.filter(|pid| *pid != last && parent_of(*pid) == Some(init));
        if wanted
            && let Some(child) = children.next()
            && kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).is_ok()
        {
            last = child;
            counts.killed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The INIT process, which stands below elver-init and has no children yet. The system may have begun its numbers anew
/// between the two.
fn parent_of_children(uid: u32) -> i32 {
    let both: Vec<i32> = processes(uid).into_iter().map(|(pid, _)| pid).collect();
    let below = |pid: &i32| parent_of(*pid).is_some_and(|parent| both.contains(&parent));
    both.iter().copied().find(below).unwrap()
}

fn newest_process() -> i32 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    load.split_whitespace().last().unwrap().parse().unwrap()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].split(' ').nth(1)?.parse().ok()
}

/// A user's processes, and the KB of memory that each has for itself alone.
fn processes(uid: u32) -> Vec<(i32, u64)> {
    let of = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        (field("Uid:")? == u64::from(uid)).then(|| (pid, field("RssAnon:").unwrap_or(0)))
    };
    let names = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| of(name.to_str()?.parse().ok()?)).collect()
}

/// The memory of the container's two processes that stay, the least of some looks, and of the orchestrator and the node.
fn memory_kb(uid: u32) -> u64 {
    let own = std::process::id().cast_signed();
    let looks = (0..5).map(|_| {
        let mut of_container = processes(uid);
        of_container.sort_unstable();
        of_container.iter().take(2).map(|(_, kb)| kb).sum::<u64>()
    });
    let container = looks.min().unwrap_or(0);
    let others = processes(0).into_iter();
    let others = others.filter(|(pid, _)| *pid == own || parent_of(*pid) == Some(own));
    container + others.map(|(_, kb)| kb).sum::<u64>()
}
