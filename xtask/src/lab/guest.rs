//! A guest as a process of the host: its devices, its life, and what it says on its line to the runner.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};

use super::cache::Cache;
use super::config::{Config, Engine, Kind};
use super::devices::{Devices, Network};
use super::stock::{self, Stock};
use super::{uml, userland};

/// A kernel that is ready to run.
pub enum Kernel {
    Uml { kernel: PathBuf, userland: PathBuf },
    Qemu(Stock),
}

impl Kernel {
    /// The engine's kernel and the guests' programs, built if they are not there.
    pub fn build(cache: &Cache, config: &Config, engine: &Engine) -> Result<Kernel> {
        let userland = userland::build(cache, config)?;
        Ok(match engine.kind {
            Kind::Uml => Kernel::Uml { kernel: uml::build(cache, engine)?, userland },
            Kind::Qemu => Kernel::Qemu(stock::build(cache, config, engine, &userland)?),
        })
    }

    pub fn command(&self, devices: &Devices, arguments: &[(&str, String)]) -> Result<Command> {
        let arguments: Vec<String> =
            arguments.iter().map(|(key, value)| format!("lab.{key}={value}")).collect();
        let arguments = arguments.join(" ");
        match self {
            Kernel::Uml { kernel, userland } => uml::command(kernel, userland, devices, &arguments),
            Kernel::Qemu(stock) => stock::command(stock, devices, &arguments),
        }
    }

    /// The processors to run guest `index` on. Unpinned, system calls in User Mode Linux take ten times longer: each is
    /// a hand-over between two processes.
    pub fn processors(&self, index: usize) -> Option<usize> {
        let all = super::host::processors();
        match self {
            Kernel::Uml { .. } if !all.is_empty() => Some(all[all.len() - 1 - index % all.len()]),
            _ => None,
        }
    }
}

/// What happened in a guest, or to the host program.
pub enum Event {
    /// Text that a script or program wrote.
    Output(Source, Vec<u8>),
    /// What the script does now.
    Step(usize, String),
    /// The script waits for the others.
    Barrier(usize, String),
    /// The script ended.
    Exit(usize, i32),
    /// No more will come from there.
    Closed(Source),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Guest(usize),
    Host,
}

/// A process group that is killed when this is dropped.
pub struct Group {
    pub child: Child,
}

