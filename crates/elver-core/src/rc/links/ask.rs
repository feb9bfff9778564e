//! Makes our end of a link, and asks the peer for the other.

use elver_control::{ControlAddr, RcEnd, Request, Shortage};
use elver_verbs::{Class, Device, QpCap, QpInit, QpState, QpType, Time};

use crate::Core;
use crate::ids::{LinkId, PeerId};
use crate::pool::lane::RESERVED;
use crate::rc::link::{LinkState, Purpose, RcLink, Reached};
use crate::rc::links::CallFor;
use crate::rc::links::waiting::Unasked;

impl<D: Device> Core<D> {
    /// Makes our end of a link and asks the peer for the other.
    pub(super) fn ask_link(
        &mut self,
        peer: PeerId,
        class: Class,
        purpose: Purpose,
        now: Time,
    ) -> Result<LinkId, Unasked> {
        let to = self.peers.control_addr(peer).ok_or(Unasked::NoAddress)?;
        let short = |(of, used, limit)| Unasked::Short(of, used, limit);
        let link =
            self.make_link(peer, to, class, purpose, LinkState::Asking, now).map_err(short)?;
        let end = self.link_end(link).ok_or(Unasked::NoAddress)?;
        let leased = matches!(purpose, Purpose::Leased(_));
        let request = Request::RcConnect { end, class, leased };
        if self.call(to, request, CallFor::Connect { link, qpn: end.qpn, to }, now).is_none() {
            let stirred = self.links.waiting.stirred;
            self.drop_link(link, now);
            // That made no room: who waits would ask in vain, again and again.
            self.links.waiting.stirred = stirred;
            return Err(Unasked::Busy);
        }
        self.stats.links_asked += 1;
        Ok(link)
    }

    /// Makes an RC QP, in INIT.
    pub(crate) fn make_link(
        &mut self,
        peer: PeerId,
        control: ControlAddr,
        class: Class,
        purpose: Purpose,
        state: LinkState,
        now: Time,
    ) -> Result<LinkId, (Shortage, u32, u32)> {
        let depth = match purpose {
            Purpose::Pool | Purpose::Meta => self.pool.depth,
            Purpose::Leased(Some(vqp)) => {
                let wrs = self.vqps.get(vqp).map_or(0, |vqp| vqp.sq.max());
                (wrs + RESERVED).min(self.pool.depth)
            }
            // Nothing is sent on it.
            Purpose::Reader | Purpose::Leased(None) => 1,
        };
        if let Some(short) = self.links.rc.shortage(purpose, depth) {
            return Err(short);
        }
        let of_device = (Shortage::Device, self.links.rc.len(), self.pool.attr.max_qp);
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: 0,
            max_send_sge: self.config.max_sge + 1,
            max_recv_sge: 0,
            max_inline_data: self.pool.max_inline,
        };
        let init = QpInit {
            cap,
            srq: Some(self.pool.srq),
            ..QpInit::new(QpType::Rc, self.pool.pd, self.pool.cq)
        };
        let qp = self.device.create_qp(init).map_err(|_| of_device)?;
        let mut attr = self.pool.qp_attr(&self.config, Default::default());
        attr.qp_state = QpState::Init;
        let made = self.device.advance_qp(qp, &attr).and_then(|()| self.device.qp_num(qp));
        let qpn = match made {
            Ok(qpn) => qpn,
            Err(_) => {
                self.stats.device_refusals += u64::from(self.device.destroy_qp(qp).is_err());
                return Err(of_device);
            }
        };
        let link = RcLink {
            qp,
            qpn,
            psn: self.rng.next_u32() >> 8,
            peer_end: None,
            peer,
            control,
            class,
            purpose,
            state,
            lane: None,
            depth,
            since: now,
            reached: Reached::Unasked,
        };
        let id = self.links.rc.insert(link).ok_or(of_device)?;
        if let Some(entry) = self.peers.get_mut(peer) {
            entry.pins += 1;
        }
        Ok(id)
    }

    /// Our end of a link, as the peer must know it.
    pub(crate) fn link_end(&self, link: LinkId) -> Option<RcEnd> {
        let link = self.links.rc.get(link)?;
        let rd_atomic = self.pool.attr.max_qp_rd_atom;
        Some(RcEnd { qpn: link.qpn, psn: link.psn, mtu: self.pool.mtu, rd_atomic })
    }
}
