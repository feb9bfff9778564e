//! Plays a scenario: joins guests and host program, waits for their ends, and says which of them hung and where.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::addresses::{GUESTS, HOST_ADDRESS, guest_address, guest_mac};
use super::config::Engine;
use super::devices::{Devices, Network};
use super::guest::{Event, Group, Guest, Kernel, Source, listen_to_host};
use super::progress::Step;
use super::scenario::{self, Form, Link, Scenario, Until};
use super::signals::INTERRUPTED;
use super::switch::{self, Switch};
use super::tap;

/// How often processes are looked after.
const TICK: Duration = Duration::from_millis(20);

/// How long the others may go on when one has failed, times the engine's slowness.
const GRACE: Duration = Duration::from_secs(3);

/// What became of it.
#[derive(Default, Deserialize, Serialize)]
pub struct Played {
    /// Why it failed.
    pub problems: Vec<String>,
    pub guests: Vec<GuestPlayed>,
    pub host: Option<HostPlayed>,
    pub frames: Option<u64>,
    pub frames_dropped: Option<u64>,
}

#[derive(Clone, Default, Deserialize, Serialize)]
pub struct GuestPlayed {
    pub name: String,
    pub exit: Option<i32>,
    pub last_step: String,
    pub output: String,
}

#[derive(Default, Deserialize, Serialize)]
pub struct HostPlayed {
    pub exit: Option<i32>,
    pub output: String,
}

/// Plays it in this network namespace. `values` are the placeholders known so far.
pub fn play(
    scenario: &Scenario,
    engine: &Engine,
    kernel: &Kernel,
    run: &Path,
    values: &BTreeMap<String, String>,
) -> Result<Played> {
    let capture = run.join("capture.pcap");
    let mut joined = join(scenario, &capture)?;
    let tap_capture = match (scenario.link, scenario.capture) {
        (Link::Tap, true) => Some(tap::Capture::start(&capture)?),
        _ => None,
    };
    let (send, receive) = mpsc::channel();
    let mut stage = Stage::new(scenario, engine, receive);

    let mut controls = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..scenario.guests {
        let (guest, host) = UnixStream::pair()?;
        ends.push(OwnedFd::from(guest));
        controls.push(OwnedFd::from(host));
    }
    if let Some(host) = &scenario.host {
        let mut values = values.clone();
        let mut inherited: Vec<BorrowedFd> = Vec::new();
        if let Some((link, fd)) = &joined.host {
            values.insert("link".into(), link.clone());
            inherited.extend(fd.as_ref().map(AsFd::as_fd));
        }
        for (name, control) in GUESTS.iter().zip(&controls) {
            values.insert(format!("control.{name}"), format!("fd:{}", control.as_raw_fd()));
            inherited.push(control.as_fd());
        }
        values.insert("control".into(), values["control.a"].clone());
        let words = scenario::fill(&host.command, &values)?;
        let mut command = host_command(&words, &values)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut group = Group::spawn(&mut command, None, &inherited)?;
        if let Some(stdout) = group.child.stdout.take() {
            let send = send.clone();
            std::thread::spawn(move || listen_to_host(stdout, &send));
        }
        if let Some(stderr) = group.child.stderr.take() {
            let send = send.clone();
            std::thread::spawn(move || listen_to_host(stderr, &send));
        }
        stage.host = Some(group);
        stage.played.host = Some(HostPlayed::default());
        // Only the program holds them now, so that both sides see when it ends.
        joined.host = None;
        controls.clear();
    }
    for (index, (network, control)) in joined.guests.drain(..).zip(ends).enumerate() {
        let (line, end) = UnixStream::pair()?;
        let devices = Devices {
            memory_mb: scenario.memory_mb,
            numa_nodes: scenario.numa_nodes,
            mtu: scenario.mtu,
            lines: Some((end.into(), control)),
            network,
            share: Some(run.join(GUESTS[index])),
        };
        let arguments = guest_arguments(scenario, engine, index)?;
        let console = run.join(format!("console-{}.log", GUESTS[index]));
        let guest = Guest::start(kernel, index, devices, line, &arguments, &console, &send)?;
        stage.guests.push(guest);
    }
    drop(send);
    let mut played = stage.wait();
    if let Some(switch) = joined.switch {
        let counts = switch.stop()?;
        played.frames = Some(counts.frames);
        played.frames_dropped = Some(counts.dropped);
    }
    if let Some(capture) = tap_capture {
        capture.stop()?;
    }
    Ok(played)
}

/// A command whose environment has the placeholders too: `{guest_ip}` is LAB_GUEST_IP.
pub fn host_command(words: &[String], values: &BTreeMap<String, String>) -> Result<Command> {
    let (program, arguments) = words.split_first().context("a command without words")?;
    let mut command = super::host::command(program);
    command.args(arguments).current_dir(&values["root"]);
    for (name, value) in values {
        command.env(format!("LAB_{}", name.to_uppercase().replace('.', "_")), value);
    }
    Ok(command)
}

