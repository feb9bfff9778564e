//! Fork starts at a rate, of which every tenth child is killed at a random instruction: nothing is lost, nothing grows.
//!
//! Two seconds' worth here. `ELVER_SOAK_SECONDS` and `ELVER_SOAK_RATE`, in starts a second, make it another; what was
//! reached is printed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use elver_random::Rng;
use elver_testkit::{Examples, PATIENCE, Place, copy, wait_for};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::platform::{Platform, wait_for_processes};
use crate::store::{Held, Store};

const PLACE: Place =
    Place { name: "faas-soak", network: 65, udp_ports: 29_000, registry_ports: 29_100 };

const UID: u32 = 62_201;

/// Sessions of the INIT process, and requests at once.
const SESSIONS: usize = 8;

/// How many requests each of the others makes while one's child is killed: nine at once with it.
const OTHERS: [u64; 4] = [3, 2, 2, 2];

/// Tens after which the tables are looked at.
const TENS: u64 = 10;

/// Name of the variable that tells the test that its process is its own.
const ALONE: &str = "ELVER_SOAK_ALONE";

/// What the memory of a process may grow by after the first fifth, in KB: what allocators keep, and pages first touched late.
const GROWTH_KB_MAX: u64 = 1024;

static EXAMPLES: Examples =
    Examples::new("elver-handler", concat!(env!("CARGO_MANIFEST_DIR"), "/../elver-handler"), "");

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => otherwise,
    }
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
    let mut random = Rng::new(seed);
    let store = Store::new(&PLACE, 1);
    let functions = format!(
        "[owners.soak]\nuid = {UID}\n[functions.soak]\nowner = \"soak\"\ncode = \"@CODE@\"\nhandler = \"function\"\nruntime = \"native\"\ntimeout_s = 60\ndestinations = [\"{}\"]\nsessions = {SESSIONS}\nconcurrency_max = {SESSIONS}\n",
        store.gid()
    );
    let platform = store.platform(&functions);
    copy(&EXAMPLES.program("function"), &platform.code().join("function"));
    platform.answer("soak", store.event(json!({})));
    let mut callers: Vec<Caller> =
        (0..SESSIONS).map(|_| Caller::connect(&platform.socket())).collect();
    let mut soak = Soak::begin(platform, store, &mut callers);
    let rounds = (seconds * rate).div_ceil(10 * TENS).max(2);
    let mut first = soak.memory();
    let mut took = Duration::ZERO;
    for round in 0..rounds {
        let begun = Instant::now();
        for ten in 1..=TENS {
            soak.ten(&mut random, &mut callers);
            let due = Duration::from_micros(ten * 10_000_000 / rate);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        took += begun.elapsed();
        soak.look(&mut callers);
        let now = soak.memory();
        if round <= rounds / 5 {
            first = now.clone();
        }
        for ((whose, first), (_, now)) in first.iter().zip(&now) {
            let most = first + GROWTH_KB_MAX;
            assert!(*now <= most, "{whose}: {first} KB in the first fifth, {now} in {round}");
        }
    }
    println!(
        "{} starts, {} killed in {:.1} s, {:.0} starts/s; {first:?} then {:?} KB",
        soak.asked,
        soak.killed,
        took.as_secs_f64(),
        soak.asked as f64 / took.as_secs_f64(),
        soak.memory(),
    );
    assert_eq!(soak.killed, rounds * TENS);
    soak.platform.end();
    wait_for_processes(UID, 0);
}

/// What runs, and what came of it.
struct Soak {
    platform: Platform,
    store: Store,
    /// The INIT process.
    init: i32,
    /// `elver-init`.
    above: i32,
    /// What the node had when all children had ended.
    held: Held,
    /// How long a request takes.
    one: Duration,
    looks: u64,
    asked: u64,
    aimed: u64,
    killed: u64,
}

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Answer { inherited: bool },
    Killed,
}

impl Soak {
    /// When the INIT process serves.
    fn begin(platform: Platform, store: Store, callers: &mut [Caller]) -> Soak {
        let event = store.event(json!({})).to_string();
        let takes = |caller: &mut Caller| {
            let begun = Instant::now();
            assert!(matches!(caller.ask(&event), Came::Answer { .. }));
            begun.elapsed()
        };
        let one = callers.iter_mut().map(takes).min().unwrap();
        wait_for_processes(UID, 2);
        wait_for("its sessions", || (store.count("free") == SESSIONS as u64).then_some(()));
        let (above, init) = first_processes();
        let held = store.held();
        Soak { platform, store, init, above, held, one, looks: 0, asked: 0, aimed: 0, killed: 0 }
    }

    /// Ten requests, of which one's child is killed while others are at work, and those are answered.
    fn ten(&mut self, random: &mut Rng, callers: &mut [Caller]) {
        let answers = self.store.event(json!({})).to_string();
        let waits = self.store.event(json!({"until": "never"})).to_string();
        // Anywhere from its fork until it has answered, or some time after that.
        let pause = self.one.mul_f64(1.5 * (random.next_u64() % 1000) as f64 / 1000.0);
        // One that answers may be killed at its last instruction, or may have ended before; one that waits is there.
        let may_answer = random.next_u64().is_multiple_of(2);
        let mut came =
            self.aim(if may_answer { &answers } else { &waits }, &OTHERS, pause, callers);
        if may_answer && came != Came::Killed {
            came = self.aim(&waits, &[], pause, callers);
        }
        assert_eq!(came, Came::Killed);
        self.killed += 1;
    }

