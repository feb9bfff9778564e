//! Processes that the program makes. They are not watched, but its breakpoints are in their way: one that `fork` makes has
//! them in its copy of the program's memory, and is let go without; one of `vfork` runs in that memory itself, and steps over
//! them until it becomes another program.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::memory::Memory;
use super::spots::{INT3, Spots, TRAP};
use super::stop::{self, Go, Stop};

/// The numbers of system calls of x86-64; see `names`.
const CLONE: u64 = 56;
const VFORK: u64 = 58;
const EXECVE: u64 = 59;
const EXECVEAT: u64 = 322;
const CLONE3: u64 = 435;

#[derive(Default)]
pub(super) struct Others(HashMap<Pid, Other>);

struct Other {
    /// It runs in the program's memory.
    shares: bool,
    /// The breakpoint that it steps over.
    stepping: Option<u64>,
}

impl Others {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn has(&self, id: Pid) -> bool {
        self.0.contains_key(&id)
    }

    pub(super) fn ended(&mut self, id: Pid) {
        self.0.remove(&id);
    }

    /// Whether something that stops for the first time is a process, and no thread of the program's. It is kept then.
    pub(super) fn begins(&mut self, program: Pid, id: Pid, spots: &Spots) -> Result<bool> {
        // One that was killed meanwhile is neither.
        let Some(process) = process_of(id).filter(|process| *process != program) else {
            return Ok(false);
        };
        let memory = match Memory::of(process) {
            Ok(memory) => memory,
            Err(_) if process_of(id).is_none() => return Ok(false),
            Err(error) => return Err(error),
        };
        let shares = shares_memory(id, &memory);
        if !shares {
            spots.take_from(&memory);
        }
        self.0.insert(id, Other { shares, stepping: None });
        Ok(true)
    }

    /// One has stopped, and goes on.
    pub(super) fn go_on(
        &mut self,
        id: Pid,
        stop: Stop,
        spots: &Spots,
        memory: &Memory,
    ) -> Result<()> {
        let Some(other) = self.0.get_mut(&id) else { return Ok(()) };
        let go = match stop {
            // What it begins with; from here on nothing of it is ours.
            Stop::Signal(stop::SIGSTOP) if !other.shares => return self.let_go(id),
            // A program of another user's gets his rights only if nobody watches.
            Stop::SystemCall if becomes_another(id) => return self.let_go(id),
            Stop::Signal(stop::SIGTRAP) if other.shares => other.trap(id, spots, memory)?,
            // What it begins with, or anybody's, which stops nobody here.
            Stop::Signal(stop::SIGSTOP) if other.stepping.is_some() => Go::Step(stop::NONE),
            Stop::Signal(stop::SIGSTOP) => Go::On(stop::NONE),
            Stop::Signal(signal) if other.stepping.is_some() => Go::Step(signal),
            Stop::Signal(signal) => Go::On(signal),
            _ => Go::On(stop::NONE),
        };
        stop::go(id, go).context("a process of the program's cannot go on")
    }

    fn let_go(&mut self, id: Pid) -> Result<()> {
        self.0.remove(&id);
        match ptrace::detach(id, None) {
            // It was killed meanwhile, and will be waited for.
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).context("a process of the program's cannot be let go"),
        }
    }
}

impl Other {
    fn trap(&mut self, id: Pid, spots: &Spots, memory: &Memory) -> Result<Go> {
        if let Some(spot) = self.stepping.take() {
            if spots.stands_at(spot) {
                memory.write(spot, &[INT3])?;
            }
            // As a thread of the program's.
            if !stop::met_breakpoint(id) {
                return Ok(Go::On(stop::NONE));
            }
        }
        let mut registers = ptrace::getregs(id)?;
        let address = registers.rip.wrapping_sub(TRAP);
        let Some(byte) = spots.stood_at(address) else {
            return Ok(Go::On(stop::SIGTRAP));
        };
        memory.write(address, &[byte])?;
        self.stepping = Some(address);
        registers.rip = address;
        ptrace::setregs(id, registers)?;
        Ok(Go::Step(stop::NONE))
    }
}

/// The process that a thread is of.
fn process_of(id: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().map(Pid::from_raw)
}

/// Whether it was made to run in its maker's memory, by the call that made it: its registers are a copy of its maker's.
fn shares_memory(id: Pid, memory: &Memory) -> bool {
    let Ok(registers) = ptrace::getregs(id) else { return false };
    let flags = match registers.orig_rax {
        VFORK => return true,
        CLONE => registers.rdi,
        // The first word of its arguments.
        CLONE3 => memory.word(registers.rdi).unwrap_or(0),
        _ => 0,
    };
    flags & libc::CLONE_VM as u64 != 0
}

fn becomes_another(id: Pid) -> bool {
    ptrace::getregs(id).is_ok_and(|registers| matches!(registers.orig_rax, EXECVE | EXECVEAT))
}