fn guest_arguments(
    scenario: &Scenario,
    engine: &Engine,
    index: usize,
) -> Result<Vec<(&'static str, String)>> {
    let net = if scenario.link == Link::None { "dummy" } else { "device" };
    Ok(vec![
        ("engine", engine.kind.name().into()),
        ("guest", GUESTS[index].into()),
        ("lifetime", (scenario.timeout * engine.slowness + 60).to_string()),
        ("net", net.into()),
        ("ip", guest_address(index)),
        ("mac", guest_mac(index)),
        ("mtu", scenario.mtu.to_string()),
        ("rdma", engine.rdma(&scenario.rdma)?.join(",")),
    ])
}

/// Who is joined to whom.
struct Joined {
    guests: Vec<Network>,
    /// What the host program is told, and the descriptor that it inherits.
    host: Option<(String, Option<OwnedFd>)>,
    switch: Option<Switch>,
}

fn join(scenario: &Scenario, capture: &Path) -> Result<Joined> {
    let form = scenario.host.as_ref().map(|host| host.form).unwrap_or_default();
    let direct = |fd: OwnedFd| (format!("fd:{}", fd.as_raw_fd()), Some(fd));
    let mut joined = Joined { guests: Vec::new(), host: None, switch: None };
    match scenario.link {
        Link::None => joined.guests.push(Network::None),
        Link::Tap => {
            joined.guests.push(Network::Tap(tap::NAME.into()));
            joined.host = Some((format!("ip:{HOST_ADDRESS}"), None));
        }
        // Nothing in between: the shortest way.
        Link::Guests if !scenario.capture => {
            let (a, b) = switch::wire()?;
            joined.guests.extend([a, b].map(Network::Frames));
        }
        Link::Frames if !scenario.capture && scenario.guests == 1 && form == Form::Fd => {
            let (guest, host) = switch::wire()?;
            joined.guests.push(Network::Frames(guest));
            joined.host = Some(direct(host));
        }
        Link::Guests | Link::Frames => {
            let mut ports = Vec::new();
            for _ in 0..scenario.guests {
                let (port, end) = switch::wire()?;
                ports.push(port);
                joined.guests.push(Network::Frames(end));
            }
            if scenario.link == Link::Frames {
                let (port, host) = match form {
                    Form::Fd => {
                        let (port, end) = switch::wire()?;
                        (port, direct(end))
                    }
                    Form::Udp => {
                        let (port, addresses) = switch::udp_wire()?;
                        (port, (addresses, None))
                    }
                };
                ports.push(port);
                joined.host = Some(host);
            }
            joined.switch = Some(Switch::start(ports, capture)?);
        }
    }
    Ok(joined)
}

/// Everything that runs, and what is known of it.
struct Stage<'a> {
    scenario: &'a Scenario,
    slowness: u32,
    started: Instant,
    events: Receiver<Event>,
    guests: Vec<Guest>,
    host: Option<Group>,
    host_status: Option<ExitStatus>,
    host_asked_to_end: bool,
    outputs: Vec<Vec<u8>>,
    host_output: Vec<u8>,
    barriers: Vec<Option<String>>,
    played: Played,
}

impl<'a> Stage<'a> {
    fn new(scenario: &'a Scenario, engine: &Engine, events: Receiver<Event>) -> Stage<'a> {
        let guests = GUESTS[..scenario.guests].iter().map(|name| GuestPlayed {
            name: (*name).into(),
            last_step: "boot".into(),
            ..GuestPlayed::default()
        });
        Stage {
            scenario,
            slowness: engine.slowness,
            started: Instant::now(),
            events,
            guests: Vec::new(),
            host: None,
            host_status: None,
            host_asked_to_end: false,
            outputs: vec![Vec::new(); scenario.guests],
            host_output: Vec::new(),
            barriers: vec![None; scenario.guests],
            played: Played { guests: guests.collect(), ..Played::default() },
        }
    }

    /// Waits for the end of all, or for the time-out, and kills what is left.
    fn wait(mut self) -> Played {
        let mut deadline =
            self.started + Duration::from_secs(self.scenario.timeout.into()) * self.slowness;
        let mut failing = false;
        let mut step = Step::new(self.scenario.name.clone());
        while !self.ended() {
            match self.events.recv_timeout(TICK) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            self.look_after_host();
            step.tick(&self.state());
            if !failing && !self.played.problems.is_empty() {
                failing = true;
                deadline = deadline.min(Instant::now() + GRACE * self.slowness);
            }
            if Instant::now() > deadline {
                let seconds = self.started.elapsed().as_secs();
                let why = if failing { "the rest was killed" } else { "timed out" };
                self.played.problems.push(format!("{why} after {seconds} s: {}", self.state()));
                break;
            }
            if INTERRUPTED.load(Ordering::Relaxed) {
                self.played.problems.push(format!("interrupted: {}", self.state()));
                break;
            }
        }
        self.finish()
    }

    fn ended(&self) -> bool {
        self.played.guests.iter().all(|guest| guest.exit.is_some())
            && (self.host.is_none() || self.host_status.is_some())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Output(Source::Guest(index), text) => self.outputs[index].extend(text),
            Event::Output(Source::Host, text) => self.host_output.extend(text),
            Event::Step(index, step) => {
                // Told beside the output, so that the report shows what a step wrote.
                let seconds = self.started.elapsed().as_secs_f32();
                self.outputs[index].extend(format!("-- {seconds:.2} s: {step}\n").into_bytes());
                self.played.guests[index].last_step = step;
            }
            Event::Barrier(index, name) => {
                self.played.guests[index].last_step = format!("barrier {name}");
                self.barriers[index] = Some(name);
                self.open_barrier();
            }
            Event::Exit(index, code) => {
                let guest = &mut self.played.guests[index];
                guest.exit = Some(code);
                if code != 0 {
                    let name = &guest.name;
                    let step = &guest.last_step;
                    self.played.problems.push(format!(
                        "guest {name}: guest.sh exited with {code}, after the step '{step}'"
                    ));
                }
            }
            Event::Closed(Source::Guest(index)) => {
                let guest = &mut self.played.guests[index];
                if guest.exit.is_none() {
                    guest.exit = Some(-1);
                    let (name, step) = (&guest.name, &guest.last_step);
                    self.played.problems.push(format!(
                        "guest {name} ended by itself, after the step '{step}'; its console may tell why"
                    ));
                }
            }
            Event::Closed(Source::Host) => {}
        }
    }

