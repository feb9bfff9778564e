//! Memory that processes register: whether it is there another thread finds out, since the pages may not
//! come. The engine hears of it later ([`super::notice::Notice::Looked`]), or gives it up.

use std::collections::BTreeMap;
use std::sync::Arc;

use elver_soft::{MapError, ProcessMemory, SoftMemory};
use elver_verbs::{AccessFlags, Time};
use rustc_hash::FxHashMap;

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

impl Look {
    /// Of the session that registers it.
    pub(super) fn token(&self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }
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

    /// Gives up what a session has looked at.
    pub(super) fn forget(&mut self, token: u64) -> Vec<Look> {
        self.open.extract_if(.., |_, look| look.token() == token).map(|(_, look)| look).collect()
    }

    /// Those that take too long, of accounts whose copies do as `is_late` says: it is asked once of each.
    #[inline]
    pub(super) fn overdue(&mut self, mut is_late: impl FnMut(u64) -> bool, now: Time) -> Vec<Look> {
        if self.open.is_empty() || now.ns_since(self.looked_at) < LOOK_NS {
            return Vec::new();
        }
        self.looked_at = now;
        let mut seen = FxHashMap::default();
        let late = |_: &u64, look: &mut Look| {
            *seen.entry(look.payer).or_insert_with(|| is_late(look.payer))
        };
        self.open.extract_if(.., late).map(|(_, look)| look).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::notice::channel;
    use super::*;

    /// The engine looked at the account's thread for each of them, by a file of the system's each time.
    #[test]
    fn each_account_is_asked_after_once_however_many_looks_it_has() {
        let (outlet, _inlet) = channel().unwrap();
        let mut looks = Looks::new(outlet);
        for id in 0..1_000 {
            let (request, access, payer) = (id as u32, AccessFlags::empty(), id % 2);
            let look = Look { slot: 0, serial: 0, request, addr: 0, access, payer };
            looks.open.insert(id, look);
        }
        let mut asked = Vec::new();
        let mut is_late = |payer| {
            asked.push(payer);
            payer == 1
        };
        let late = looks.overdue(&mut is_late, Time(LOOK_NS));
        assert!(late.len() == 500 && late.iter().all(|look| look.payer == 1));
        assert_eq!(looks.open.len(), 500);
        assert!(looks.overdue(&mut is_late, Time(LOOK_NS + 1)).is_empty(), "it is too soon");
        assert_eq!(asked, [0, 1]);
    }
}