impl Group {
    /// Runs a command in a group of its own, on one processor if so wanted, with these descriptors inherited under
    /// their own numbers.
    pub fn spawn(
        command: &mut Command,
        processor: Option<usize>,
        inherited: &[BorrowedFd],
    ) -> Result<Group> {
        for fd in inherited {
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        command.process_group(0);
        let all = rustix::thread::sched_getaffinity(None)?;
        if let Some(processor) = processor {
            let mut one = rustix::thread::CpuSet::new();
            one.set(processor);
            // The child starts with the affinity of the thread that makes it.
            rustix::thread::sched_setaffinity(None, &one)?;
        }
        let child = command.spawn();
        rustix::thread::sched_setaffinity(None, &all)?;
        for fd in inherited {
            rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        }
        let program = command.get_program().to_string_lossy().into_owned();
        Ok(Group { child: child.with_context(|| format!("cannot run {program}"))? })
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            // Fails only when there is nobody left.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A running guest.
pub struct Guest {
    /// Killed with it.
    _group: Group,
    pub console: PathBuf,
    line: UnixStream,
}

impl Guest {
    /// Starts guest `index`; what it says comes as events.
    pub fn start(
        kernel: &Kernel,
        index: usize,
        devices: Devices,
        line: UnixStream,
        arguments: &[(&str, String)],
        console: &Path,
        events: &Sender<Event>,
    ) -> Result<Guest> {
        let mut command = kernel.command(&devices, arguments)?;
        let log =
            File::create(console).with_context(|| format!("cannot make {}", console.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut inherited: Vec<BorrowedFd> = Vec::new();
        if let Some((output, control)) = &devices.lines {
            inherited.extend([output.as_fd(), control.as_fd()]);
        }
        if let Network::Frames(fd) = &devices.network {
            inherited.push(fd.as_fd());
        }
        let group = Group::spawn(&mut command, kernel.processors(index), &inherited)?;
        let listener = line.try_clone()?;
        let events = events.clone();
        std::thread::spawn(move || listen(listener, index, &events));
        Ok(Guest { _group: group, console: console.to_owned(), line })
    }

    /// Lets the guest's script go on from a barrier.
    pub fn go(&mut self, barrier: &str) -> Result<()> {
        Ok(writeln!(self.line, "go {barrier}")?)
    }
}

/// Turns what a guest writes into events, until it ends.
fn listen(mut line: UnixStream, index: usize, events: &Sender<Event>) {
    let mut marks = Marks::default();
    let mut buffer = [0; 16 * 1024];
    // An error means the same as the end. Nobody listening means that the run is over.
    while let Ok(count @ 1..) = line.read(&mut buffer) {
        for piece in marks.feed(&buffer[..count]) {
            let event = match piece {
                Piece::Text(text) => Event::Output(Source::Guest(index), text),
                Piece::Mark(mark) => match mark.split_once(' ') {
                    Some(("step", step)) => Event::Step(index, step.to_owned()),
                    Some(("barrier", name)) => Event::Barrier(index, name.to_owned()),
                    Some(("exit", code)) => Event::Exit(index, code.parse().unwrap_or(-1)),
                    _ => Event::Output(Source::Guest(index), mark.into_bytes()),
                },
            };
            if events.send(event).is_err() {
                return;
            }
        }
    }
    let _ = events.send(Event::Closed(Source::Guest(index)));
}

/// Passes on what a host program writes.
pub fn listen_to_host(mut from: impl Read, events: &Sender<Event>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if events.send(Event::Output(Source::Host, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Closed(Source::Host));
}

/// Tells a script's output from the marks of `lab/guest/init` and `lib.sh`: a byte 1, `lab `, words, a line feed.
#[derive(Default)]
struct Marks {
    held: Vec<u8>,
}

#[derive(Debug, PartialEq)]
enum Piece {
    Text(Vec<u8>),
    Mark(String),
}

impl Marks {
    const START: &[u8] = b"\x01lab ";

    fn feed(&mut self, bytes: &[u8]) -> Vec<Piece> {
        self.held.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        loop {
            let start = self.held.iter().position(|byte| *byte == 1).unwrap_or(self.held.len());
            if start > 0 {
                pieces.push(Piece::Text(self.held.drain(..start).collect()));
            }
            let known = self.held.len().min(Self::START.len());
            if known == 0 {
                return pieces;
            }
            if self.held[..known] != Self::START[..known] {
                // A byte 1 of the script's own.
                pieces.push(Piece::Text(self.held.drain(..1).collect()));
                continue;
            }
            let Some(end) = self.held.iter().position(|byte| *byte == b'\n') else {
                return pieces;
            };
            let mark: Vec<u8> = self.held.drain(..=end).collect();
            let words = String::from_utf8_lossy(&mark[Self::START.len()..]);
            pieces.push(Piece::Mark(words.trim_end().to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_however_they_are_cut() {
        let bytes = b"one\n\x01lab step a b\ntwo\x01lab exit 3\n\x01other";
        let whole = [
            Piece::Text(b"one\n".into()),
            Piece::Mark("step a b".into()),
            Piece::Text(b"two".into()),
            Piece::Mark("exit 3".into()),
            Piece::Text(b"\x01".into()),
            Piece::Text(b"other".into()),
        ];
        assert_eq!(Marks::default().feed(bytes), whole);

        let mut marks = Marks::default();
        let (mut text, mut found) = (Vec::new(), Vec::new());
        for byte in bytes {
            for piece in marks.feed(&[*byte]) {
                match piece {
                    Piece::Text(piece) => text.extend(piece),
                    Piece::Mark(mark) => found.push(mark),
                }
            }
        }
        assert_eq!(text, b"one\ntwo\x01other");
        assert_eq!(found, ["step a b", "exit 3"]);
    }
}
