//! What an XRC target has that an RC QP has not: each request names a shared receive queue of its domain, whose
//! protection domain, receives and completion queue are the target's while it executes the request (IBTA annex
//! A14).

use alloc::collections::VecDeque;

use elver_verbs::{Cq, Pd, Srq};
use elver_wire::{Psn, XrcEth};

use crate::hw::Hw;
use crate::maybe_pd::MaybePd;
use crate::qp_core::QpCore;

/// READs whose protection domain is remembered: more than can wait for their answers, new ones and duplicates.
const READS: usize = 2 * u8::MAX as usize + 2;

#[derive(Debug)]
pub(crate) struct XrcTarget {
    pub(crate) xrcd: u32,
    /// The READs taken last, and the protection domains that they read from.
    reads: VecDeque<(Psn, MaybePd)>,
}

/// What a request names, or what the one before it named: by default no queue, so that every key is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pd: MaybePd,
    pub(crate) srq: Option<Srq>,
    cq: Option<Cq>,
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
        Some(Named { pd: Pd(shared.pd).into(), srq: Some(Srq(srqn)), cq: Some(Cq(xrc.cq)) })
    }

    /// A READ was taken: it is answered from this protection domain, whatever is named meanwhile.
    pub(crate) fn took_read(&mut self, psn: Psn, pd: MaybePd) {
        if self.reads.len() >= READS {
            self.reads.pop_front();
        }
        self.reads.push_back((psn, pd));
    }

    /// The protection domain that a READ is answered from.
    pub(crate) fn domain_of(&self, psn: Psn) -> MaybePd {
        let taken = self.reads.iter().rev().find(|(taken, _)| *taken == psn);
        taken.map(|(_, pd)| *pd).unwrap_or_default()
    }

    /// The QP goes to RESET.
    pub(crate) fn forget(&mut self, core: &mut QpCore) {
        self.reads.clear();
        core.name(Named::default());
    }
}

impl QpCore {
    /// Has requests executed with what was named; tells what was named before.
    pub(crate) fn name(&mut self, named: Named) -> Named {
        let before = Named { pd: self.pd, srq: self.init.srq, cq: self.recv_cq };
        (self.pd, self.init.srq, self.recv_cq) = (named.pd, named.srq, named.cq);
        before
    }
}
