//! Memory that processes register: whether it is there another thread finds out, since the pages may not
//! come. The engine hears of it later ([`super::notice::Notice::Looked`]), or gives it up.

use std::collections::BTreeMap;
use std::sync::Arc;

use elver_soft::{Copier, MapError, ProcessMemory, SoftMemory};
use elver_verbs::{AccessFlags, Time};

use super::notice::{Notice, Outlet};
use super::orders::Looked;

/// Time between two looks whether one takes too long.
const LOOK_NS: u64 = 5_000_000;

/// What is to be registered, and for whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) slot: u32,
    pub(super) serial: u32,
    pub(super) request: u32,
    pub(super) addr: u64,
    pub(super) access: AccessFlags,
    /// Whose pages are looked at, as the copier knows it.
    pub(super) payer: u64,
}

/// All that is being looked at; each session has few.
pub(super) struct Looks {
    open: BTreeMap<u64, Look>,
    next: u64,
    outlet: Outlet,
    looked_at: Time,
}

impl Looks {
    pub(super) fn new(outlet: Outlet) -> Looks {
        Looks { open: BTreeMap::new(), next: 0, outlet, looked_at: Time::ZERO }
    }

    /// Begins to look.
    pub(super) fn begin(
        &mut self,
        look: Look,
        process: Arc<ProcessMemory>,
        len: u64,
    ) -> Result<(), MapError> {
        let (id, outlet) = (self.next, self.outlet.clone());
        let told = move |sought| {
            // Without an engine nobody waits for it.
            let _ = outlet.send(Notice::Looked(Looked { id, sought }));
        };
        SoftMemory::of_process_later(process, look.addr, len, told)?;
        self.next += 1;
        self.open.insert(id, look);
        Ok(())
    }

    /// What was looked at, and the memory; none if it was given up.
    pub(super) fn end(&mut self, looked: Looked) -> Option<(Look, Result<SoftMemory, MapError>)> {
        let found = SoftMemory::found(looked.sought);
        self.open.remove(&looked.id).map(|look| (look, found))
    }

    /// Those that take too long.
    #[inline]
    pub(super) fn overdue(&mut self, copier: &Copier, now: Time) -> Vec<Look> {
        if self.open.is_empty() || now.ns_since(self.looked_at) < LOOK_NS {
            return Vec::new();
        }
        self.looked_at = now;
        let late = |_: &u64, look: &mut Look| copier.overdue(look.payer);
        self.open.extract_if(.., late).map(|(_, look)| look).collect()
    }
}
