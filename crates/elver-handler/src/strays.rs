//! Ends what a child has left behind when it ended, whatever group or session that has moved to.
//!
//! This process and each of its children are subreapers: a process that has lost its parent becomes a child of the next
//! of them. While a child lives, what it has started stays below it; so what comes to be a child of this process, and
//! was not forked by it, was left by one that has ended.

use std::io;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, waitid, waitpid,
};

/// How often to look again before what goes on making processes is told of.
const LOOKS_MAX: usize = 1000;

/// Ends all children but the known ones, and theirs.
///
/// # Errors
/// What the system says, and if they make processes faster than they can be ended.
pub fn end(known: &[Pid]) -> io::Result<()> {
    for _ in 0..LOOKS_MAX {
        // Without others that are known, the system says so at once.
        if known.is_empty() && !has_children() {
            return Ok(());
        }
        let left: Vec<Pid> = children()?.into_iter().filter(|pid| !known.contains(pid)).collect();
        if left.is_empty() {
            return Ok(());
        }
        for pid in &left {
            // One that has ended is there until it is waited for.
            kill_process(*pid, Signal::KILL)?;
        }
        for pid in left {
            waitpid(Some(pid), WaitOptions::empty())?;
        }
    }
    Err(io::Error::other("what a child left makes processes faster than they can be ended"))
}

fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, options).is_ok()
}

/// This process's children, by what the system says of all.
///
/// # Errors
/// What the system says of `/proc`.
pub fn children() -> io::Result<Vec<Pid>> {
    let own = getpid().as_raw_nonzero().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else { continue };
        // It may have ended meanwhile.
        let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { continue };
        // Behind the program's name, which may have anything in it: the state, and the parent.
        let Some(end) = stat.iter().rposition(|byte| *byte == b')') else { continue };
        let mut fields = stat[end + 1..].split(|byte| *byte == b' ').skip(2);
        if fields.next() == Some(own.as_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}
