//! Copies to and from memory that is not at hand, made by others while a device goes on.

use std::collections::BTreeMap;

use elver_rnic::{Errand, Rnic, Time};

use crate::memory::SimMemory;

/// By how much a copy is late that was told before it was made, in nanoseconds.
const BELATED_NS: u64 = 50_000;

/// The errands of a device, by when each has ended.
#[derive(Debug, Default)]
pub(crate) struct Errands {
    out: BTreeMap<(Time, u64), Errand<SimMemory>>,
    sent: u64,
    /// A planted bug's: copies that were told and are still to be made.
    belated: Vec<(Time, SimMemory, u64, Vec<u8>)>,
}

impl Errands {
    /// Takes new ones, and brings back those that have ended; whether there were any. One that is
    /// `hasty` is told before its copy is made.
    pub(crate) fn run(
        &mut self,
        now: Time,
        rnic: &mut Rnic<SimMemory>,
        hasty: &mut impl FnMut() -> bool,
    ) -> bool {
        let mut acted = false;
        for (_, memory, offset, mut bytes) in self.belated.extract_if(.., |late| late.0 <= now) {
            memory.make_copy(offset, &mut bytes, true);
            acted = true;
        }
        loop {
            acted |= self.take_new(now, rnic);
            let ended = self.out.first_entry().filter(|first| first.key().0 <= now);
            let Some(errand) = ended.map(|first| first.remove()) else { return acted };
            if errand.writes && hasty() {
                let due = now.saturating_add_ns(BELATED_NS);
                let (memory, bytes) = (errand.memory.clone(), errand.bytes.clone());
                memory.end_errand();
                self.belated.push((due, memory, errand.offset, bytes));
                rnic.errand_done(now, errand, true);
            } else {
                bring_back(now, rnic, errand);
            }
            acted = true;
        }
    }

    /// Lets all that is under way end at once.
    pub(crate) fn finish(&mut self, now: Time, rnic: &mut Rnic<SimMemory>) {
        loop {
            self.take_new(now, rnic);
            let Some((_, errand)) = self.out.pop_first() else { return };
            bring_back(now, rnic, errand);
        }
    }

    /// When there is something to do next.
    pub(crate) fn due(&self) -> Option<Time> {
        let ended = self.out.first_key_value().map(|((due, _), _)| *due);
        self.belated.iter().map(|late| late.0).chain(ended).min()
    }

    fn take_new(&mut self, now: Time, rnic: &mut Rnic<SimMemory>) -> bool {
        let mut any = false;
        while let Some(errand) = rnic.poll_errand() {
            let due = errand.memory.begin_errand(now);
            self.out.insert((due, self.sent), errand);
            self.sent += 1;
            any = true;
        }
        any
    }
}

fn bring_back(now: Time, rnic: &mut Rnic<SimMemory>, mut errand: Errand<SimMemory>) {
    let Errand { memory, offset, bytes, writes, .. } = &mut errand;
    memory.end_errand();
    let done = memory.make_copy(*offset, bytes, *writes);
    rnic.errand_done(now, errand, done);
}
