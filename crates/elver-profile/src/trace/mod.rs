//! Watching a program from outside, by ptrace: the functions of libibverbs, libnl and the C library that it calls, and its
//! system calls. Nothing of the program or its libraries is changed on disk; a breakpoint is a byte in its memory.
//!
//! Time passes for a thread while it runs. What it stands still because it is watched is taken away: the time from when it is
//! seen to stop until it is let go on, and for each stop what [`Watch::calibrated`] found that the rest of one takes.

mod memory;
mod names;
mod others;
mod results;
mod seen;
mod spots;
mod stop;
mod thread;

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use self::memory::Memory;
use self::others::Others;
use self::results::Files;
use self::spots::{Spots, TRAP};
use self::stop::{Go, Stop};
use self::thread::Thread;
use crate::calls::now_ns;

pub use self::seen::{Seen, Spent};

/// System calls that tell what a stop takes.
pub(crate) const CALIBRATION: u32 = 2_000;
/// Its name.
const CALIBRATION_CALL: &str = "getppid";

/// How programs are watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// What a stop takes beside the time for which it is seen, in nanoseconds.
    pub stop_ns: u64,
}

impl Watch {
    /// Finds out what a stop takes, by a program that makes so many system calls, which take so many nanoseconds
    /// each when nobody watches.
    ///
    /// # Errors
    /// This process may not watch another.
    pub fn calibrated(command: Command, unwatched_ns: f64) -> Result<Watch> {
        let (seen, _) = Watch::default().run(command)?;
        let spent = seen.outside.get(CALIBRATION_CALL).copied().unwrap_or_default();
        ensure!(
            spent.count >= u64::from(CALIBRATION),
            "the calibration made {} calls",
            spent.count
        );
        // Nearly all of its system calls are these. Of the two stops of one, the end of the first and the beginning of the
        // second lie within it.
        let mut each = seen.each_ns;
        each.sort_unstable();
        let median = each.get(each.len() / 2).copied().unwrap_or(0);
        Ok(Watch { stop_ns: (median as f64 - unwatched_ns).max(0.0) as u64 })
    }

    /// Runs a program to its end, and returns what was seen, and its exit code; 128 and more for a signal.
    ///
    /// # Errors
    /// It cannot be run ([`NotRun`]), or watched.
    pub fn run(self, mut command: Command) -> Result<(Seen, u8)> {
        let traced = || ptrace::traceme().map_err(std::io::Error::from);
        // SAFETY: one system call between fork and exec, which allocates nothing.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(traced);
        }
        command.stdin(Stdio::null());
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|reason| NotRun { program, reason })?;
        let pid = Pid::from_raw(child.id() as i32);
        // It stands at its first instruction.
        waitpid(pid, None).context("waiting for the program")?;
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(pid, options).context("this process may not watch others (ptrace)")?;
        let mut watcher = Watcher {
            watch: self,
            pid,
            memory: Memory::of(pid)?,
            spots: Spots::default(),
            files: Files::default(),
            threads: HashMap::from([(pid, Thread::default())]),
            others: Others::default(),
            seen: Seen::default(),
            code: 0,
        };
        ptrace::syscall(pid, None)?;
        while !(watcher.threads.is_empty() && watcher.others.is_empty()) {
            watcher.turn()?;
        }
        Ok((watcher.seen, watcher.code))
    }
}

/// Why a program was not watched: it cannot be run.
#[derive(Debug)]
pub struct NotRun {
    program: String,
    /// What the system said.
    pub reason: io::Error,
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run {} to watch it: {}", self.program, self.reason)
    }
}

impl Error for NotRun {}

/// One program that is watched.
struct Watcher {
    watch: Watch,
    pid: Pid,
    memory: Memory,
    spots: Spots,
    files: Files,
    threads: HashMap<Pid, Thread>,
    others: Others,
    seen: Seen,
    code: u8,
}

impl Watcher {
    /// Waits until a thread stops, and lets it go on.
    fn turn(&mut self) -> Result<()> {
        let Some((id, stop)) = stop::next().context("waiting for the program")? else {
            self.threads.clear();
            self.others.clear();
            return Ok(());
        };
        let stopped = now_ns();
        if stop.is_end() {
            self.ends(id, stop);
            return Ok(());
        }
        match self.goes_on(id, stop, stopped) {
            // Its registers and its memory may be no more.
            Err(_) if stop::was_killed(id) => Ok(()),
            result => result,
        }
    }

    fn ends(&mut self, id: Pid, stop: Stop) {
        self.threads.remove(&id);
        self.others.ended(id);
        if id == self.pid {
            self.code = match stop {
                Stop::Killed(signal) => 128 + signal,
                Stop::Exited(code) => code,
                _ => self.code,
            };
        }
    }

    fn goes_on(&mut self, id: Pid, stop: Stop, stopped: u64) -> Result<()> {
        if !self.threads.contains_key(&id) && !self.others.has(id) {
            self.others.begins(self.pid, id, &self.spots)?;
        }
        if self.others.has(id) {
            return self.others.go_on(id, stop, &self.spots, &self.memory);
        }
        let go = self.stop(id, stop, stopped)?;
        let thread = self.threads.entry(id).or_default();
        let resumed = stop::go(id, go);
        thread.stood_ns += now_ns() - stopped + self.watch.stop_ns;
        resumed.context("the program cannot go on")
    }

