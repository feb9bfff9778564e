use alloc::collections::VecDeque;

use elver_verbs::{Wc, WcStatus};

/// A completion queue (IBTA vol. 1, 10.8).
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    entries: VecDeque<Wc>,
    capacity: u32,
    notify: Notify,
    /// It overflowed: it takes no more.
    pub(crate) failed: bool,
    /// QPs that complete here.
    pub(crate) users: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notify {
    Off,
    Solicited,
    Any,
}

/// What pushing a completion led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Quietly,
    /// An armed notification fires.
    Event,
    /// The queue was full: the completion is lost and the queue has failed.
    Overflow,
    /// The queue had failed before.
    Lost,
}

impl CompletionQueue {
    pub(crate) fn new(capacity: u32) -> CompletionQueue {
        CompletionQueue {
            entries: VecDeque::new(),
            capacity,
            notify: Notify::Off,
            failed: false,
            users: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, wc: Wc, solicited: bool) -> Pushed {
        if self.failed {
            return Pushed::Lost;
        }
        if self.entries.len() as u32 >= self.capacity {
            self.failed = true;
            return Pushed::Overflow;
        }
        let fires = match self.notify {
            Notify::Off => false,
            Notify::Any => true,
            Notify::Solicited => solicited || wc.status != WcStatus::Success,
        };
        self.entries.push_back(wc);
        if fires {
            self.notify = Notify::Off;
            return Pushed::Event;
        }
        Pushed::Quietly
    }

    #[inline]
    pub(crate) fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        let count = wcs.len().min(self.entries.len());
        for slot in &mut wcs[..count] {
            if let Some(wc) = self.entries.pop_front() {
                *slot = wc;
            }
        }
        count
    }

    /// Completions that wait.
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Completions that it takes before it is full.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        (self.capacity as usize).saturating_sub(self.entries.len())
    }

    /// Changes how many it holds; the caller has checked that those fit that wait.
    pub(crate) fn resize(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// Arms one event. A request for any completion is not weakened by one for solicited ones.
    pub(crate) fn arm(&mut self, solicited_only: bool) {
        self.notify = match (self.notify, solicited_only) {
            (Notify::Any, _) | (_, false) => Notify::Any,
            _ => Notify::Solicited,
        };
    }

    /// Forgets the completions of a QP that is destroyed.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.entries.retain(|wc| wc.qp_num != qpn);
    }
}
