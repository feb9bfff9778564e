//! How many connections there may be, by how many files the system lets this process have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// More open files than this are never of use.
const DESCRIPTORS_MAX: u64 = 1 << 16;

/// Most connections at the front door, and of one container's processes.
const CONNECTIONS_MAX: u64 = 1024;

/// Connections at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// At the front door.
    pub(super) front: usize,
    /// Of one user there.
    pub(super) caller: usize,
    /// Of one container's processes.
    pub(super) container: usize,
}

impl Limits {
    /// Raises how many files may be open, as far as the system lets this process.
    pub(super) fn raise(containers_max: usize) -> Limits {
        let mut files = getrlimit(Resource::Nofile);
        let most = files.maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
        if files.current.is_some_and(|current| current < most) {
            let now = files.current;
            files.current = Some(most);
            if setrlimit(Resource::Nofile, files).is_err() {
                files.current = now;
            }
        }
        Limits::of(files.current.unwrap_or(DESCRIPTORS_MAX), containers_max as u64)
    }

    /// A quarter is the front door's, a half the containers'; the rest is for what the orchestrator itself opens.
    pub(super) fn of(files: u64, containers_max: u64) -> Limits {
        let front = (files / 4).clamp(4, CONNECTIONS_MAX);
        let container = (files / 2 / containers_max).clamp(4, CONNECTIONS_MAX);
        Limits {
            front: front as usize,
            caller: (front as usize / 4).max(1),
            container: container as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_leave_files_for_the_rest() {
        for (files, containers) in [(1024, 1), (1024, 16), (20_000, 16), (1 << 16, 1)] {
            let limits = Limits::of(files, containers);
            let all = limits.front as u64 + containers * limits.container as u64;
            assert!(all <= files * 3 / 4, "{files}: {limits:?}");
            assert!(limits.caller < limits.front);
        }
    }
}