    fn stop(&mut self, id: Pid, stop: Stop, stopped: u64) -> Result<Go> {
        let thread = self.threads.entry(id).or_default();
        let now = stopped.saturating_sub(thread.stood_ns);
        match stop {
            Stop::SystemCall => self.system_call(id, now)?,
            Stop::Event(libc::PTRACE_EVENT_EXEC) => {
                // Another program: nothing of the old one is there.
                self.memory = Memory::of(self.pid)?;
                self.spots = Spots::default();
                self.threads.entry(id).or_default().forget_calls();
            }
            Stop::Signal(stop::SIGTRAP) => return self.trap(id, now),
            // A new thread's first stop, or anybody's, which stops nobody here.
            Stop::Signal(stop::SIGSTOP) if thread.stepping.is_some() => {
                return Ok(Go::Step(stop::NONE));
            }
            Stop::Signal(stop::SIGSTOP) => {}
            // It came before the step. That ends where a handler begins, which returns to the breakpoint.
            Stop::Signal(signal) if thread.stepping.is_some() => return Ok(Go::Step(signal)),
            Stop::Signal(signal) => return Ok(Go::On(signal)),
            Stop::Event(_) | Stop::Exited(_) | Stop::Killed(_) => {}
        }
        Ok(Go::On(stop::NONE))
    }

    fn system_call(&mut self, id: Pid, now: u64) -> Result<()> {
        let Ok(registers) = ptrace::getregs(id) else { return Ok(()) };
        let Some(thread) = self.threads.get_mut(&id) else { return Ok(()) };
        let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
        let Some((number, begun)) = thread.system_call.take() else {
            thread.system_call = Some((registers.orig_rax, now));
            self.files.enters(&self.memory, registers.orig_rax, arguments);
            return Ok(());
        };
        let took = now.saturating_sub(begun);
        thread.add_kernel(took);
        self.seen.system_call(thread.outermost(), names::name(number), took);
        let result = registers.rax as i64;
        let call = thread.outermost();
        self.files.leaves(&self.memory, number, arguments, result, |key, value| {
            self.seen.result(call, key, value);
        });
        // mmap with PROT_EXEC.
        if number == 9 && result > 0 && arguments[2] & 4 != 0 {
            self.spots.look(self.pid, &self.memory)?;
        }
        Ok(())
    }

    /// A breakpoint, or the step over one.
    fn trap(&mut self, id: Pid, now: u64) -> Result<Go> {
        let Some(thread) = self.threads.get_mut(&id) else { return Ok(Go::On(stop::NONE)) };
        if let Some(spot) = thread.stepping.take() {
            let steps = |other: &Thread| other.stepping == Some(spot);
            if self.spots.stands_at(spot) && !self.threads.values().any(steps) {
                self.memory.write(spot, &[spots::INT3])?;
            }
            // Another thread's call may have put one there before the step.
            if !stop::met_breakpoint(id) {
                return Ok(Go::On(stop::NONE));
            }
        }
        let Some(thread) = self.threads.get_mut(&id) else { return Ok(Go::On(stop::NONE)) };
        let mut registers = ptrace::getregs(id)?;
        let address = registers.rip.wrapping_sub(TRAP);
        if let Some(frame) = thread.returns_at(address, registers.rsp) {
            self.seen.function(thread.outermost(), &frame, now);
            if let Some(byte) = self.spots.leave_return(address) {
                self.memory.write(address, &[byte])?;
            }
            registers.rip = address;
            ptrace::setregs(id, registers)?;
            return Ok(Go::On(stop::NONE));
        }
        let Some(spot) = self.spots.at(address).cloned() else {
            // Where a call of another thread's returns to, or has meanwhile.
            let Some(byte) = self.spots.stood_at(address) else {
                return Ok(Go::On(stop::SIGTRAP));
            };
            return self.step_over(id, address, byte, registers);
        };
        // Of the C library and libnl only what libibverbs has called counts.
        if spot.is_call || thread.outermost().is_some() {
            let back = self.memory.word(registers.rsp)?;
            // A handler has returned to where the call begins.
            if thread.is_in(&spot.name, back, registers.rsp) {
                return self.step_over(id, address, spot.byte, registers);
            }
            if self.spots.enter_return(&self.memory, back)? {
                self.memory.write(back, &[spots::INT3])?;
            }
            thread.enters(spot.name, back, registers.rsp, now);
        }
        self.step_over(id, address, spot.byte, registers)
    }

    fn step_over(
        &mut self,
        id: Pid,
        address: u64,
        byte: u8,
        mut registers: libc::user_regs_struct,
    ) -> Result<Go> {
        self.memory.write(address, &[byte])?;
        self.threads.entry(id).or_default().stepping = Some(address);
        registers.rip = address;
        ptrace::setregs(id, registers)?;
        Ok(Go::Step(stop::NONE))
    }
}
