//! The processes of an action: the one that was started, and what that has started in its group.
//!
//! This process is the parent of all that lose theirs, and waits for every end, so that none stays as a zombie and counts
//! among the container's processes. A group is killed when its first process has ended, at once: later its number may be
//! another's.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, wait,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::spawn_local;

/// First processes of groups that have not been waited for.
#[derive(Clone, Debug, Default)]
pub(super) struct Started(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    first: RefCell<BTreeSet<i32>>,
    /// One has ended.
    ended: Notify,
}

impl Started {
    /// Begins to wait for what ends.
    pub(super) fn look_after() -> io::Result<Started> {
        set_child_subreaper(Some(getpid()))?;
        let started = Started::default();
        let mut ends = signal(SignalKind::child())?;
        let own = started.clone();
        spawn_local(async move {
            while ends.recv().await.is_some() {
                own.wait_for_ended();
            }
        });
        Ok(started)
    }

    fn wait_for_ended(&self) {
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            if self.0.first.borrow_mut().remove(&number(pid)) {
                kill_group(pid);
                self.0.ended.notify_waiters();
            }
        }
    }

    fn has(&self, first: Pid) -> bool {
        self.0.first.borrow().contains(&number(first))
    }
}

/// A group, which ends with this.
#[derive(Debug)]
pub(super) struct Group {
    first: Pid,
    started: Started,
}

impl Group {
    /// Of a process that was started as the first of its group just now.
    pub(super) fn of(first: &std::process::Child, started: &Started) -> Group {
        let first = Pid::from_child(first);
        started.0.first.borrow_mut().insert(number(first));
        Group { first, started: started.clone() }
    }

    /// Waits until its first process has ended.
    pub(super) async fn first_ended(&self) {
        loop {
            let ended = self.started.0.ended.notified();
            if !self.started.has(self.first) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.started.has(self.first) {
            kill_group(self.first);
        }
    }
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

fn kill_group(first: Pid) {
    // There may be none left.
    let _ = kill_process_group(first, Signal::KILL);
}
