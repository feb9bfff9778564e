//! The lender's thread: it rings doorbells for children, and takes queue pairs back when these have ended.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use super::forks::Between;
use super::registry;
use super::returning::Return;
use super::table::{State, Table};
use super::verbs;

/// For how long the thread looks for requests before it sleeps: a wake takes longer than a request.
const SPIN: Duration = Duration::from_micros(50);
/// How often it looks for children's ends while requests keep it awake, in rounds.
const ROUNDS: u32 = 256;
/// How often it looks at queue pairs that are being drained, in milliseconds.
const DRAIN_MS: i32 = 1;

/// A child that has a queue pair, by its pidfd: its number may be another's once it is reaped.
struct Child {
    pidfd: OwnedFd,
}

#[derive(Default)]
struct Owner {
    /// By slot.
    children: BTreeMap<usize, Child>,
    returns: BTreeMap<usize, Return>,
    between: Between,
}

/// Starts the thread. It takes no signal of the program's.
///
/// # Errors
/// There can be no more threads.
pub(crate) fn start(table: Table) -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are ours to write, and the first is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let builder = std::thread::Builder::new().name("elver-lender".into());
    let started = builder.spawn(move || Owner::default().run(table));
    // SAFETY: the call above has filled it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started.map(drop)
}

impl Owner {
    fn run(mut self, table: Table) {
        table.set_owner();
        let (mut since, mut rounds) = (Instant::now(), 0_u32);
        loop {
            rounds = rounds.wrapping_add(1);
            let now = Instant::now();
            if self.serve(table, now) {
                since = now;
            }
            if now.duration_since(since) < SPIN {
                if rounds.is_multiple_of(ROUNDS) {
                    self.wait(table, 0);
                }
                std::hint::spin_loop();
                continue;
            }
            table.set_asleep(true);
            if !self.serve(table, now) {
                self.wait(table, if self.returns.is_empty() { -1 } else { DRAIN_MS });
            }
            table.set_asleep(false);
            since = Instant::now();
        }
    }

    /// Does what children ask for, and goes on with what is being drained; whether anybody asked.
    fn serve(&mut self, table: Table, now: Instant) -> bool {
        let mut has_served = false;
        for at in table.wanted() {
            has_served = true;
            let slot = table.slot(at);
            let (asked, is_asked) = slot.asked();
            // Somebody else saw that a child has it of whom nothing was heard.
            let state = slot.state(registry::generation(at)).0;
            let is_unknown = state == State::Taken && !self.children.contains_key(&at);
            if is_asked || is_unknown {
                let result = self.request(table, at, now);
                slot.answer(asked, result);
            }
        }
        if !self.returns.is_empty() {
            self.go_on(table, now);
        }
        has_served
    }

    /// Goes on with what is being drained, unless a fork comes first.
    fn go_on(&mut self, table: Table, now: Instant) {
        let Some(_turn) = self.between.turn() else { return };
        self.returns.retain(|at, returning| {
            let Some(state) = returning.step(now) else { return true };
            let slot = table.slot(*at);
            slot.clear();
            slot.returned.fetch_add(1, Relaxed);
            let _changing = registry::change();
            registry::set_busy(*at, false);
            slot.set(state, registry::generation(*at));
            false
        });
    }

    fn request(&mut self, table: Table, at: usize, now: Instant) -> Result<(), i32> {
        if self.returns.contains_key(&at) {
            return Err(libc::EPERM);
        }
        if self.children.contains_key(&at) {
            let qp = registry::qp(at);
            // SAFETY: it is lent, and neither it nor its context goes while it is busy.
            let (fd, handle) = unsafe { (verbs::command_fd((*qp).context), (*qp).handle) };
            return verbs::doorbell(fd, handle);
        }
        let _changing = registry::change();
        let slot = table.slot(at);
        let (state, pid) = slot.state(registry::generation(at));
        if registry::qp(at).is_null() || state != State::Taken {
            return Err(libc::EPERM);
        }
        registry::set_busy(at, true);
        match watch(pid) {
            Ok(pidfd) => {
                slot.watched.store(pid, Release);
                self.children.insert(at, Child { pidfd });
                Ok(())
            }
            Err(error) => {
                // It has ended, or is no child of this process's: what it may have posted meanwhile goes.
                self.take_back(table, at, now);
                Err(error.raw_os_error().unwrap_or(libc::EPERM))
            }
        }
    }

    /// A child that had it has ended. It is busy until what that left is drained.
    fn take_back(&mut self, table: Table, at: usize, now: Instant) {
        let slot = table.slot(at);
        slot.watched.store(0, Release);
        slot.set(State::Returning, registry::generation(at));
        // SAFETY: it is lent, and neither it nor its context goes while it is busy.
        let returning =
            unsafe { Return::begin(registry::qp(at), slot, registry::is_fenced(at), now) };
        self.returns.insert(at, returning);
    }

    /// Waits for the bell, and for children to end.
    fn wait(&mut self, table: Table, timeout_ms: i32) {
        let of = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let slots: Vec<usize> = self.children.keys().copied().collect();
        let pidfds = self.children.values().map(|child| of(child.pidfd.as_raw_fd()));
        let mut polled: Vec<_> = std::iter::once(of(table.bell().hear())).chain(pidfds).collect();
        // SAFETY: so many of them. A failure is looked at as nothing.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
        if polled[0].revents != 0 {
            table.bell().drain();
        }
        for (at, _) in slots.iter().zip(&polled[1..]).filter(|(_, child)| child.revents != 0) {
            self.children.remove(at);
            self.take_back(table, *at, Instant::now());
        }
    }
}

/// The pidfd of a process that is a child of this one.
fn watch(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call has no memory to do with; what it returns is a new descriptor.
    let pidfd = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd as i32)
    };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: all zeros are a value of it, which the call writes.
    let found = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PIDFD, pidfd.as_raw_fd() as libc::id_t, &raw mut info, options)
    };
    match found {
        0 => Ok(pidfd),
        _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}
