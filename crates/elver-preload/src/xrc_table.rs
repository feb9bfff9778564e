//! What a process has of XRC: domains of files, queues, and targets with the objects that stand for each.

use std::collections::{HashMap, HashSet};

use elver_verbs::{Qp as Handle, Srq as SrqHandle, Xrcd as Domain};

use crate::layout::Qp;
use crate::told::Told;

/// The file that stands for a domain: its device and its number there.
pub(crate) type File = (u64, u64);

/// What the engine knows of XRC.
#[derive(Default)]
pub(crate) struct Xrc {
    /// Domains of files, and how often each is open.
    pub(crate) files: HashMap<File, (Domain, u32)>,
    srqs: HashSet<SrqHandle>,
    /// Targets: their domains, and the objects that stand for each.
    pub(crate) targets: HashMap<Handle, (Domain, Vec<Told>)>,
}

impl Xrc {
    pub(crate) fn add_srq(&mut self, srq: SrqHandle) {
        self.srqs.insert(srq);
    }

    pub(crate) fn remove_srq(&mut self, srq: SrqHandle) {
        self.srqs.remove(&srq);
    }

    /// Whether other objects stand for the same target.
    pub(crate) fn is_shared(&self, qp: Handle) -> bool {
        self.targets.get(&qp).is_some_and(|(_, objects)| objects.len() > 1)
    }

    /// An object that stands for a target goes; tells who hears of its events then.
    pub(crate) fn close(&mut self, qp: Handle, object: *mut Qp) -> Option<Told> {
        let (_, objects) = self.targets.get_mut(&qp)?;
        objects.retain(|told| told.element != object.cast());
        let first = objects.first().copied();
        if first.is_none() {
            self.targets.remove(&qp);
        }
        first
    }
}