    fn open_barrier(&mut self) {
        let Some(name) = self.barriers[0].clone() else { return };
        if self.barriers.iter().any(|other| other.as_ref() != Some(&name)) {
            return;
        }
        for guest in &mut self.guests {
            // Fails when the guest is gone, which is told by its line.
            let _ = guest.go(&name);
        }
        self.barriers.fill(None);
    }

    fn look_after_host(&mut self) {
        let (Some(wanted), Some(group)) = (&self.scenario.host, &mut self.host) else { return };
        if self.host_status.is_some() {
            return;
        }
        let guests_ended = self.played.guests.iter().all(|guest| guest.exit.is_some());
        if guests_ended && wanted.until == Until::Guests && !self.host_asked_to_end {
            self.host_asked_to_end = true;
            group.signal(Signal::TERM);
        }
        let Ok(Some(status)) = group.child.try_wait() else { return };
        self.host_status = Some(status);
        let asked = self.host_asked_to_end && status.signal() == Some(Signal::TERM.as_raw());
        if !status.success() && !asked {
            self.played.problems.push(format!("the host program ended with {status}"));
        } else if wanted.until == Until::Guests && !self.host_asked_to_end {
            self.played.problems.push("the host program ended before the guests".into());
        }
    }

    /// Who is where.
    fn state(&self) -> String {
        let mut parts = Vec::new();
        for guest in self.played.guests.iter().filter(|guest| guest.exit.is_none()) {
            parts.push(format!("guest {} is at '{}'", guest.name, guest.last_step));
        }
        if self.host.is_some() && self.host_status.is_none() {
            parts.push("the host program runs".into());
        }
        parts.join(", ")
    }

    /// Kills what is left, and collects what was said.
    fn finish(mut self) -> Played {
        let consoles: Vec<_> = self.guests.iter().map(|guest| guest.console.clone()).collect();
        self.guests.clear();
        self.host = None;
        // All that spoke are dead: their lines end.
        while let Ok(event) = self.events.recv_timeout(Duration::from_secs(1)) {
            if let Event::Output(..) = event {
                self.take(event);
            }
        }
        for (guest, output) in self.played.guests.iter_mut().zip(&self.outputs) {
            guest.output = String::from_utf8_lossy(output).into_owned();
        }
        if let Some(host) = &mut self.played.host {
            host.output = String::from_utf8_lossy(&self.host_output).into_owned();
            host.exit = self.host_status.and_then(|status| status.code());
        }
        for (guest, console) in self.played.guests.iter().zip(consoles) {
            let text = std::fs::read(console).unwrap_or_default();
            if let Some(line) = trouble(&String::from_utf8_lossy(&text)) {
                let problem = format!("guest {}: its kernel says: {line}", guest.name);
                self.played.problems.push(problem);
            }
        }
        self.played
    }
}

/// A line of a kernel's log that tells of a failure.
fn trouble(console: &str) -> Option<&str> {
    const SIGNS: [&str; 5] =
        ["Kernel panic", "Oops", "BUG:", "general protection", "blocked for more than"];
    console.lines().find(|line| SIGNS.iter().any(|sign| line.contains(sign)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_trouble_is_seen() {
        assert_eq!(
            trouble("fine\n[1.0] BUG: unable to handle\n"),
            Some("[1.0] BUG: unable to handle")
        );
        assert_eq!(trouble("rdma_rxe: loaded\n"), None);
    }
}
