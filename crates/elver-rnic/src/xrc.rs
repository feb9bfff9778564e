//! XRC domains, their shared receive queues and targets, and the requests that come to these. In all else an
//! XRC pair is an RC pair: its initiator a requester alone, its target a responder alone.

use alloc::boxed::Box;

use elver_verbs::{Cq, Memory, ObjectKind, Pd, Qp, QpCap, QpInit, QpType, Srq, VerbsError, Xrcd};
use elver_wire::{Headers, Message, Qpn, XrcEth};

use crate::Rnic;
use crate::hw::{Hw, XrcDomain, XrcSrq};
use crate::qp::QueuePair;
use crate::responder::Handled;
use crate::xrc_target::{Named, XrcTarget};

impl<M: Memory> Rnic<M> {
    /// Opens an XRC domain.
    ///
    /// # Errors
    /// There are too many.
    pub fn open_xrcd(&mut self) -> Result<Xrcd, VerbsError> {
        let hw = &mut self.hw;
        hw.xrcds.insert(&mut hw.rng, |_| XrcDomain::default()).map(Xrcd)
    }

    /// Closes an XRC domain that nothing is in.
    ///
    /// # Errors
    /// An unknown domain, or one in use.
    pub fn close_xrcd(&mut self, xrcd: Xrcd) -> Result<(), VerbsError> {
        let users = self.hw.xrcds.require(xrcd.0)?.users;
        if users > 0 {
            return Err(VerbsError::InUse { kind: ObjectKind::Xrcd, handle: xrcd.0, users });
        }
        self.hw.xrcds.remove(xrcd.0);
        Ok(())
    }

    /// Creates an XRC target ([`QpType::XrcRecv`]) in RESET. It has no protection domain and no CQ: those of the
    /// queues that requests name serve.
    ///
    /// # Errors
    /// An unknown domain, or too many QPs.
    pub fn create_xrc_target(&mut self, xrcd: Xrcd) -> Result<Qp, VerbsError> {
        let hw = &mut self.hw;
        hw.xrcds.require(xrcd.0)?;
        let nothing = QpCap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        // What is told of a target says that it has none (`QpMade`); no object's handle is 0.
        let init = QpInit { cap: nothing, ..QpInit::new(QpType::XrcRecv, Pd(0), Cq(0)) };
        let made = |id| {
            let mut target = QueuePair::new(Qpn::from_wrapping(id), init);
            target.core.name(Named::default());
            target.xrc = Some(Box::new(XrcTarget::new(xrcd.0)));
            target
        };
        let qp = self.qps.insert(&mut hw.rng, made)?;
        hw.xrcds.require_mut(xrcd.0)?.users += 1;
        Ok(Qp(qp))
    }

    /// An XRC SRQ is gone: targets that named it last name nothing, and what they were receiving will never end.
    pub(crate) fn forget_xrc_srq(&mut self, srq: Srq, xrc: XrcSrq) {
        let ids: alloc::vec::Vec<u32> = self.qps.ids().collect();
        for id in ids {
            if let Some(queue_pair) = self.qps.get_mut(id)
                && queue_pair.xrc.is_some()
                && queue_pair.core.init.srq == Some(srq)
            {
                queue_pair.responder.take_receive();
                queue_pair.core.name(Named::default());
            }
        }
        if let Some(cq) = self.hw.cqs.get_mut(xrc.cq) {
            cq.users -= 1;
        }
        self.hw.release_xrcd(xrc.xrcd);
    }
}

impl<M> Hw<M> {
    pub(crate) fn release_xrcd(&mut self, xrcd: u32) {
        if let Some(domain) = self.xrcds.get_mut(xrcd) {
            domain.users -= 1;
        }
    }
}

impl QueuePair {
    /// Takes a request of an XRC initiator's.
    pub(crate) fn xrc_request<M: Memory>(
        &mut self,
        hw: &mut Hw<M>,
        eth: XrcEth,
        headers: &Headers,
        payload: &[u8],
    ) -> Handled {
        let QueuePair { core, responder, xrc, .. } = self;
        let Some(target) = xrc else {
            bug!("an XRC target has no domain");
            return Handled::Fine;
        };
        let found = target.find(hw, eth);
        let expected = headers.psn == responder.expected_psn();
        let before = core.name(found.unwrap_or_default());
        // A message is for one queue from its first packet to its last.
        let fits = found.is_some() && (responder.is_between() || core.init.srq == before.srq);
        if expected && !fits {
            core.name(before);
            return responder.turn_down(core, hw, headers.psn);
        }
        let source = core.attr.dest_qp_num;
        let handled = responder.request(core, hw, source, 0, headers, payload);
        if matches!(headers.message(), Message::ReadRequest(_)) && handled == Handled::Fine {
            target.took_read(headers.psn, core.pd);
        }
        if !expected {
            // It was executed before, or is not now: what is being received goes on as it was.
            core.name(before);
        }
        handled
    }

    /// Has a request of an initiator of this device executed with the queue that it names; false if there is none.
    pub(crate) fn name_locally<M: Memory>(&mut self, hw: &Hw<M>, srqn: u32) -> bool {
        let eth = XrcEth { srqn: Qpn::from_wrapping(srqn) };
        let found = self.xrc.as_ref().and_then(|target| target.find(hw, eth));
        found.map(|named| self.core.name(named)).is_some()
    }
}
