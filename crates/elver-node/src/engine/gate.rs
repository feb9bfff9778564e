//! A session's gate: by which its process reaches memory of others of its user itself.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use elver_portal::memfd::Pages;
use elver_portal::{DOORS_MAX, GATE_BYTES, GateCounts, NodeGate};
use rustc_hash::FxHashSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::room::{self, Backing};

/// A gate, as the session has it that it was made for.
pub(super) struct Gate {
    pub(super) end: Arc<GateEnd>,
    pub(super) file: Backing,
    /// Its process has it, since it came with a region.
    pub(super) is_taken: bool,
    /// The keys of the regions that are open to it, by their doors.
    doors: Vec<Option<u32>>,
    /// Its VQPs that were let go this way.
    pub(super) vqps: FxHashSet<u32>,
}

/// A gate, as those have it whose regions are open to it: it may outlive its session.
pub(super) struct GateEnd {
    gate: NodeGate,
    /// Its process; none for this one.
    process: Option<OwnedFd>,
    /// Its process has ended.
    is_dead: AtomicBool,
    /// It was waited for long enough.
    is_given_up: AtomicBool,
    /// The session's token.
    pub(super) token: u64,
}

/// An access that was under way when its door was shut.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) end: Arc<GateEnd>,
    epoch: u64,
}

impl Gate {
    /// A gate for a session of a process.
    pub(super) fn make(token: u64, process: Option<&OwnedFd>) -> std::io::Result<Gate> {
        let process = process.map(OwnedFd::try_clone).transpose()?;
        let file = room::memfd("elver-gate", GATE_BYTES, Pages::Small, None)?;
        let end = Arc::new(GateEnd {
            gate: NodeGate::map(file.as_fd())?,
            process,
            is_dead: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            token,
        });
        Ok(Gate { end, file, is_taken: false, doors: Vec::new(), vqps: FxHashSet::default() })
    }

    /// The door by which a region is open.
    pub(super) fn door_of(&self, lkey: u32) -> Option<u32> {
        let at = self.doors.iter().position(|door| *door == Some(lkey))?;
        Some(at as u32)
    }

    /// Takes a door for a region, if there is one left.
    pub(super) fn take_door(&mut self, lkey: u32) -> Option<u32> {
        let at = match self.doors.iter().position(Option::is_none) {
            Some(at) => at,
            None if self.doors.len() < DOORS_MAX as usize => {
                self.doors.push(None);
                self.doors.len() - 1
            }
            None => return None,
        };
        self.doors[at] = Some(lkey);
        Some(at as u32)
    }

    /// A door is another's from now on.
    pub(super) fn free_door(&mut self, door: u32) {
        if let Some(door) = self.doors.get_mut(door as usize) {
            *door = None;
        }
    }

    /// Regions that are open to it.
    pub(super) fn regions(&self) -> impl Iterator<Item = u32> {
        self.doors.iter().flatten().copied()
    }
}

impl GateEnd {
    pub(super) fn open(&self, door: u32, generation: u64) {
        self.gate.open(door, generation);
    }

    pub(super) fn counts(&self) -> GateCounts {
        self.gate.counts()
    }

    /// Shuts a door; the access that may be under way.
    pub(super) fn shut(self: &Arc<GateEnd>, door: u32) -> Option<Access> {
        let epoch = self.gate.shut(door)?;
        let access = Access { end: self.clone(), epoch };
        (!access.has_ended()).then_some(access)
    }

    /// Looks whether its process has ended, and all its threads with it.
    pub(super) fn is_orphan(&self) -> bool {
        let Some(process) = &self.process else { return false };
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        // Where the system does not tell, it lives.
        let is_dead = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
        self.is_dead.fetch_or(is_dead, Ordering::Relaxed);
        is_dead
    }

    /// Nobody waits for it from now on.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}

impl Access {
    /// Whether it is over.
    pub(super) fn has_ended(&self) -> bool {
        self.end.gate.is_past(self.epoch) || self.end.is_dead.load(Ordering::Relaxed)
    }

    /// Whether it is not waited for any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.end.is_given_up.load(Ordering::Relaxed)
    }
}
