//! Where a process runs and what it may do there: what its user's number alone does not say.
//!
//! A user owns many numbers (newuidmap gives 65,536), by way of a user namespace; root of a container
//! has the number of the host's root. Both show in the namespaces of the process, which
//! `SO_PEERCRED` does not tell of.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::time::Timespec;

/// Namespaces that may lie in each other: the system allows 32.
const DEPTH_MAX: usize = 40;

/// Where a process stands, as this one sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its user namespace.
    pub users: Space,
    /// Its PID namespace.
    pub pids: Space,
    /// Whether it has every capability that this process has.
    pub able: bool,
}

/// A namespace of a process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// This process's too.
    Own,
    /// One below this process's. Of those that lie in each other, the uppermost below this process's:
    /// its number, and for a user namespace the user who made it.
    Below {
        /// Its inode.
        number: u64,
        /// Who made it; 0 for one of PIDs.
        owner: u32,
    },
    /// Another: one above, or beside.
    Foreign {
        /// Its inode.
        number: u64,
    },
    /// The system does not tell.
    Unseen,
}

impl Standing {
    /// A process of which the system tells nothing.
    pub const UNSEEN: Standing =
        Standing { users: Space::Unseen, pids: Space::Unseen, able: false };
    /// This process itself.
    pub const OWN: Standing = Standing { users: Space::Own, pids: Space::Own, able: true };

    /// Of the process `pid`, if the system shows it, of which `pidfd` is.
    pub fn of(pid: Option<Pid>, pidfd: impl AsFd) -> Standing {
        let pidfd = pidfd.as_fd();
        let space = |kind| of_process(pid, &pidfd, kind).map_or(Space::Unseen, |of| of.space(kind));
        let (users, pids) = (space(Kind::User), space(Kind::Pid));
        let able = pid.is_some_and(is_able) && is_alive(&pidfd);
        Standing { users, pids, able }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    User,
    Pid,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::User => "user",
            Kind::Pid => "pid",
        }
    }

    /// `PIDFD_GET_USER_NAMESPACE` and `PIDFD_GET_PID_NAMESPACE` (Linux 6.11).
    fn of_pidfd(self) -> libc::Ioctl {
        match self {
            Kind::User => 0xff09,
            Kind::Pid => 0xff05,
        }
    }

    /// The inode of this process's. It is kept open where that can be: else the system makes it anew for each look at a
    /// process that has the same, and clears it away again, which takes longer than the look.
    fn own(self) -> Option<u64> {
        type Kept = OnceLock<Option<(u64, Option<File>)>>;
        static OWN: [Kept; 2] = [OnceLock::new(), OnceLock::new()];
        let own = OWN[self as usize].get_or_init(|| {
            let path = format!("/proc/self/ns/{}", self.name());
            Some((std::fs::metadata(&path).ok()?.ino(), File::open(&path).ok()))
        });
        own.as_ref().map(|(number, _)| *number)
    }
}

/// An open namespace.
struct Opened(File);

impl Opened {
    fn number(&self) -> Option<u64> {
        Some(self.0.metadata().ok()?.ino())
    }

    fn space(self, kind: Kind) -> Space {
        let Some(own) = kind.own() else { return Space::Unseen };
        let Some(mut number) = self.number() else { return Space::Unseen };
        if number == own {
            return Space::Own;
        }
        let first = number;
        let mut at = self;
        for _ in 0..DEPTH_MAX {
            // It fails for those that are not below this process's.
            let Ok(parent) = at.parent() else { return Space::Foreign { number: first } };
            match parent.number() {
                Some(found) if found == own => {
                    let owner = if kind == Kind::User { at.owner() } else { Some(0) };
                    return owner.map_or(Space::Unseen, |owner| Space::Below { number, owner });
                }
                Some(found) => (number, at) = (found, parent),
                None => return Space::Unseen,
            }
        }
        Space::Unseen
    }

    fn parent(&self) -> io::Result<Opened> {
        const NS_GET_PARENT: libc::Ioctl = 0xb702;
        opened(self.0.as_raw_fd(), NS_GET_PARENT)
    }

    /// The user who made it.
    fn owner(&self) -> Option<u32> {
        const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
        let mut uid: libc::uid_t = u32::MAX;
        // SAFETY: `uid` is valid for the `uid_t` that the kernel writes.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
        (result == 0).then_some(uid)
    }
}

/// The inode of the PID namespace that the process of a number is in, which may be another process by now.
pub fn pid_namespace(pid: Pid) -> Option<u64> {
    Some(std::fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?.ino())
}

