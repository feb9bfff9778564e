//! What an XRC target has that an RC QP has not: each request names a shared receive queue of its domain, whose
//! protection domain, receives and completion queue are the target's while it executes the request (IBTA annex
//! A14).

use alloc::collections::VecDeque;

use elver_verbs::{Cq, Pd, Srq};
use elver_wire::{Psn, XrcEth};

use crate::hw::Hw;
use crate::qp_core::QpCore;

/// A handle that no object has: those of tables have 24 bits.
pub(crate) const NOBODY: u32 = u32::MAX;
/// READs whose protection domain is remembered: more than can wait for their answers, new ones and duplicates.
const READS: usize = 2 * u8::MAX as usize + 2;

#[derive(Debug)]
pub(crate) struct XrcTarget {
    pub(crate) xrcd: u32,
    /// The READs taken last, and the protection domains that they read from.
    reads: VecDeque<(Psn, u32)>,
}

/// What a request names, or what the one before it named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pd: u32,
    pub(crate) srq: Option<Srq>,
    cq: Cq,
}

impl Named {
    /// No queue: every key is refused.
    pub(crate) const NOTHING: Named = Named { pd: NOBODY, srq: None, cq: Cq(NOBODY) };
}

impl XrcTarget {
    pub(crate) fn new(xrcd: u32) -> XrcTarget {
        XrcTarget { xrcd, reads: VecDeque::new() }
    }

    /// What a request's header stands for; none if there is no such queue in the domain.
    pub(crate) fn find<M>(&self, hw: &Hw<M>, eth: XrcEth) -> Option<Named> {
        let srqn = eth.srqn.get();
        let shared = hw.srqs.get(srqn)?;
        let xrc = shared.xrc.filter(|xrc| xrc.xrcd == self.xrcd)?;
        Some(Named { pd: shared.pd, srq: Some(Srq(srqn)), cq: Cq(xrc.cq) })
    }

    /// A READ was taken: it is answered from this protection domain, whatever is named meanwhile.
    pub(crate) fn took_read(&mut self, psn: Psn, pd: u32) {
        if self.reads.len() >= READS {
            self.reads.pop_front();
        }
        self.reads.push_back((psn, pd));
    }

    /// The protection domain that a READ is answered from.
    pub(crate) fn domain_of(&self, psn: Psn) -> u32 {
        self.reads.iter().rev().find(|(taken, _)| *taken == psn).map_or(NOBODY, |(_, pd)| *pd)
    }

    /// The QP goes to RESET.
    pub(crate) fn forget(&mut self, core: &mut QpCore) {
        self.reads.clear();
        core.name(Named::NOTHING);
    }
}

impl QpCore {
    /// Has requests executed with what was named; tells what was named before.
    pub(crate) fn name(&mut self, named: Named) -> Named {
        let before = Named { pd: self.pd, srq: self.init.srq, cq: self.init.recv_cq };
        (self.pd, self.init.srq, self.init.recv_cq) = (named.pd, named.srq, named.cq);
        self.init.pd = Pd(named.pd);
        before
    }
}
