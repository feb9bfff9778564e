//! Packets between two QPs of one device: of SENDs that are too long to be copied at once ([`crate::local`]), and their
//! answers. They never reach the link.

use elver_verbs::{Memory, Time};
use elver_wire::IpId;

use crate::lane::Lane;
use crate::local::TURN_BYTES;
use crate::{Rnic, RxMeta, Transmit};

impl<M: Memory> Rnic<M> {
    /// Takes a packet that a QP has just written, if it goes to this device. The QP goes on when what is due by the clock
    /// was done, if so much was moved by now.
    #[cold]
    #[inline(never)]
    pub(crate) fn takes_own(&mut self, now: Time, qp: u32, sent: Transmit, buf: &[u8]) -> bool {
        let config = &self.hw.config;
        if !config.local_copy || !config.addresses.contains(&sent.flow.dst.ip()) {
            return false;
        }
        let Transmit { len, flow, traffic_class, hop_limit, .. } = sent;
        let meta = RxMeta { flow, traffic_class, hop_limit, ip_id: IpId::Exact(0) };
        if let Some(view) = self.accept(&meta, &buf[..len], false) {
            self.dispatch(now, &meta, view.headers(), view.payload());
        }
        self.copied += len as u64;
        if self.copied >= TURN_BYTES
            && let Some(queue_pair) = self.qps.get_mut(qp)
        {
            let lane = queue_pair.next_lane;
            queue_pair.with_lane(lane, &mut self.hw, now, Lane::give_way);
        }
        self.stop_cut_off(now);
        true
    }
}
