//! The side of who stays.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, pread};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::farewells::receive;
use crate::record::{Farewell, RECORD, RECORDS_MAX, read};
use crate::say::say;

/// Processes that are watched at once; further ones are sent away.
const PROCESSES: usize = 1024;
/// Processes that wait to be let in.
const BACKLOG: i32 = 128;
/// A packet may be lost: each message is sent so often again, later and later.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// What [`epoll`] calls the end of who may come, and who comes; processes are numbered from there.
const UNTIL: u64 = 0;
const LISTENER: u64 = 1;
const FIRST: u64 = 2;

/// A process that is watched.
struct Watched {
    /// Readable when it has ended.
    process: OwnedFd,
    /// Its other end closes when the process has ended, or become another program.
    socket: OwnedFd,
    /// Where its device is, and what is to be said; once it has told.
    told: Option<(IpAddr, OwnedFd)>,
}

/// What is to be said again.
struct Again {
    due: Instant,
    rounds: &'static [Duration],
    own: IpAddr,
    farewells: Vec<Farewell>,
}

/// Watches processes, and tells their peers when they have ended.
pub struct Keeper {
    any: OwnedFd,
    listener: OwnedFd,
    until: OwnedFd,
    user: u32,
    watched: BTreeMap<u64, Watched>,
    next: u64,
    again: Vec<Again>,
}

impl Keeper {
    /// What processes connect to, and its name, for [`Farewells::new`](crate::Farewells::new): one of the abstract namespace
    /// of Unix sockets, which is the network namespace's.
    ///
    /// # Errors
    /// Of the system.
    pub fn listen() -> Result<(String, OwnedFd), Errno> {
        let mut bytes = [0; 16];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let name = format!("elver-keeper/{:032x}", u128::from_ne_bytes(bytes));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&listener, BACKLOG)?;
        Ok((name, listener))
    }

    /// One that lets processes in until `until`, a process's pidfd, is readable.
    ///
    /// # Errors
    /// Of the system.
    pub fn new(listener: OwnedFd, until: OwnedFd) -> Result<Keeper, Errno> {
        let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        add(&any, &until, UNTIL)?;
        add(&any, &listener, LISTENER)?;
        let user = geteuid().as_raw();
        let watched = BTreeMap::new();
        Ok(Keeper { any, listener, until, user, watched, next: FIRST, again: Vec::new() })
    }

    /// Watches until nobody new may come, and all that came have ended.
    ///
    /// # Errors
    /// Of the system.
    pub fn run(mut self) -> Result<(), Errno> {
        let mut is_open = true;
        while is_open || !self.watched.is_empty() || !self.again.is_empty() {
            let mut events = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }; 16];
            let count =
                match epoll::wait(&self.any, &mut events, self.limit(Instant::now()).as_ref()) {
                    Err(Errno::INTR) => 0,
                    count => count?,
                };
            for event in &events[..count] {
                match event.data.u64() {
                    UNTIL => {
                        epoll::delete(&self.any, &self.until)?;
                        is_open = false;
                    }
                    LISTENER => self.let_in(),
                    number => self.look(number),
                }
            }
            self.repeat(Instant::now());
        }
        Ok(())
    }

    /// How long nothing is to be said.
    fn limit(&self, now: Instant) -> Option<Timespec> {
        let due = self.again.iter().map(|again| again.due).min()?;
        let left = due.saturating_duration_since(now);
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    /// Lets in one process.
    fn let_in(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listener, flags) else { return };
        // Its number is its own still: who has the other end has not closed it, or has ended and tells nothing.
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else { return };
        if peer.uid() != self.user || self.watched.len() >= PROCESSES {
            return;
        }
        // 0 is a process that this one cannot see, in another PID namespace; rustix has no value for it.
        let Some(pid) = Pid::from_raw(peer.pid()) else { return };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        let number = self.next;
        if add(&self.any, &process, number).is_ok() && add(&self.any, &socket, number).is_ok() {
            self.next += 1;
            self.watched.insert(number, Watched { process, socket, told: None });
        }
    }

    /// Takes what a process tells, or notices that it has ended.
    fn look(&mut self, number: u64) {
        let Some(one) = self.watched.get_mut(&number) else { return };
        if one.told.is_none() {
            match receive(one.socket.as_fd()) {
                Ok(Some(told)) => {
                    one.told = Some(told);
                    return;
                }
                Err(Errno::AGAIN | Errno::INTR) if !has_ended(&one.process) => return,
                // It has ended, or says what no process of ours does.
                _ => {}
            }
        }
        let Some(Watched { told, .. }) = self.watched.remove(&number) else { return };
        let Some((own, table)) = told else { return };
        let farewells = records(&table);
        if !farewells.is_empty() {
            self.again.push(Again { due: Instant::now(), rounds: &AGAIN, own, farewells });
        }
    }

    /// Says what is due.
    fn repeat(&mut self, now: Instant) {
        self.again.retain_mut(|again| {
            if again.due > now {
                return true;
            }
            // What cannot leave is as lost as what the network loses.
            let _ = say(again.own, &again.farewells);
            let Some((wait, rest)) = again.rounds.split_first() else { return false };
            (again.due, again.rounds) = (now + *wait, rest);
            true
        });
    }
}

fn add(any: &OwnedFd, fd: &OwnedFd, number: u64) -> Result<(), Errno> {
    epoll::add(any, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
}

fn has_ended(process: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|count| count > 0)
}

/// What a process that has ended left to be said.
fn records(table: &OwnedFd) -> Vec<Farewell> {
    let mut farewells = Vec::new();
    for at in 0..RECORDS_MAX {
        let mut record = [0; RECORD];
        if pread(table, &mut record, (at * RECORD) as u64) != Ok(RECORD) {
            break;
        }
        farewells.extend(read(&record));
    }
    farewells
}
