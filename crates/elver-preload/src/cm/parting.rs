//! Event channels whose descriptors are closed, and threads that still wait for their events. The kernel's call holds its file, and sleeps
//! on until a signal comes; so does one here, as long as its bell has an end left that nobody rings.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::ring::{Own, is_awaited};

/// How a channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parting {
    /// Its descriptor did not wait.
    Nonblocking,
    /// Somebody was waiting at it.
    Awaited,
    Unawaited,
}

/// One whose descriptor is to be closed next.
pub(crate) struct Closing(Option<OwnedFd>);

impl Closing {
    /// By the end of its bell that this library rang by.
    pub(crate) fn new(bell: Own) -> Closing {
        Closing(bell.silent())
    }
}

/// Those that have ended.
#[derive(Default)]
pub(crate) struct Partings {
    /// By their descriptors, until these are channels again.
    all: HashMap<RawFd, Parting>,
    /// What those sleep by who wait.
    bells: Vec<OwnedFd>,
}

impl Partings {
    /// A channel whose descriptor is closed by now.
    pub(crate) fn add(&mut self, channel: RawFd, closing: Closing, nonblocking: bool) {
        self.sweep();
        let bell = closing.0.filter(is_awaited);
        let parting = match &bell {
            _ if nonblocking => Parting::Nonblocking,
            Some(_) => Parting::Awaited,
            None => Parting::Unawaited,
        };
        self.bells.extend(bell);
        self.all.insert(channel, parting);
    }

    pub(crate) fn of(&self, channel: RawFd) -> Option<Parting> {
        self.all.get(&channel).copied()
    }

    /// A descriptor that is a channel again.
    pub(crate) fn forget(&mut self, channel: RawFd) {
        self.all.remove(&channel);
    }

    /// Closes those bells that are such descriptors.
    pub(crate) fn close(&mut self, are: impl Fn(RawFd) -> bool) {
        self.bells.retain(|bell| !are(bell.as_raw_fd()));
    }

    /// Lets go of those by which nobody sleeps any more.
    pub(crate) fn sweep(&mut self) {
        self.bells.retain(is_awaited);
    }
}

#[cfg(test)]
mod tests {
    use crate::ring::bell;

    use super::*;

    #[test]
    fn a_bell_stays_as_long_as_somebody_has_its_other_end() {
        let mut partings = Partings::default();
        let bells = [(); 3].map(|()| bell(0).unwrap());
        let bells = bells.map(|(program, own)| (program, Closing::new(own)));
        let [(waits, first), (gone, second), (never, third)] = bells;
        partings.add(7, first, false);
        drop(gone);
        partings.add(8, second, false);
        drop(never);
        partings.add(9, third, true);
        let of = |partings: &Partings| [7, 8, 9, 10].map(|channel| partings.of(channel));
        let [awaited, unawaited, nonblocking] =
            [Parting::Awaited, Parting::Unawaited, Parting::Nonblocking].map(Some);
        assert_eq!(of(&partings), [awaited, unawaited, nonblocking, None]);
        assert_eq!(partings.bells.len(), 1);
        // How it ended is told until its descriptor is a channel again.
        drop(waits);
        partings.forget(9);
        partings.sweep();
        assert_eq!(of(&partings), [awaited, unawaited, None, None]);
        assert!(partings.bells.is_empty());
    }
}
