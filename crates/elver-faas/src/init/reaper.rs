//! The first process of a container is the parent of all that lost theirs: it waits for every end.
//!
//! The number of a process that has been waited for may be another one's at once. So nobody is waited for while one is ended by its
//! number.

use std::collections::HashSet;
use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use elver_handler::strays;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process, kill_process_group,
    wait, waitid,
};

use super::event::Event;

/// Runtimes that have not been waited for, each the first of its group.
#[derive(Clone, Debug, Default)]
pub(super) struct Living(Arc<Mutex<HashSet<Pid>>>);

impl Living {
    /// Starts one.
    pub(super) fn start(&self, command: &mut Command) -> io::Result<Child> {
        let mut living = self.lock();
        let child = command.spawn()?;
        living.insert(Pid::from_child(&child));
        Ok(child)
    }

    /// Kills one, and all of its processes that did not leave its group. It may have left that itself; what others leave,
    /// comes to be the first process's then.
    pub(super) fn kill(&self, runtime: Pid) {
        let living = self.lock();
        if living.contains(&runtime) {
            // It may have ended.
            let _ = kill_process_group(runtime, Signal::KILL);
            let _ = kill_process(runtime, Signal::KILL);
        }
    }

    /// Ends what is no runtime's: each is a subreaper, so that what comes to be this process's child was left by one that
    /// has ended. Those that this makes come next, when these have been waited for.
    pub(super) fn end_others(&self) -> io::Result<()> {
        let living = self.lock();
        for pid in strays::children()?.into_iter().filter(|pid| !living.contains(pid)) {
            // It may have ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }

    /// Waits for one that has ended, of whatever kind. With a runtime its group ends, which has lost who would tell of it.
    fn wait_for_ended(&self) -> Option<(Pid, WaitStatus)> {
        let mut living = self.lock();
        let (pid, status) = wait(WaitOptions::NOHANG).ok()??;
        if living.remove(&pid) {
            // There may be none left.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        Some((pid, status))
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts to wait. What comes back is to be told of each process that was started.
pub(super) fn start(events: SyncSender<Event>, living: Living) -> io::Result<Sender<()>> {
    let (started, processes) = mpsc::channel::<()>();
    let serve = move || {
        // Between two starts there may be no child to wait for.
        while processes.recv().is_ok() {
            while waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).is_ok() {
                let Some((pid, status)) = living.wait_for_ended() else { continue };
                if events.send(Event::Reaped(pid, describe(status))).is_err() {
                    return;
                }
            }
        }
    };
    thread::Builder::new().name("reaper".into()).spawn(serve)?;
    Ok(started)
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for no reason that the system gives".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;

    use super::*;

    /// A function's process that had been given the number of a runtime that had ended was killed.
    #[test]
    fn who_has_the_number_of_one_that_has_ended_is_not_killed() {
        let living = Living::default();
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).process_group(0);
        let [mut other, mut runtime] =
            [command.spawn().unwrap(), living.start(&mut command).unwrap()];
        for of in [&other, &runtime] {
            living.kill(Pid::from_child(of));
        }
        assert!(!runtime.wait().unwrap().success());
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
    }
}
