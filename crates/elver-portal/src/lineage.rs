//! Whose child a process is.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::process::Pid;

/// The process that another's pidfd names has this parent, as this process's namespace numbers it,
/// if that is one that it sees. Linux 6.13 and later tell it of the pidfd; before, it stands below
/// `/proc`, at the number `pid`, which the caller must know to be that process's still.
///
/// # Errors
/// The process has ended, or the system shows nothing of it.
pub fn parent_of(pid: Pid, pidfd: impl AsFd) -> io::Result<Option<Pid>> {
    let parent = match parent_by_pidfd(&pidfd) {
        Some(parent) => parent,
        None => parent_by_number(pid)?,
    };
    Ok(Pid::from_raw(parent))
}

/// `PIDFD_GET_INFO`; none where the system does not know it, or the process has ended.
fn parent_by_pidfd(pidfd: &impl AsFd) -> Option<i32> {
    /// The first version of the call's structure.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        pid: u32,
        tgid: u32,
        ppid: u32,
        ids: [u32; 9],
    }
    const PIDFD_INFO_PID: u64 = 1;
    const SIZE: u32 = size_of::<Info>() as u32;
    const PIDFD_GET_INFO: libc::Ioctl = (3 << 30 | SIZE << 16 | 0xff << 8 | 11) as libc::Ioctl;
    let mut info = Info { mask: PIDFD_INFO_PID, ..Info::default() };
    // SAFETY: `info` is as long as the request says, and valid while the call runs.
    let result = unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    let told = result == 0 && info.mask & PIDFD_INFO_PID != 0;
    told.then_some(info.ppid).and_then(|ppid| i32::try_from(ppid).ok())
}

fn parent_by_number(pid: Pid) -> io::Result<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // A name may have brackets and spaces; behind its last bracket come the state and the parent.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace());
    let parent = fields.and_then(|mut fields| fields.nth(1)?.parse().ok());
    parent.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, stat))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    #[test]
    fn a_child_is_this_processes_either_way_and_a_grandchild_is_not() {
        let mut child =
            Command::new("sh").args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert_eq!(parent_of(pid, &pidfd).unwrap(), Some(getpid()));
        assert_eq!(parent_by_number(pid).unwrap(), getpid().as_raw_pid());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(parent_of(pid, &pidfd).is_err(), "it has ended");
        let init = pidfd_open(Pid::INIT, PidfdFlags::empty()).unwrap();
        assert_eq!(parent_of(Pid::INIT, &init).unwrap(), None);
    }
}