    /// Asks, and kills the child that is forked for it so long after it is seen. Others make so many requests each.
    fn aim(
        &mut self,
        event: &str,
        others: &[u64],
        pause: Duration,
        callers: &mut [Caller],
    ) -> Came {
        self.asked += 1 + others.iter().sum::<u64>();
        self.aimed += 1;
        let init = self.init;
        let usual = &self.store.event(json!({})).to_string();
        let (first, rest) = callers.split_first_mut().unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| first.ask(event));
            let child = wait_for("a child, or an answer", || {
                child_of(init).map(Some).or(asked.is_finished().then_some(None))
            });
            let answered = |caller: &mut Caller, count: u64| {
                for _ in 0..count {
                    assert!(matches!(caller.ask(usual), Came::Answer { .. }));
                }
            };
            let others: Vec<_> = rest
                .iter_mut()
                .zip(others)
                .map(|(caller, count)| scope.spawn(move || answered(caller, *count)))
                .collect();
            std::thread::sleep(pause);
            // It may have ended.
            let _ = child.map(|child| pidfd_send_signal(child, Signal::KILL));
            others.into_iter().for_each(|others| others.join().unwrap());
            // What was seen may have been one before it, which was just ending.
            let is_answered = event == usual;
            wait_for("it to be killed", || {
                if let Some(child) = child_of(init).filter(|_| !is_answered) {
                    let _ = pidfd_send_signal(child, Signal::KILL);
                }
                asked.is_finished().then_some(())
            });
            asked.join().unwrap()
        })
    }

    /// Looks at all tables, when children have ended.
    fn look(&mut self, callers: &mut [Caller]) {
        self.looks += 1;
        wait_for_processes(UID, 2);
        let store = &self.store;
        let free = |wanted: usize| {
            wait_for("sessions to be free, or taken", || {
                (store.count("free") == wanted as u64).then_some(())
            });
        };
        // The node's.
        free(SESSIONS);
        wait_for("the node to have what it had", || (store.held() == self.held).then_some(()));
        assert_eq!(store.count("prepared"), SESSIONS as u64);
        assert_eq!(store.count("inherited"), store.count("returned"));
        // A child that is killed while it greets the node is one that the system no longer vouches for.
        assert!(store.count("refused") <= self.aimed, "{} refused", store.count("refused"));
        // The orchestrator's.
        wait_for("the orchestrator's table to have no request", || {
            let listed = self.platform.list();
            assert_eq!((listed.processes.len(), listed.stuck.len()), (1, 0));
            (listed.processes[0].requests == 0).then_some(())
        });
        // The INIT process's: each of its sessions is for a child, and for one alone.
        let go = format!("go-{}", self.looks);
        let event = &store.event(json!({"until": go})).to_string();
        std::thread::scope(|scope| {
            let asked: Vec<_> =
                callers.iter_mut().map(|caller| scope.spawn(|| caller.ask(event))).collect();
            free(0);
            std::fs::write(self.platform.code().join(&go), "").unwrap();
            for asked in asked {
                assert_eq!(asked.join().unwrap(), Came::Answer { inherited: true });
            }
        });
        std::fs::remove_file(self.platform.code().join(go)).unwrap();
        self.asked += SESSIONS as u64;
        wait_for_processes(UID, 2);
    }

    /// The memory that processes have for themselves alone, in KB.
    fn memory(&self) -> Vec<(&'static str, u64)> {
        [
            ("the orchestrator", self.platform.pid()),
            ("elver-init", self.above),
            ("the INIT process", self.init),
            ("the node", std::process::id().cast_signed()),
        ]
        .map(|(whose, pid)| (whose, field(pid, "RssAnon:").unwrap()))
        .into()
    }
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

    fn ask(&mut self, event: &str) -> Came {
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
        match status.split(' ').nth(1) {
            Some("200") if answer["read"] == "greeting" => {
                Came::Answer { inherited: answer["inherited"] == true }
            }
            Some("502") if answer["errorMessage"].as_str().unwrap().contains("signal 9") => {
                Came::Killed
            }
            _ => panic!("{status}{answer}"),
        }
    }
}

/// A child of an INIT process, if there is one. The system numbers processes one after the other, and begins anew at its
/// largest number: a child is among the newest, unless others are started as fast.
fn child_of(init: i32) -> Option<OwnedFd> {
    let newest = newest_process();
    let newest = (newest.saturating_sub(16).max(1)..=newest).rev();
    let child = newest.chain(processes(UID)).find(|pid| parent_of(*pid) == Some(init))?;
    let opened = pidfd_open(Pid::from_raw(child)?, PidfdFlags::empty()).ok()?;
    // Its number may have become another's.
    (parent_of(child) == Some(init)).then_some(opened)
}

/// `elver-init`, and the INIT process, which stands below it and has no children yet. The system may have begun its numbers
/// anew between the two.
fn first_processes() -> (i32, i32) {
    let both: Vec<i32> = processes(UID).collect();
    let pair = |pid: &i32| Some((parent_of(*pid).filter(|above| both.contains(above))?, *pid));
    both.iter().find_map(pair).unwrap()
}

fn newest_process() -> i32 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    load.split_whitespace().last().unwrap().parse().unwrap()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].split(' ').nth(1)?.parse().ok()
}

/// A user's processes.
fn processes(uid: u32) -> impl Iterator<Item = i32> {
    let names = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    pids.filter(move |pid| field(*pid, "Uid:") == Some(uid.into()))
}

/// The number behind a word in what the system tells of a process.
fn field(pid: i32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