/// A namespace of a process, whoever has its number by now.
fn of_process(pid: Option<Pid>, pidfd: &impl AsFd, kind: Kind) -> Option<Opened> {
    if let Ok(opened) = opened(pidfd.as_fd().as_raw_fd(), kind.of_pidfd()) {
        return Some(opened);
    }
    // Before Linux 6.11: by its number, which was the process's if that lives still.
    let file = File::open(format!("/proc/{}/ns/{}", pid?, kind.name())).ok()?;
    is_alive(pidfd).then_some(Opened(file))
}

/// What a call gives a descriptor for.
fn opened(fd: i32, request: libc::Ioctl) -> io::Result<Opened> {
    // SAFETY: the requests that this is called with take no argument.
    let fd = unsafe { libc::ioctl(fd, request, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made the descriptor for us.
    Ok(Opened(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
}

/// Whether the process of a pidfd has not ended: only then its number is its own.
fn is_alive(pidfd: &impl AsFd) -> bool {
    let at_once = Timespec::try_from(Duration::ZERO).unwrap_or_default();
    matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)), Ok(0))
}

/// Whether a process has every capability in effect that this one has.
fn is_able(pid: Pid) -> bool {
    let Ok(own) = capabilities(None) else { return false };
    own == 0 || capabilities(Some(pid)).is_ok_and(|its| its & own == own)
}

/// The capabilities in effect of a process; by default of this one.
fn capabilities(pid: Option<Pid>) -> io::Result<u64> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = Header { version: VERSION_3, pid: Pid::as_raw(pid) };
    let mut data = [Data::default(); 2];
    // SAFETY: both are as this version of the call has them, and valid while it runs.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    if result != 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error())
            .unwrap_or(Errno::INVAL)
            .into());
    }
    Ok(u64::from(data[1].effective) << 32 | u64::from(data[0].effective))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use rustix::process::{PidfdFlags, pidfd_open};

    use super::*;

    struct Other(Child);

    impl Other {
        /// A process that says a line when it is what it is to be, and lives until this is dropped.
        fn new(command: &[&str]) -> Other {
            let mut child = Command::new(command[0])
                .args(&command[1..])
                .args(["sh", "-c", "echo; read line"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut byte = [0];
            use std::io::Read;
            child.stdout.as_mut().unwrap().read_exact(&mut byte).expect("it runs");
            Other(child)
        }

        fn standing(&self) -> Standing {
            let pid = Pid::from_child(&self.0);
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            Standing::of(Some(pid), pidfd)
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_like_this_one_stands_where_it_does() {
        assert_eq!(Other::new(&["env"]).standing(), Standing::OWN);
    }

    #[test]
    fn a_process_that_ended_stands_nowhere() {
        let mut other = Other::new(&["env"]);
        let pid = Pid::from_child(&other.0);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        other.0.kill().unwrap();
        other.0.wait().unwrap();
        let standing = Standing::of(Some(pid), pidfd);
        assert_eq!((standing.pids, standing.able), (Space::Unseen, false));
    }

    #[test]
    fn a_user_namespace_is_of_who_made_it_however_deep() {
        let own = rustix::process::geteuid().as_raw();
        let unshare = ["unshare", "--user", "--map-root-user"];
        let one = Other::new(&unshare).standing();
        let Space::Below { owner, .. } = one.users else { panic!("{one:?}") };
        assert_eq!((owner, one.pids), (own, Space::Own));
        let deep = Other::new(&[&unshare[..], &unshare[..]].concat()).standing();
        let Space::Below { owner, .. } = deep.users else { panic!("{deep:?}") };
        assert_eq!(owner, own);
        if own == 0 {
            let nobody = ["setpriv", "--reuid=65534", "--clear-groups"];
            let its = Other::new(&[&nobody[..], &unshare[..]].concat()).standing();
            let Space::Below { owner, .. } = its.users else { panic!("{its:?}") };
            assert_eq!((owner, its.able), (65_534, true), "able there, which says nothing here");
        }
    }

    #[test]
    fn root_with_less_than_this_process_is_told_from_it() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: this process has no capabilities to be without");
        }
        let less = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"];
        let standing = Other::new(&less).standing();
        assert_eq!(standing, Standing { able: false, ..Standing::OWN });
        let contained = ["unshare", "--pid", "--fork", "--kill-child"];
        // Its first process is a child of the one that is known; that one is where it was.
        assert_eq!(Other::new(&contained).standing(), Standing::OWN);
    }
}
